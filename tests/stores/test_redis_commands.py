"""How many commands and round trips a claim costs a server: what PERF's table states, counted by the server itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from claimant._model.ops import Create, Granted, Held, Release, Released
from claimant.testing.store_suite import MINUTE_MS, Asked, soon, value
from tests.support.proxy import Proxy
from tests.support.servers import Server

Ask = Callable[[object], Asked]


@pytest.fixture
def counted(private_valkey: Callable[..., Server]) -> Callable[[Callable[[], object]], dict[str, int]]:
    """Runs something, and gives the commands that the server carried out for it."""
    server = private_valkey()

    def count(work: Callable[[], object]) -> dict[str, int]:
        with redis.Redis(port=server.port) as client:
            client.config_resetstat()
            work()
            stats = client.info("commandstats")
        mine = {"cmdstat_info", "cmdstat_config|resetstat"}
        return {
            name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items() if name not in mine
        }

    count.url = server.url  # type: ignore[attr-defined]
    return count


def test_a_cycle_is_two_commands(ask: Ask, counted) -> None:
    """One create, one release, each one command; nothing else, first connection apart."""
    asked = ask(counted.url)
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
    assert asked.call(Release("k", value(1), soon())) == Released()

    def cycles() -> None:
        for at in range(5):
            assert asked.call(Create("k", value(at), MINUTE_MS, soon())) == Granted()
            assert asked.call(Release("k", value(at), soon())) == Released()

    assert counted(cycles) == {"set": 5, "delifeq": 5}


def test_a_refused_create_is_two_commands_and_from_then_on_one_round_trip(
    ask: Ask, proxy: Proxy, valkey_url: str
) -> None:
    """Who was refused asks for the time left in the same breath, and finds out when the name is free."""
    asked = ask(proxy.url(valkey_url))
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
    for trips in (2, 1, 1):
        before = proxy.counts.requests
        reply = asked.call(Create("k", value(2), MINUTE_MS, soon()))
        assert isinstance(reply, Held)
        assert reply.value == value(1)
        assert reply.remaining_ms is not None
        assert 0 < reply.remaining_ms <= MINUTE_MS
        assert proxy.counts.requests == before + trips
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted(recognised=True)
    assert asked.call(Release("k", value(1), soon())) == Released()
    assert asked.call(Create("k", value(2), MINUTE_MS, soon())) == Granted()
    assert asked.call(Release("k", value(2), soon())) == Released()


def test_a_name_that_was_free_again_costs_no_more_than_before(ask: Ask, counted) -> None:
    """The first create after refusals asks once in vain for the time left, and the next one does not."""
    asked = ask(counted.url)
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
    assert counted(lambda: asked.call(Create("k", value(2), MINUTE_MS, soon()))) == {"set": 1, "pttl": 1}
    assert asked.call(Release("k", value(1), soon())) == Released()
    assert counted(lambda: asked.call(Create("k", value(2), MINUTE_MS, soon()))) == {"set": 1, "pttl": 1}
    assert asked.call(Release("k", value(2), soon())) == Released()
    assert counted(lambda: asked.call(Create("k", value(3), MINUTE_MS, soon()))) == {"set": 1}


def test_what_is_remembered_of_refusals_is_bounded(ask: Ask, valkey_url: str) -> None:
    """A process that is refused under ever new names does not grow."""
    from claimant.stores.redis_facts import MOST_REFUSED

    asked = ask(valkey_url)
    port = asked.aio or asked.port
    for at in range(MOST_REFUSED + 10):
        port._facts.refuse(f"k{at}")  # type: ignore[union-attr]
        assert len(port._facts.refused) <= MOST_REFUSED  # type: ignore[union-attr]
    assert f"k{at}" in port._facts.refused  # type: ignore[union-attr]
