"""What a declaration decides about a start: the policies, and the plan that one call makes of them."""

from __future__ import annotations

from enum import StrEnum

from claimant._model.record import record
from claimant._model.slots import Schedule
from claimant._model.stake import Stake


@record
class Wanted:
    """What to claim. `deadline_ms` spans all sends; `max_run_ms` is where renewal will stop.

    `early_ms`, `late_ms`: by how much the store may end a lifetime earlier or later than asked.
    """

    name: str
    key: str
    label: str
    lifetime_ms: int
    max_run_ms: int
    deadline_ms: int
    stall_after_ms: int | None = None
    early_ms: int = 0
    late_ms: int = 0


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


class Mode(StrEnum):
    """How much of what is declared is enforced."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    """Claims and guard rows are written, nothing is stopped, and what would have been is counted."""
    OFF = "off"
    """No leases. Guards and the ledger work as always."""


@record
class Plan:
    """What a declaration fixed, and what this call adds to it (`lease_key`, `key`, `slot`, `force`). Times are ms.

    `slot`: the slot that a trigger named; None: the schedule's, if there is one. `force`: run it though it is closed.
    `guard`: where a second attempt is rejected, for people.
    """

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
    schedule: Schedule | None = None
    stall_after_ms: int | None = None
    attempts: int = 1
    at_most_once: bool = False
    slot: str | None = None
    force: bool = False
    mode: Mode = Mode.ENFORCE
    guard: str = ""
    attested: bool = False
    """Whether the caller attests the guard: the work uses it out of our sight."""
    early_ms: int = 0
    late_ms: int = 0
    """By how much the store may end a lifetime earlier or later than asked."""

    @property
    def slotted(self) -> bool:
        """Whether this start is for a slot."""
        return self.schedule is not None or self.slot is not None

    @property
    def stall_bound_ms(self) -> int:
        """After a hang, the longest time until another worker may start; after a crash it is the lifetime."""
        return (self.stall_after_ms or self.max_run_ms) + self.lifetime_ms + self.late_ms

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
            self.early_ms,
            self.late_ms,
        )
