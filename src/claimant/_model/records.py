"""What flows ask of the ledger, and the rows that evidence is made from.

Instants are epoch milliseconds on the ledger's own clock, set by the ledger, never by a worker; spans are
milliseconds measured by the worker.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from claimant._model.ops import Request
from claimant._model.record import record


@record
class LedgerRequest(Request):
    """A request to the ledger. `LedgerAbsent` is raised where it does not answer within its deadline."""

    waits: ClassVar[bool] = True


@record
class LedgerNow(LedgerRequest):
    """The ledger's clock. Reply: int, epoch ms."""


@record
class RunStart:
    """A run that is about to start. The ledger adds its own namespace; see `Begin`."""

    run_id: str
    job: str
    key: str
    """The key parts as text ("order_id=42"), or ""."""
    slot: str | None
    stake: str
    claim: str
    holder: str
    lifetime_ms: int
    stall_bound_ms: int
    """After a hang: the longest time until a successor may start. After a crash it is `lifetime_ms`."""
    max_run_ms: int
    guarded: bool
    guard: str = ""
    """How it is guarded, for people: "once in postgresql://h/app", "attested: TEXT", or ""."""
    mode: str = "enforce"
    """"enforce", "observe" or "off"."""
    forced: bool = False
    """Whether an operator ran a slot that may have been closed."""
    schedule: str = ""
    """In words, with the zone of a cron expression; "" without one."""
    would: str = ""
    """What would have been answered instead of this run, had mode="observe" not let it through: "held", "done" or ""."""


@record
class Begin(LedgerRequest):
    """In one transaction: look whether the slot is closed, and if it is not, write that the run started.

    `attempts`: how many failed runs of one slot are allowed (1: the first failure closes it). `close_at_start`:
    mark the slot done now (at-most-once delivery). `force`: start though the slot is closed, as one more attempt.
    Reply: Began | SlotClosed.
    """

    run: RunStart
    attempts: int = 1
    close_at_start: bool = False
    force: bool = False


@record
class Began:
    """The run is recorded. `overlapping`: other unfinished runs of the same job and key that are younger than their max_run."""

    attempt: int = 1
    overlapping: int = 0


@record
class SlotClosed:
    """The slot needs no run. `completed` is False where its attempts were used up by failures. `result` is JSON or None."""

    run_id: str
    completed: bool
    result: str | None = None
    reason: str = ""


@record
class SlotState(LedgerRequest):
    """Look whether a slot is closed, without starting a run. Reply: SlotClosed | None."""

    job: str
    key: str
    slot: str
    attempts: int = 1


@record
class AnswerRow:
    """A guard's answer in a run, copied to the ledger. `hole` says what made a duplicate possible, where known.

    `kind`: an answer's kind, or "would_reject" for a second effect that mode="observe" let through.
    `hole`: "deadline passed", "claim lost", "store absent", "redelivered" (the claim was kept), "leases off", or "".
    `joined`: the answer was given inside the caller's own transaction, which may still roll back.
    """

    operation: str
    kind: str
    hole: str
    joined: bool
    lease_checked: str
    """What the lease said right before the effect: "trusted", "not trusted", "absent", "off". It decided nothing."""


@record
class Finish(LedgerRequest):
    """The run ended. Closes the slot if `close_slot`, in the same transaction, durably. Reply: None.

    `took_ms` is measured by the worker. `kind` is an outcome kind, or "failed" for a body that raised.
    `renewals`: how many succeeded; `worst_gap_ms`: the longest time between two accepted renewals (or the claim).
    """

    run_id: str
    kind: str
    claim: str
    reason: str
    took_ms: int
    close_slot: bool
    result: str | None = None
    answers: tuple[AnswerRow, ...] = ()
    renewals: int = 0
    worst_gap_ms: int = 0
    start: RunStart | None = None
    """The start again, for a ledger that was absent when the run began: written if it is missing."""


@record
class CloseSlot(LedgerRequest):
    """Close the slot of a run that ended `uncommitted`: its transaction has committed since. Reply: None."""

    run_id: str


@record
class Skip(LedgerRequest):
    """A start that did not run. `kind` is "held", "absent" or "unknown". Reply: int, skips in a row since the last run."""

    job: str
    key: str
    slot: str | None
    kind: str
    holder: str
    remaining_ms: int | None
    reason: str
    skipped_by: str


LedgerReply: TypeAlias = int | Began | SlotClosed | None
