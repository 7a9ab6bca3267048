"""An external party that handles duplicates by key, for a while: what a guard outside of our database can rest on, and its checker.

It keeps each key's answer for `retention_ms` after the first request, and replays it, errors too; after that the same key is
a new request, as real providers document. The flow that speaks to it comes with its own issue; the seam and S2 are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from claimant.sim.world import World


class Said(StrEnum):
    """What the provider answers."""

    DONE = "done"
    DECLINED = "declined"
    """An error that it keeps and replays: this request has had no effect, and never will under this key."""
    MISMATCH = "mismatch"
    """The key was used for another request."""
    NOTHING = "nothing"
    """A look-up found no such reference, yet."""


@dataclass(slots=True)
class Kept:
    """What is kept for a key: the request, its answer, and when it was first seen (true ms)."""

    body: str
    said: Said
    first_ms: int


@dataclass(slots=True)
class SimProvider:
    """One provider. `lag_ms`: how far its look-ups are behind. `declines`: how likely a new request is declined."""

    world: World
    retention_ms: int
    lag_ms: int = 0
    declines: float = 0.0
    effects: dict[str, list[int]] = field(default_factory=dict)
    """When each operation took effect, by its reference."""
    _kept: dict[str, Kept] = field(default_factory=dict)

    def send(
        self,
        key: str,
        reference: str,
        body: str,
        tell: Callable[[Said], None],
        *,
        hold_ms: int = 0,
        lost: bool = False,
    ) -> None:
        """A request that arrives after `hold_ms`, however long its sender waits; its answer may be `lost`."""
        self.world.at(self.world.now + hold_ms, self._arrive, key, reference, body, tell, lost)

    def _arrive(self, key: str, reference: str, body: str, tell: Callable[[Said], None], lost: bool) -> None:  # noqa: FBT001
        said = self.carry_out(key, reference, body)
        self.world.note("provider", said.value, reference)
        if not lost:
            self.world.at(self.world.now + 1, tell, said)

    def carry_out(self, key: str, reference: str, body: str) -> Said:
        """One request, now."""
        kept = self._kept.get(key)
        if kept is not None and self.world.now - kept.first_ms < self.retention_ms:
            self.world.count("provider: replayed")
            return kept.said if kept.body == body else Said.MISMATCH
        said = Said.DECLINED if self.declines and self.world.chance() < self.declines else Said.DONE
        self._kept[key] = Kept(body, said, self.world.now)
        if said is Said.DONE:
            self.effects.setdefault(reference, []).append(self.world.now)
        return said

    def look_up(self, reference: str) -> Said:
        """What is known of a reference; what is younger than the lag is not there yet, which is no proof that it is not done."""
        known = [at for at in self.effects.get(reference, ()) if at + self.lag_ms <= self.world.now]
        return Said.DONE if known else Said.NOTHING


class Window:
    """S2: at most one effect for each operation, under the condition that is stated; a schedule beyond it must have been reported.

    The condition: the part of the retention that no attempt uses, (1 - `fraction`) x retention, is longer than the longest pause of a
    sender and the longest hold of the network together. `at_risk` is what the library reports.
    """

    def __init__(self, world: World, provider: SimProvider, fraction: float) -> None:
        self.world = world
        self.provider = provider
        self.fraction = fraction
        self.longest_pause_ms = 0
        self.longest_hold_ms = 0
        self.reported = False

    def paused(self, ms: int) -> None:
        """A sender was paused for so long."""
        self.longest_pause_ms = max(self.longest_pause_ms, ms)

    def held(self, ms: int) -> None:
        """The network held a request for so long."""
        self.longest_hold_ms = max(self.longest_hold_ms, ms)

    def at_risk(self) -> None:
        """The library reported "window at risk"."""
        self.reported = True
        self.world.count("provider: window at risk")

    def final(self) -> None:
        """After everything."""
        margin = (1 - self.fraction) * self.provider.retention_ms
        inside = margin > self.longest_pause_ms + self.longest_hold_ms
        for reference, times in self.provider.effects.items():
            if len(times) > 1 and (inside or not self.reported):
                condition = "inside the stated condition" if inside else "and no window was reported at risk"
                self.world.broken(
                    "S2", f"{reference} took effect {len(times)} times, at {times}, {condition}"
                )
