"""Waiting for a name: by the holder's remaining time, with full jitter and a growing pause, up to a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from claimant._flows.acquire import Claimed, Got, HeldBy, Unsure, acquire
from claimant._model.holding import cleanup_of
from claimant._model.ops import Flow, Hand, Jitter, Now, SleepUntil
from claimant._model.policy import Wanted

FIRST_PAUSE_MS = 50
LONGEST_PAUSE_MS = 1_000

T = TypeVar("T")


def acquire_within(
    wanted: Wanted,
    wait_ms: int | None,
    *,
    absent_wait_ms: int = 0,
    until_done: Callable[[], Flow[T | None]] | None = None,
) -> Flow[Claimed | T]:
    """Claim `wanted`, trying again while somebody holds it, for `wait_ms` (None: without limit).

    `absent_wait_ms` is the same for an absent store. `until_done` is asked before each pause; what it returns, if
    not None, ends the wait. Returns the last answer where the limit has passed.
    """
    if wait_ms == 0 and not absent_wait_ms:
        return acquire(wanted)
    return _waiting(wanted, wait_ms, absent_wait_ms, until_done)


def _waiting(
    wanted: Wanted, wait_ms: int | None, absent_wait_ms: int, until_done: Callable[[], Flow[T | None]] | None
) -> Flow[Claimed | T]:
    started: int = yield Now()
    pause_ms = FIRST_PAUSE_MS
    # A wait without a limit, for a slot to be done, is not in a hurry: it must only not outlast what the holder has left.
    longest_ms = LONGEST_PAUSE_MS if wait_ms is not None else max(LONGEST_PAUSE_MS, wanted.lifetime_ms // 3)
    doubts: dict[str, Unsure] = {}
    while True:
        claimed = yield from acquire(wanted)
        if isinstance(claimed, Got):
            return claimed
        if isinstance(claimed, HeldBy):
            # An earlier create of this very wait, whose answer was lost, may be what holds: doubt, not contention.
            claimed = doubts.get(claimed.value, claimed)
        held = isinstance(claimed, HeldBy)
        limit_ms = wait_ms if held else absent_wait_ms
        now: int = yield Now()
        if limit_ms is not None and now >= started + limit_ms:
            return claimed
        if isinstance(claimed, Unsure):
            doubts[claimed.tenure.value] = claimed
            yield Hand(cleanup_of(claimed.tenure))
        if until_done is not None:
            done = yield from until_done()
            if done is not None:
                return done
        most_ms = pause_ms
        if isinstance(claimed, HeldBy) and claimed.remaining_ms is not None:
            most_ms = min(pause_ms, max(claimed.remaining_ms, 1))
        nap: int = yield Jitter(most_ms)
        wake_ms = now + max(nap, 1)
        yield SleepUntil(wake_ms if limit_ms is None else min(wake_ms, started + limit_ms))
        pause_ms = min(pause_ms * 2, longest_ms)
