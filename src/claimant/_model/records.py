"""What flows ask of the ledger, and the rows that evidence is made from.

Instants are epoch milliseconds on the ledger's own clock, set by the ledger, never by a worker; spans are
milliseconds measured by the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from claimant._model.ops import Request


@dataclass(frozen=True, slots=True)
class LedgerRequest(Request):
    """A request to the ledger. `LedgerAbsent` is raised where it does not answer within its deadline."""

    waits: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class LedgerNow(LedgerRequest):
    """The ledger's clock. Reply: int, epoch ms."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Began:
    """The run is recorded. `overlapping`: other unfinished runs of the same job and key that are younger than their max_run."""

    attempt: int = 1
    overlapping: int = 0


@dataclass(frozen=True, slots=True)
class SlotClosed:
    """The slot needs no run. `completed` is False where its attempts were used up by failures. `result` is JSON or None."""

    run_id: str
    completed: bool
    result: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SlotState(LedgerRequest):
    """Look whether a slot is closed, without starting a run. Reply: SlotClosed | None."""

    job: str
    key: str
    slot: str
    attempts: int = 1


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class CloseSlot(LedgerRequest):
    """Close the slot of a run that ended `uncommitted`: its transaction has committed since. Reply: None."""

    run_id: str


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job (and key) as `status` sees it. Instants are epoch ms on the ledger's clock, or None."""

    job: str
    key: str
    stake: str
    guarded: bool
    runs: int
    failed: int
    last_started: int | None
    last_success: int | None
    last_kind: str
    last_reason: str
    running_since: int | None
    running_holder: str
    skips_in_row: int
    last_skip: int | None
    last_skip_holder: str
    last_skip_reason: str
    duplicates: int
    without_claim: int
    unfinished: int
    stall_bound_ms: int
    last_slot: str | None
    lifetime_ms: int = 0
    max_run_ms: int = 0
    last_ended: int | None = None
    skips_since: int | None = None
    """When the skips in a row began."""
    skips_total: int = 0
    overlaps: int = 0
    """Unguarded runs that began while another had not ended."""
    unfinished_since: int | None = None
    """When the newest of the `unfinished` runs started: it never wrote that it ended."""
    unfinished_holder: str = ""
    namespace: str = ""
    guard: str = ""
    """How it is guarded, for people."""
    mode: str = "enforce"
    """Of the last start: "enforce", "observe" or "off"."""
    schedule: str = ""
    would_skip: int = 0
    """Starts that were let through in observe mode, and would have been skipped."""
    would_reject: int = 0
    """Effects that were let through in observe mode, and would have been rejected."""
    forced: int = 0
    """Runs that an operator had run a slot that may have been closed."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. `claim_at_start` is what it began with, `claim` what was left of it ("" for a run without an end).

    `wasted_ms`: its work, if every one of its answers was a duplicate. `overlapping`: others unfinished at its start.
    `forced`: an operator had it run a slot that may have been closed. `would`: see `RunStart`.
    """

    run_id: str
    job: str
    key: str
    slot: str | None
    attempt: int
    stake: str
    guarded: bool
    holder: str
    claim_at_start: str
    started: int
    ended: int | None
    kind: str
    claim: str
    reason: str
    took_ms: int
    wasted_ms: int
    overlapping: int
    lifetime_ms: int
    max_run_ms: int
    renewals: int
    worst_gap_ms: int
    mode: str = "enforce"
    forced: bool = False
    would: str = ""
    answers: tuple[AnswerRow, ...] = ()


@dataclass(frozen=True, slots=True)
class SkipRow:
    """The skips of one kind of one job and key within one minute of the last day; `holder` and the rest are the last one's."""

    job: str
    key: str
    kind: str
    count: int
    first: int
    last: int
    holder: str
    remaining_ms: int | None
    slot: str | None
    reason: str
    skipped_by: str


@dataclass(frozen=True, slots=True)
class TallyRow:
    """Rejected attempts by job and hole, with the work they wasted. `joined` ones may have rolled back."""

    job: str
    stake: str
    hole: str
    claim: str
    joined: bool
    count: int
    wasted_ms: int
    namespace: str = ""
