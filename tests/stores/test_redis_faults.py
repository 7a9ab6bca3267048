"""Faults of the network between us and a real server: every reply comes by the deadline and says what is known."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from claimant._drive.clock import now_ms
from claimant._model.ops import (
    Create,
    Granted,
    Held,
    NotOurs,
    Peek,
    Release,
    Released,
    Renew,
    Renewal,
    Renewed,
    StoreAbsent,
    StoreUnknown,
    Vacant,
)
from claimant.stores import open_store
from claimant.testing.store_suite import MINUTE_MS, Asked, soon, value
from tests.support import dns
from tests.support.proxy import Proxy

Ask = Callable[[object], Asked]
DEADLINE_MS = 150
GRACE_MS = 350  # a machine that is shared by servers and tests


def timed(asked: Asked, request_of: Callable[[int], object]) -> tuple[object, int]:
    """The reply to a request with our deadline, and how long it took."""
    began = now_ms()
    reply = asked.call(request_of(began + DEADLINE_MS))  # type: ignore[arg-type]
    return reply, now_ms() - began


def create(key: str, holder: int) -> Callable[[int], object]:
    return lambda until: Create(key, value(holder), MINUTE_MS, until)


def warm(ask: Ask, proxy: Proxy, url: str) -> Asked:
    """A store with an open connection through the proxy."""
    asked = ask(proxy.url(url))
    assert asked.call(Peek("warm", soon())) == Vacant()
    return asked


def test_a_refusing_port_is_absent_at_once(ask: Ask, proxy: Proxy, valkey_url: str) -> None:
    """Nothing was sent: absent, with the address and the advice, long before the deadline."""
    proxy.refuse()
    asked = ask(proxy.url(valkey_url))
    began = now_ms()
    reply = asked.call(Create("k", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert f"127.0.0.1:{proxy.port}" in reply.reason
    assert "refused" in reply.reason
    assert now_ms() - began < 1_000
    proxy.heal()
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()


def test_a_refused_connection_is_shared_by_all_who_wait_for_it(
    ask: Ask, proxy: Proxy, valkey_url: str
) -> None:
    """Fifty callers at once learn of it at once, and not one after the other."""
    proxy.refuse()
    asked = ask(proxy.url(valkey_url))
    began = now_ms()
    replies = asked.together([Create(f"k{at}", value(at), MINUTE_MS, soon()) for at in range(50)])
    assert all(isinstance(reply, StoreAbsent) and "refused" in reply.reason for reply in replies)
    assert now_ms() - began < 1_000


def test_a_server_that_never_greets_is_absent_by_the_deadline(
    ask: Ask, proxy: Proxy, valkey_url: str
) -> None:
    """It accepts and never answers: no request of ours was sent, so the answer is absent."""
    proxy.black_hole()
    asked = ask(proxy.url(valkey_url))
    reply, took = timed(asked, create("k", 1))
    assert isinstance(reply, StoreAbsent)
    assert took <= DEADLINE_MS + GRACE_MS


def test_a_server_that_falls_silent_is_unknown_by_the_deadline(
    ask: Ask, proxy: Proxy, valkey_url: str
) -> None:
    """The request was sent and never answered: unknown, and the connection is not used again."""
    asked = warm(ask, proxy, valkey_url)
    proxy.black_hole()
    reply, took = timed(asked, create("k", 1))
    assert isinstance(reply, StoreUnknown)
    assert took <= DEADLINE_MS + GRACE_MS
    proxy.heal()
    before = proxy.counts.connections
    assert asked.call(Create("k", value(2), MINUTE_MS, soon())) == Granted()
    assert proxy.counts.connections == before + 1


def test_a_dripping_server_does_not_outlast_the_deadline(ask: Ask, proxy: Proxy, valkey_url: str) -> None:
    """One byte each 60 ms keeps every single read short; the deadline spans them all."""
    asked = warm(ask, proxy, valkey_url)
    assert asked.call(Create("k", value(9), MINUTE_MS, soon())) == Granted()
    proxy.drip(60)
    reply, took = timed(asked, lambda until: Peek("k", until))
    assert isinstance(reply, StoreUnknown)
    assert took <= DEADLINE_MS + GRACE_MS


def test_a_dripping_greeting_does_not_outlast_the_deadline(ask: Ask, proxy: Proxy, valkey_url: str) -> None:
    """The greeting is bounded like everything else, and nothing of ours was sent."""
    proxy.drip(60)
    asked = ask(proxy.url(valkey_url))
    reply, took = timed(asked, create("k", 1))
    assert isinstance(reply, StoreAbsent)
    assert took <= DEADLINE_MS + GRACE_MS


def test_a_late_answer_is_never_taken_for_another_ones(ask: Ask, proxy: Proxy, valkey_url: str) -> None:
    """The reply to an abandoned question arrives while the next one waits, and is not believed."""
    asked = warm(ask, proxy, valkey_url)
    assert asked.call(Create("held", value(9), MINUTE_MS, soon())) == Granted()
    proxy.delay(DEADLINE_MS * 2, times=1)
    reply, _ = timed(asked, create("free", 1))  # granted by the server, after we left
    assert isinstance(reply, StoreUnknown)
    for _ in range(5):
        reply = asked.call(Create("held", value(1), MINUTE_MS, soon()))
        assert isinstance(reply, Held), "a reply of another question was believed"
        assert reply.value == value(9)
    assert asked.call(Create("free", value(1), MINUTE_MS, soon())) == Granted(recognised=True)


@pytest.mark.parametrize("close", [True, False])
def test_a_create_whose_reply_is_lost_is_recognised_when_sent_again(
    ask: Ask, proxy: Proxy, valkey_url: str, close: bool
) -> None:
    """Applied, reply lost: unknown; the same create again is granted as our own, never held."""
    asked = warm(ask, proxy, valkey_url)
    proxy.cut_after_request(close=close, times=1)
    reply, took = timed(asked, create("k", 1))
    assert isinstance(reply, StoreUnknown)
    assert took <= DEADLINE_MS + GRACE_MS
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted(recognised=True)
    assert isinstance(asked.call(Create("k", value(2), MINUTE_MS, soon())), Held)


def test_a_release_whose_reply_is_lost_can_be_repeated(ask: Ask, proxy: Proxy, valkey_url: str) -> None:
    """Applied, reply lost: unknown; again: not ours any more, and a successor keeps its claim."""
    asked = warm(ask, proxy, valkey_url)
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
    proxy.cut_after_request(times=1)
    reply, _ = timed(asked, lambda until: Release("k", value(1), until))
    assert isinstance(reply, StoreUnknown)
    assert asked.call(Create("k", value(2), MINUTE_MS, soon())) == Granted()
    assert asked.call(Release("k", value(1), soon())) == NotOurs()
    assert asked.call(Release("k", value(2), soon())) == Released()


def test_a_renewal_whose_reply_is_lost_is_unknown_for_each_lease(
    ask: Ask, proxy: Proxy, valkey_url: str
) -> None:
    """One reply for each item, in doubt, and the next batch is answered."""
    asked = warm(ask, proxy, valkey_url)
    items = tuple(Renewal(f"k{at}", value(1), MINUTE_MS) for at in range(3))
    for item in items:
        assert asked.call(Create(item.key, item.value, MINUTE_MS, soon())) == Granted()
    proxy.cut_after_request(times=1)
    replies, took = timed(asked, lambda until: Renew(items, until))
    assert all(isinstance(reply, StoreUnknown) for reply in replies)  # type: ignore[attr-defined]
    assert len(replies) == 3  # type: ignore[arg-type]
    assert took <= DEADLINE_MS + GRACE_MS
    assert asked.call(Renew(items, soon())) == (Renewed(),) * 3


def test_a_restarted_server_costs_no_answer(ask: Ask, proxy: Proxy, valkey_url: str) -> None:
    """Connections that died while idle are noticed before they are used."""
    asked = warm(ask, proxy, valkey_url)
    proxy.drop_connections()
    time.sleep(0.05)  # until the end of the connection has arrived here
    if asked.aio is not None:
        asked.call(Peek("k", soon()))  # the loop has to turn to hear of it
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()


def test_what_answers_in_another_language_is_named(ask: Ask) -> None:
    """An HTTP server at the address is neither a crash nor a contention."""
    import http.server

    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            asked = ask(f"redis://127.0.0.1:{server.server_port}")
            reply = asked.call(Create("k", value(1), MINUTE_MS, soon()))
        finally:
            server.shutdown()
            thread.join()
    assert isinstance(reply, StoreAbsent)


# -- names that never resolve


def test_a_name_that_never_resolves_costs_only_the_deadline(ask: Ask) -> None:
    """Twenty callers at once each leave at their own deadline; they share one look-up."""
    with dns.hanging("store.invalid") as hang:
        asked = ask("redis://store.invalid:6379/0")
        began = now_ms()
        until = began + DEADLINE_MS
        replies = asked.together([Create(f"k{at}", value(at), MINUTE_MS, until) for at in range(20)])
        assert now_ms() - began <= DEADLINE_MS + GRACE_MS
        assert all(isinstance(reply, StoreAbsent) for reply in replies)
        assert all("store.invalid" in reply.reason for reply in replies if isinstance(reply, StoreAbsent))
        assert hang.lookups == 1


CHILD = """
import asyncio, sys, time
from tests.support import dns
dns.hang_from_environment()
from claimant._drive.clock import now_ms
from claimant._model.ops import Create
from claimant.stores import open_store

