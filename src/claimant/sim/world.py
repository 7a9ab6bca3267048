"""Virtual time: a queue of events, one source of chance, a trace, and the hash that two runs of a seed must share.

Nothing here knows about leases. It never reads a real clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from heapq import heappop, heappush
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold: which, when (true ms), and what was seen."""

    invariant: str
    at_ms: int
    text: str


class World:
    """The clock, the queue and the record of one schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311 - schedules, not secrets
        self.chance = self.rng.random
        self.now = 0
        self.trace: list[tuple[int, str, str, Any]] = []
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.violations: list[Violation] = []
        self.events = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._seq = 0

    def at(self, when_ms: int, act: Callable[..., None], *args: Any) -> None:
        """Have `act(*args)` called at `when_ms`; equal times in order of asking."""
        self._seq += 1
        heappush(self._queue, (when_ms, self._seq, act, args))

    def below(self, limit: int) -> int:
        """A whole number from 0 to `limit` - 1."""
        return int(self.chance() * limit)

    def note(self, who: str, what: str, about: Any = None) -> None:
        """Write one line of the trace: who does or learns what, and the request or reply it is about."""
        self.trace.append((self.now, who, what, about))

    def count(self, branch: str, times: int = 1) -> None:
        """One more visit to a branch."""
        self.counters[branch] += times

    def broken(self, invariant: str, text: str) -> None:
        """An invariant did not hold."""
        self.violations.append(Violation(invariant, self.now, text))
        self.note("CHECK", f"{invariant} VIOLATED", text)

    def run(self, *, most_events: int) -> bool:
        """Let time pass until nothing is left to happen; False if that takes more than `most_events`."""
        queue, events = self._queue, 0
        while queue:
            events += 1
            if events > most_events:
                break
            when, _, act, args = heappop(queue)
            self.now = max(self.now, when)
            act(*args)
        self.events = events
        return not queue


def event_hash(trace: list[tuple[int, str, str, Any]]) -> str:
    """What two runs of one seed must share: every event's time, place and kind, in order."""
    lines = "\n".join(f"{at_ms} {who} {what}" for at_ms, who, what, _ in trace)
    return sha256(lines.encode()).hexdigest()[:16]


def story(trace: list[tuple[int, str, str, Any]]) -> str:
    """A trace for people, one line an event."""
    return "\n".join(
        f"{at_ms:>7} ms  {who:<14} {what:<24} {'' if about is None else about}".rstrip()
        for at_ms, who, what, about in trace
    )
