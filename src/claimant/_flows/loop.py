"""Every slot of a periodic job, until told to stop.

A slot that did not end well is tried again, with a growing pause, until it is closed or the next one is due: what a
slot allows is `run`'s business. A body that fails ends nothing but its own run. Being told to stop is an exception
thrown in where the loop sleeps, so a body that is running ends first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from claimant._model.errors import LedgerAbsent, Refused
from claimant._model.events import Event
from claimant._model.ops import Emit, Flow, HostEpoch, Jitter, Now, SleepUntil
from claimant._model.outcome import Kind, Outcome
from claimant._model.records import LedgerNow
from claimant._model.slots import Schedule

FIRST_PAUSE_MS = 1_000
LONGEST_PAUSE_MS = 30_000
LONGEST_NAP_MS = 60_000
"""A sleeper looks at the clocks again this often: the ledger's may step, and a machine may be suspended."""
SPREAD_MS = 250
"""Within which workers that wait for the same slot start, so that they do not all ask at once."""
SETTLED = frozenset({Kind.RAN, Kind.DONE, Kind.UNCOMMITTED})


def loop(name: str, schedule: Schedule, start: Callable[[], Flow[Outcome[Any]]]) -> Flow[NoReturn]:
    """Run each slot of `schedule` with `start()`, for ever. A `Refused` at the first start is raised: nothing works yet."""
    # A loop that is told before it begins begins nothing.
    begun: int = yield Now()
    yield SleepUntil(begun)
    pause_ms = FIRST_PAUSE_MS
    first = True
    while True:
        slot = schedule.latest((yield from _epoch()))
        settled = False
        flow = start()
        try:
            outcome = yield from flow
            settled = outcome.kind in SETTLED
        except Refused as error:
            yield from _failed(name, error, ends=first)
            if first:
                raise
        except Exception as error:
            yield from _failed(name, error)
        first = False
        gap_ms = schedule.following(slot) - slot
        now_epoch: int = yield from _epoch()
        now: int = yield Now()
        next_ms = now + slot + gap_ms - now_epoch
        if settled:
            pause_ms = FIRST_PAUSE_MS
            spread: int = yield Jitter(min(SPREAD_MS, gap_ms // 20))
            yield from _sleep(schedule, slot + gap_ms, next_ms + spread)
        else:
            nap: int = yield Jitter(pause_ms // 2)
            yield SleepUntil(max(now, min(now + pause_ms // 2 + nap, next_ms)))
            pause_ms = min(pause_ms * 2, LONGEST_PAUSE_MS)


def _sleep(schedule: Schedule, until_epoch: int, until_ms: int) -> Flow[None]:
    """Sleep until the slot of `until_epoch` is due on the ledger's clock; `until_ms` is when that seems to be on ours."""
    while True:
        now: int = yield Now()
        if until_ms - now <= LONGEST_NAP_MS:
            # Asked even where the slot is due already: here is where a loop is told to stop.
            yield SleepUntil(max(until_ms, now))
            return
        yield SleepUntil(now + LONGEST_NAP_MS)
        now_epoch: int = yield from _epoch()
        if schedule.latest(now_epoch) >= until_epoch:
            return
        now = yield Now()
        until_ms = max(now, now + until_epoch - now_epoch)


def _epoch() -> Flow[int]:
    """The ledger's clock; the host's while the ledger is away."""
    now_epoch: int
    try:
        now_epoch = yield LedgerNow()
    except LedgerAbsent:
        now_epoch = yield HostEpoch()
    return now_epoch


def _failed(name: str, error: Exception, *, ends: bool = False) -> Flow[None]:
    """Tell of it, also where it is raised: a loop is often a task that nobody awaits before the program ends."""
    what = (
        "is refused, and ends it: nothing works yet"
        if ends
        else "failed; it is recorded, and the loop goes on"
    )
    text = f"a start in the loop {what} ({type(error).__name__}: {error})"
    yield Emit(Event("loop.failed", name, text, "error", error=error))