port = open_store("redis://store.invalid:6379/0").{how}()
request = Create("k", "v", 60_000, now_ms() + 150)

async def main():
    began = time.monotonic()
    print(type(await port.call(request)).__name__)
    return began

if "{how}" == "aio":
    began = asyncio.run(main())
else:
    began = time.monotonic()
    print(type(port.call(request)).__name__)
print(time.monotonic() - began)
"""


@pytest.mark.parametrize("how", ["blocking", "aio"])
def test_a_name_that_never_resolves_keeps_nothing_from_ending(how: str) -> None:
    """`asyncio.run` returns, and the interpreter ends, within a second, while the look-up still hangs."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(how=how)],
        stdout=subprocess.PIPE,
        text=True,
        env=dns.environment("store.invalid"),
    )
    assert child.stdout is not None
    name, took = child.stdout.readline().strip(), float(child.stdout.readline())
    said = time.monotonic()
    child.wait(timeout=20)
    ended = time.monotonic() - said
    child.stdout.close()
    assert name == "StoreAbsent"
    assert took < 1
    assert ended < 1
    assert child.returncode == 0


# -- asyncio alone


def test_a_cancelled_question_takes_no_answer_from_others(proxy: Proxy, valkey_url: str) -> None:
    """Tasks cancelled at any moment, among others that are not: every answer that comes is the right one."""

    async def main() -> None:
        store = open_store(proxy.url(valkey_url))
        port = store.aio()
        for at in range(0, 40, 2):
            assert await port.call(Create(f"k{at}", value(at), MINUTE_MS, soon())) == Granted()
        for turn in range(30):
            tasks = [asyncio.ensure_future(port.call(Peek(f"k{at}", soon()))) for at in range(40)]
            for _ in range(turn % 5):
                await asyncio.sleep(0)
            for at in range(turn % 3, 40, 3):
                tasks[at].cancel()
            replies = await asyncio.gather(*tasks, return_exceptions=True)
            for at, reply in enumerate(replies):
                if isinstance(reply, asyncio.CancelledError):
                    continue
                assert not isinstance(reply, BaseException)
                assert getattr(reply, "value", None) == (value(at) if at % 2 == 0 else None)
        await port.aclose()

    asyncio.run(main())


def test_loops_that_come_and_go_leave_nothing_open(valkey_url: str) -> None:
    """A port used on many loops, none of them told to close it, keeps no socket of a dead loop and warns of none."""
    import gc

    port = open_store(valkey_url).aio()

    async def once() -> None:
        assert await port.call(Peek("k", soon())) == Vacant()

    asyncio.run(once())
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        asyncio.run(once())
        gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_a_loop_that_cannot_watch_sockets_is_served_by_a_thread(valkey_url: str) -> None:
    """Where `add_reader` does not exist (Windows' proactor), the same answers come from the blocking port."""

    class Blind(asyncio.SelectorEventLoop):
        def add_reader(self, *args: object) -> None:
            raise NotImplementedError

    async def main() -> None:
        port = open_store(valkey_url).aio()
        assert await port.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
        assert await port.call(Release("k", value(1), soon())) == Released()
        await port.aclose()

    # The loop's own waker needs a reader too, so that it is blinded only once it runs.
    loop = asyncio.SelectorEventLoop()
    loop.__class__ = Blind
    try:
        loop.run_until_complete(main())
    finally:
        loop.__class__ = asyncio.SelectorEventLoop
        loop.close()
