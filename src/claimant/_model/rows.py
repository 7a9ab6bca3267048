"""What a ledger shows of its record: one row type for jobs, runs, skips and rejected attempts.

Not with the requests, because a start reads none of these.
"""

from __future__ import annotations

from dataclasses import dataclass

from claimant._model.records import AnswerRow


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
