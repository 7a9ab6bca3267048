"""What every lease store must do, as tests: for our stores, the one in memory included, and for those of strangers.

Each property is held for threads and for asyncio alike, and follows the sheet of capabilities that the store
declares. Nothing is skipped: what a store does not do, it fails.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from claimant._drive.clock import now_ms
from claimant._drive.ports import AsyncStorePort, LeaseRow, Store, StorePort
from claimant._model.capability import Capabilities
from claimant._model.names import lease_key
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
    Repair,
    StoreAbsent,
    StoreReply,
    StoreRequest,
    StoreUnknown,
    Vacant,
)
from claimant._model.value import LeaseValue, decode

MINUTE_MS = 60_000
ODD_NAMES = (
    *(
        "a",
        "A",
        "a ",
        " a",
        "a b",
        "a\nb",
        "a\r\nb",
        "a\x00b",
        "a\tb",
        "{a}b",
        "{a}",
        "a:b",
        "a%3Ab",
        "a%b",
        "*",
        "a*",
    ),
    *(
        "[a]",
        "?",
        "\\",
        "'",
        '"',
        "\u00e4",
        "a\u0308",
        "🦊",
        "🦊🦊",
        "a" * 300,
        "a" * 10_000,
        "a" * 9_999 + "b",
        "%",
        "_",
        "|",
    ),
)
"""Names that stores have confused, cut or refused."""


class Asked:
    """One store asked through one runtime. `call` blocks in both."""

    def __init__(self, store: Store, runtime: str) -> None:
        self.store = store
        self.port = store.blocking() if runtime == "blocking" else None
        self.aio = store.aio() if runtime == "asyncio" else None
        self._runner = asyncio.Runner() if runtime == "asyncio" else None

    @property
    def either(self) -> StorePort | AsyncStorePort:
        """The port."""
        return cast("StorePort | AsyncStorePort", self.port or self.aio)

    def call(self, request: StoreRequest) -> Any:
        """Carry one request out."""
        return self.together([request])[0]

    def together(self, requests: Sequence[StoreRequest]) -> list[StoreReply]:
        """Carry the requests out at the same time: each on a thread, or each in a task."""
        if self.port is not None:
            return _on_threads(self.port, requests)
        assert self.aio is not None
        assert self._runner is not None
        return self._runner.run(_in_tasks(self.aio, requests))

    def pause(self) -> None:
        """Close the port; it is used again."""
        if self.port is not None:
            self.port.close()
        if self.aio is not None and self._runner is not None:
            self._runner.run(self.aio.aclose())

    def close(self) -> None:
        """Close the port and its loop."""
        self.pause()
        if self._runner is not None:
            self._runner.close()


def _on_threads(port: StorePort, requests: Sequence[StoreRequest]) -> list[StoreReply]:
    if len(requests) == 1:
        return [port.call(requests[0])]
    replies: list[StoreReply | None] = [None] * len(requests)
    start = threading.Barrier(len(requests))

    def work(at: int) -> None:
        start.wait()
        replies[at] = port.call(requests[at])

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return cast("list[StoreReply]", replies)


async def _in_tasks(port: AsyncStorePort, requests: Sequence[StoreRequest]) -> list[StoreReply]:
    return list(await asyncio.gather(*(port.call(request) for request in requests)))


def value(holder: int, lifetime_ms: int = MINUTE_MS) -> str:
    """The value of one acquisition of a numbered holder."""
    return LeaseValue(f"{holder:032x}", lifetime_ms, f"host:{holder}").encode()


def soon() -> int:
    """A deadline that a healthy store on a busy machine keeps."""
    return now_ms() + 5_000


class StoreSuite:
    """Subclass it in a test module and give it a `store` fixture: a new, empty `Store`.

    A store whose clock can be moved overrides `pass_ms` and `clock_ms`; otherwise real time passes. `late_ms` is how
    long after its end a lease may still be seen, and allows for a busy machine.

    ```python
    class TestMyStore(StoreSuite):
        @pytest.fixture
        def store(self):
            return MyStore("test://")
    ```
    """

    late_ms = 400
    short_ms = 300

    def pass_ms(self, ms: int) -> None:
        """Let `ms` pass on the store's clock."""
        time.sleep(ms / 1_000)

    def clock_ms(self) -> int:
        """A clock that advances with the store's."""
        return now_ms()

    @pytest.fixture
    def store(self) -> Store:
        """A new, empty store."""
        raise NotImplementedError("give the suite a fixture `store` that returns a new, empty Store")

    @pytest.fixture(params=["blocking", "asyncio"])
    def asked(self, request: pytest.FixtureRequest, store: Store) -> Iterator[Asked]:
        """The store, asked through each runtime."""
        asked = Asked(store, request.param)
        yield asked
        asked.close()

    # -- what it says of itself ------------------------------------------------------------------------------------

    def test_it_declares_a_sheet_that_makes_sense(self, asked: Asked) -> None:
        """The sheet is complete, the port shows the store's own, and the address holds no password."""
        sheet = asked.store.capabilities
        assert isinstance(sheet, Capabilities)
        assert asked.either.capabilities == sheet
        assert sheet.name
        assert sheet.deadline_clock
        assert 1 <= sheet.resolution_ms <= sheet.shortest_ms < sheet.longest_ms
        assert 0 <= sheet.early_ms < sheet.shortest_ms
        assert sheet.late_ms >= 0
        assert asked.store.deadline_ms > 0
        assert asked.store.address
        assert not (sheet.host_local and sheet.name == "redis")

    def test_its_ports_see_one_store(self, asked: Asked) -> None:
        """What one port creates, every other port of the store sees held."""
        assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
        port = asked.store.blocking()
        reply = port.call(Create("k", value(2), MINUTE_MS, soon()))
        port.close()
        assert isinstance(reply, Held)

    # -- create ----------------------------------------------------------------------------------------------------

    def test_one_of_many_creates_wins(self, asked: Asked) -> None:
        """Of 32 simultaneous creates of one name exactly one is granted, and the others name its holder."""
        for turn in range(5):
            requests = [Create(f"k{turn}", value(holder), MINUTE_MS, soon()) for holder in range(32)]
            replies = asked.together(requests)
            winners = [at for at, reply in enumerate(replies) if isinstance(reply, Granted)]
            assert len(winners) == 1, replies
            held = [reply for reply in replies if isinstance(reply, Held)]
            assert len(held) == 31, replies
            assert {reply.value for reply in held} == {value(winners[0])}

    def test_a_refused_create_says_who_holds_and_for_how_long(self, asked: Asked) -> None:
        """The reply holds the stored value as it was written, and the time that is left of it."""
        assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
        reply = asked.call(Create("k", value(2, 5_000), 5_000, soon()))
        assert isinstance(reply, Held)
        assert reply.value == value(1)
        assert decode(reply.value) == LeaseValue(f"{1:032x}", MINUTE_MS, "host:1")
        assert reply.remaining_ms is not None
        # The holder's lifetime decides, not the contender's.
        assert MINUTE_MS - 5_000 < reply.remaining_ms <= MINUTE_MS

    def test_a_repeated_create_recognises_itself(self, asked: Asked) -> None:
        """Sent again with the same token it is granted, marked as recognised, and its lifetime is not renewed by that."""
        assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
        self.pass_ms(20)
        assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted(recognised=True)
        reply = asked.call(Peek("k", soon()))
        assert isinstance(reply, Held)
        assert reply.remaining_ms is not None
        assert reply.remaining_ms <= MINUTE_MS - 20 + asked.store.capabilities.resolution_ms

    def test_a_lease_lives_for_its_lifetime(self, asked: Asked) -> None:
        """Started at ten phases, each lease lapses within [lifetime - early, lifetime + late] of its sheet, by itself."""
        sheet = asked.store.capabilities
        lifetime_ms = max(self.short_ms, sheet.resolution_ms)
        names = [f"phase{at}" for at in range(10)]
        began: dict[str, int] = {}
        granted: dict[str, int] = {}
        gone: dict[str, int] = {}
        for name in names:
            began[name] = self.clock_ms()
            assert asked.call(Create(name, value(1), lifetime_ms, soon())) == Granted()
            granted[name] = self.clock_ms()
            self.pass_ms(7)
        while len(gone) < len(names):
            for name in set(names) - gone.keys():
                before = self.clock_ms()
                if isinstance(asked.call(Peek(name, soon())), Held):
                    late_ms = sheet.late_ms + self.late_ms
                    assert before - granted[name] <= lifetime_ms + late_ms, "it outlives its lifetime"
                else:
                    gone[name] = self.clock_ms()
            self.pass_ms(3)
        for name in names:
            # One more for the two whole milliseconds that were read.
            assert gone[name] - began[name] >= lifetime_ms - sheet.early_ms - 1, "it lapsed early"

    def test_a_lapsed_name_can_be_claimed(self, asked: Asked) -> None:
        """When a lease has lapsed, the next create with another token is granted."""
        assert asked.call(Create("k", value(1), self.short_ms, soon())) == Granted()
        self._let_lapse(asked, "k")
        assert asked.call(Create("k", value(2), MINUTE_MS, soon())) == Granted()
        assert asked.call(Release("k", value(1), soon())) == NotOurs()
        assert isinstance(asked.call(Peek("k", soon())), Held)

    def test_odd_names_work_and_never_collide(self, asked: Asked) -> None:
        """Any text names a lease, and distinct names are distinct leases."""
        keys = [lease_key("", name) for name in ODD_NAMES] + [
            lease_key("ns", "a", ["b"]),
            lease_key("", "ns", ["a", "b"]),
        ]
        assert len(set(keys)) == len(keys)
        for holder, key in enumerate(keys):
            assert asked.call(Create(key, value(holder), MINUTE_MS, soon())) == Granted(), key
        for holder, key in enumerate(keys):
            reply = asked.call(Peek(key, soon()))
            assert isinstance(reply, Held), key
            assert reply.value == value(holder), key
        for holder, key in enumerate(keys):
            assert asked.call(Release(key, value(holder), soon())) == Released(), key

    # -- release ---------------------------------------------------------------------------------------------------

    def test_only_the_token_releases(self, asked: Asked) -> None:
        """Another token deletes nothing; the right one deletes once; then there is nothing that is ours."""
        assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
        assert asked.call(Release("k", value(2), soon())) == NotOurs()
        assert isinstance(asked.call(Peek("k", soon())), Held)
        assert asked.call(Release("k", value(1), soon())) == Released()
        assert asked.call(Release("k", value(1), soon())) == NotOurs()
        assert asked.call(Peek("k", soon())) == Vacant()
        assert asked.call(Create("k", value(3), MINUTE_MS, soon())) == Granted()
        assert asked.call(Release("k", value(1), soon())) == NotOurs()
        assert isinstance(asked.call(Peek("k", soon())), Held)

    # -- renew -----------------------------------------------------------------------------------------------------

    def test_a_renewal_gives_a_full_lifetime_and_adds_nothing(self, asked: Asked) -> None:
        """After a renewal, and after a repeated one, the lease has its lifetime left, and no more."""
        assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
        self.pass_ms(40)
        before = self._left(asked, "k")
        assert before <= MINUTE_MS - 40 + asked.store.capabilities.resolution_ms
        for _ in range(3):
            renewal = Renew((Renewal("k", value(1), MINUTE_MS),), soon())
            sent = self.clock_ms()
            assert asked.call(renewal) == (Renewed(),)
            left = self._left(asked, "k")
            assert (
                MINUTE_MS - (self.clock_ms() - sent) - asked.store.capabilities.resolution_ms
                <= left
                <= MINUTE_MS
            )

    def test_only_the_token_renews(self, asked: Asked) -> None:
        """Another token's renewal is refused and moves nothing."""
        assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
        assert asked.call(Renew((Renewal("k", value(2), 10 * MINUTE_MS),), soon())) == (NotOurs(),)
        assert self._left(asked, "k") <= MINUTE_MS

    def test_a_renewal_never_creates(self, asked: Asked) -> None:
        """Renewing a name that nobody holds is refused, and leaves it vacant."""
        assert asked.call(Renew((Renewal("k", value(1), MINUTE_MS),), soon())) == (NotOurs(),)
        assert asked.call(Peek("k", soon())) == Vacant()

    def test_a_renewal_never_resurrects(self, asked: Asked) -> None:
        """Renewing a lease that has lapsed is refused, and leaves it vacant."""
        assert asked.call(Create("k", value(1), self.short_ms, soon())) == Granted()
        self._let_lapse(asked, "k")
        assert asked.call(Renew((Renewal("k", value(1), MINUTE_MS),), soon())) == (NotOurs(),)
        assert asked.call(Peek("k", soon())) == Vacant()

    def test_a_batch_keeps_its_order_and_one_bad_lease_touches_no_other(self, asked: Asked) -> None:
        """Of 500 renewals, each answer stands at its own place, whatever happened to its neighbours."""
        mine = set(range(0, 500, 3))
        others = set(range(1, 500, 3))
        for at in sorted(mine | others):
            holder = 1 if at in mine else 2
            assert asked.call(Create(f"k{at}", value(holder), MINUTE_MS, soon())) == Granted()
        items = tuple(Renewal(f"k{at}", value(1), 2 * MINUTE_MS) for at in range(500))
        replies = asked.call(Renew(items, soon()))
        assert [isinstance(reply, Renewed) for reply in replies] == [at in mine for at in range(500)]
        assert all(isinstance(reply, NotOurs) for at, reply in enumerate(replies) if at not in mine)
        assert self._left(asked, "k0") > MINUTE_MS
        assert self._left(asked, "k1") <= MINUTE_MS
        assert asked.call(Peek("k2", soon())) == Vacant()

    def test_an_empty_batch_is_answered_with_nothing(self, asked: Asked) -> None:
        """No items, no replies, and no waiting for any."""
        began = now_ms()
        assert asked.call(Renew((), soon())) == ()
        assert now_ms() - began < 2_000

    # -- repair, peek, scan ----------------------------------------------------------------------------------------

    def test_a_repair_names_the_value_that_it_repairs(self, asked: Asked) -> None:
        """It sets the lifetime only under that very value; under another, or none, it does nothing."""
        assert asked.call(Create("k", value(1), 10 * MINUTE_MS, soon())) == Granted()
        assert asked.call(Repair("k", value(2), MINUTE_MS, soon())) == NotOurs()
        assert self._left(asked, "k") > MINUTE_MS
        assert asked.call(Repair("k", value(1), MINUTE_MS, soon())) == Renewed()
        assert self._left(asked, "k") <= MINUTE_MS
        assert asked.call(Repair("none", value(1), MINUTE_MS, soon())) == NotOurs()
        assert asked.call(Peek("none", soon())) == Vacant()

    def test_a_peek_changes_nothing(self, asked: Asked) -> None:
        """It shows value and time left, or that there is nothing, as often as one looks."""
        assert asked.call(Peek("k", soon())) == Vacant()
        assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
        first = asked.call(Peek("k", soon()))
        self.pass_ms(20)
        second = asked.call(Peek("k", soon()))
        assert first.value == second.value == value(1)
        assert second.remaining_ms <= first.remaining_ms - 20 + asked.store.capabilities.resolution_ms

    def test_a_scan_lists_the_leases_under_a_prefix(self, asked: Asked) -> None:
        """It shows every live lease whose key starts with the prefix, taken literally, and no other."""
        long = lease_key("ns", "x" * 1_000)
        keys = [lease_key("ns", f"job{at}") for at in range(20)] + [long]
        for holder, key in enumerate(keys):
            assert asked.call(Create(key, value(holder), MINUTE_MS, soon())) == Granted()
        assert asked.call(Create(lease_key("other", "job"), value(1), MINUTE_MS, soon())) == Granted()
        port = asked.store.blocking()
        rows = list(port.scan(lease_key("ns", ""), soon()))
        assert sorted(row.key for row in rows) == sorted(keys)
        assert {type(row) for row in rows} == {LeaseRow}
        assert all(row.remaining_ms and row.remaining_ms <= MINUTE_MS for row in rows)
        assert {row.value for row in rows if row.key == keys[3]} == {value(3)}
        assert [row.key for row in port.scan(long, soon())] == [long]
        assert list(port.scan(long[:50] + "*", soon())) == []
        assert list(port.scan("nothing", soon())) == []
        port.close()

    # -- the port itself -------------------------------------------------------------------------------------------

    def test_a_closed_port_can_be_used_again(self, asked: Asked) -> None:
        """Closing ends connections, not leases."""
        assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
        asked.pause()
        assert isinstance(asked.call(Peek("k", soon())), Held)
        asked.pause()
        asked.pause()
        assert asked.call(Release("k", value(1), soon())) == Released()

    def test_a_deadline_that_has_passed_is_answered_at_once(self, asked: Asked) -> None:
        """The reply comes without waiting, one for each item, and is a known kind."""
        past = now_ms() - 1
        kinds: tuple[type, ...] = (
            Granted,
            Held,
            Vacant,
            Released,
            NotOurs,
            Renewed,
            StoreAbsent,
            StoreUnknown,
        )
        requests: list[StoreRequest] = [
            *(Create("k", value(1), MINUTE_MS, past), Peek("k", past), Release("k", value(1), past)),
            Repair("k", value(1), MINUTE_MS, past),
        ]
        began = now_ms()
        for request in requests:
            assert isinstance(asked.call(request), kinds)
        replies = asked.call(
            Renew((Renewal("a", value(1), MINUTE_MS), Renewal("b", value(1), MINUTE_MS)), past)
        )
        assert len(replies) == 2
        assert now_ms() - began < 1_000

    def test_mixed_work_at_once_is_not_mixed_up(self, asked: Asked) -> None:
        """Of many different requests at the same time, each gets its own answer."""
        for at in range(0, 30, 2):
            assert asked.call(Create(f"k{at}", value(at), MINUTE_MS, soon())) == Granted()
        work: list[StoreRequest] = []
        check: list[Callable[[Any], bool]] = []
        for at in range(30):
            work.append(Peek(f"k{at}", soon()))
            wanted = value(at) if at % 2 == 0 else None
            check.append(lambda reply, wanted=wanted: getattr(reply, "value", None) == wanted)  # type: ignore[misc]
            work.append(Renew((Renewal(f"k{at}", value(at), MINUTE_MS),), soon()))
            kind = Renewed if at % 2 == 0 else NotOurs
            check.append(lambda reply, kind=kind: isinstance(reply[0], kind))  # type: ignore[misc]
        replies = asked.together(work)
        assert all(right(reply) for right, reply in zip(check, replies, strict=True)), replies

    # -- steps -----------------------------------------------------------------------------------------------------

    def _left(self, asked: Asked, key: str) -> int:
        reply = asked.call(Peek(key, soon()))
        assert isinstance(reply, Held)
        assert reply.remaining_ms is not None
        return reply.remaining_ms

    def _let_lapse(self, asked: Asked, key: str) -> None:
        end = self.clock_ms() + self.short_ms + self.late_ms + 5_000
        while isinstance(asked.call(Peek(key, soon())), Held):
            assert self.clock_ms() < end, "it does not lapse"
            self.pass_ms(10)
