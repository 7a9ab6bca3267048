"""The keeper's rest: leases that come and go wake nobody, and none that stays is forgotten for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from claimant import Claimant
from claimant._drive import keeper as module
from claimant._drive.clock import now_ms
from claimant._drive.keeper import Keeper
from claimant._flows.acquire import tenure_of
from claimant._model.holding import Tenure
from claimant._model.policy import Wanted
from tests.support.servers import wait

Make = Callable[..., Claimant]


def keeper_of(claims: Claimant) -> Keeper:
    """Its keeper, awake once and at rest again."""
    with claims.hold("first", stake="scan", max_run="1m"):
        pass
    keeper = claims._wiring._keeper
    assert keeper is not None
    wait(lambda: keeper._wake_ms is not None, "the keeper to rest")
    return keeper


def counting(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows each time that somebody wakes the keeper."""
    woken: list[None] = []
    wake = keeper._changed.notify_all

    def counted() -> None:
        woken.append(None)
        wake()

    monkeypatch.setattr(keeper._changed, "notify_all", counted)
    return woken


def tenure(lifetime_ms: int = 30_000, max_run_ms: int = 60_000) -> Tenure:
    wanted = Wanted("n", "k", "host:1", lifetime_ms, max_run_ms, 250)
    return tenure_of(wanted, "a" * 32, now_ms())


@pytest.mark.parametrize("beside", [False, True])
def test_leases_that_come_and_go_wake_nobody(
    made: Make, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """However many, and whatever else is held: none of them is due before the keeper looks by itself, and it finds none of them waiting."""
    claims = made("memory:")
    if beside:
        claims.hold("beside", stake="scan", max_run="9h", lifetime="3h").__enter__()
    keeper = keeper_of(claims)
    wait(lambda: len(keeper._duties.held) == beside, "what is held to be taken")
    woken = counting(keeper, monkeypatch)
    for _ in range(3 * module.CROWDED):
        with claims.hold("index", stake="scan", max_run="1m"):
            pass
        assert len(keeper._inbox) <= 1
    assert not woken


def test_a_lease_that_is_due_sooner_wakes_the_keeper(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short lease is renewed in time, though the keeper rests by the long ones before it."""
    claims = made("memory:")
    keeper = keeper_of(claims)
    woken = counting(keeper, monkeypatch)
    hold = claims.hold("short", stake="scan", max_run="1m", lifetime="600ms")
    with hold as lease:
        assert woken
        wait(lambda: hold._tenure is not None and hold._tenure.renewals >= 4, "renewals")
        assert lease.cause is None


def test_a_run_that_ends_before_its_first_renewal_wakes_the_keeper(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a short `max_run` is told when it comes."""
    claims = made("memory:")
    keeper = keeper_of(claims)
    woken = counting(keeper, monkeypatch)
    with claims.hold("brief", stake="scan", max_run="50ms") as lease:
        assert woken
        wait(lambda: lease.cause == "over", "the end")
        wait(lambda: not keeper._duties.held, "the keeper to let go")


def test_a_keeper_that_nobody_needs_sleeps_for_good_and_can_be_woken(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its watch it waits without an end; the next lease is taken all the same."""
    monkeypatch.setattr(module, "IDLE_MS", 20)
    claims = made("memory:")
    with claims.hold("first", stake="scan", max_run="1m"):
        pass
    keeper = claims._wiring._keeper
    assert keeper is not None
    wait(lambda: keeper._wake_ms is None and not keeper._inbox and not keeper._duties.heap, "deep sleep")
    with claims.hold("second", stake="scan", max_run="1m"):
        wait(lambda: len(keeper._duties.held) == 1, "the lease to be taken")


def test_a_lease_dropped_by_mistake_is_put_back_and_looked_at(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another holder's lease may arrive just as a released one is dropped: it is not lost, and the keeper is woken."""
    claims = made("memory:")
    keeper = keeper_of(claims)
    woken = counting(keeper, monkeypatch)
    gone, alive, mine = tenure(), tenure(), tenure()
    gone.released = True

    class Raced(deque[Any]):
        def pop(self) -> Any:  # type: ignore[override]
            if alive not in self and not self.raced:
                self.raced = True
                self.append(alive)  # another thread, between the look and the pop
            return super().pop()

        raced = False

    keeper._inbox = Raced([gone])
    keeper.hand(mine)
    assert woken
    wait(lambda: set(keeper._duties.held) == {alive, mine}, "both to be taken")
    alive.released = mine.released = True
