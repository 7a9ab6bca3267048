"""What a declaration decides about a start: the policies, and the plan that one call makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from claimant._model.stake import Stake


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to claim. `deadline_ms` spans all sends; `max_run_ms` is where renewal will stop."""

    name: str
    key: str
    label: str
    lifetime_ms: int
    max_run_ms: int
    deadline_ms: int
    stall_after_ms: int | None = None


class Absent(StrEnum):
    """What a start does while the store is absent."""

    PROCEED = "proceed"
    SKIP = "skip"
    WAIT = "wait"


class Held(StrEnum):
    """What a start does while somebody else holds the claim."""

    SKIP = "skip"
    WAIT = "wait"
    STANDBY = "standby"


class OnLoss(StrEnum):
    """What a running body is told once its claim may no longer be trusted."""

    GO_ON = "go-on"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a declaration fixed, and what this call adds to it (`lease_key`, `key`). Times are ms."""

    name: str
    lease_key: str
    key: str
    label: str
    stake: Stake
    guarded: bool
    lifetime_ms: int
    max_run_ms: int
    deadline_ms: int
    on_loss: OnLoss
    held: Held = Held.SKIP
    held_wait_ms: int = 0
    absent: Absent = Absent.PROCEED
    absent_wait_ms: int = 0
    every_ms: int | None = None
    stall_after_ms: int | None = None
    attempts: int = 1
    at_most_once: bool = False

    @property
    def stall_bound_ms(self) -> int:
        """After a hang, the longest time until another worker may start; after a crash it is the lifetime."""
        return (self.stall_after_ms or self.max_run_ms) + self.lifetime_ms

    def wanted(self) -> Wanted:
        """What to claim."""
        return Wanted(
            self.name,
            self.lease_key,
            self.label,
            self.lifetime_ms,
            self.max_run_ms,
            self.deadline_ms,
            self.stall_after_ms,
        )
