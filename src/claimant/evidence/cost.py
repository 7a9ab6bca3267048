"""What a period cost: runs without a claim, duplicates rejected, work wasted, starts skipped.

Every figure is counted from the ledger's rows; none is estimated. What the ledger never heard of (a process that
died with what it had kept for an absent ledger) is in none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from claimant._drive.ports import LedgerPort
from claimant._model.outcome import AnswerKind, Claim
from claimant._model.rows import RunRow, SkipRow


@dataclass(frozen=True, slots=True)
class OutageCost:
    """The cost of a period. Spans are milliseconds; `skipped` is exact to the minute at the period's edges.

    `without_claim`: runs that began without one, though leases were on. `duplicates_with_claim` and `duplicates_without_claim`: attempts
    that a guard rejected in runs whose claim was kept to the end, and in all others. `wasted_ms`: the work of runs
    all of whose attempts were rejected. `overlapping_unguarded`: unguarded runs that began beside an unfinished one,
    and `overlapping_ms` their work. `unfinished`: runs that never ended.
    """

    runs: int = 0
    without_claim: int = 0
    duplicates_with_claim: int = 0
    duplicates_without_claim: int = 0
    wasted_ms: int = 0
    overlapping_unguarded: int = 0
    overlapping_ms: int = 0
    unfinished: int = 0
    skipped: int = 0

    @property
    def duplicates(self) -> int:
        """All rejected attempts."""
        return self.duplicates_with_claim + self.duplicates_without_claim

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self) | {"duplicates": self.duplicates}


def cost_of(runs: Iterable[RunRow], skips: Iterable[SkipRow] = ()) -> OutageCost:
    """The cost of these runs and skips."""
    total = without = kept = other = wasted = overlapping = overlapping_ms = unfinished = 0
    for run in runs:
        total += 1
        without += run.claim_at_start not in (Claim.KEPT, Claim.OFF)
        rejected = sum(answer.kind == AnswerKind.DUPLICATE for answer in run.answers)
        if (run.claim or run.claim_at_start) == Claim.KEPT:
            kept += rejected
        else:
            other += rejected
        wasted += run.wasted_ms
        unfinished += run.ended is None
        if run.overlapping and not run.guarded:
            overlapping += 1
            overlapping_ms += run.took_ms
    skipped = sum(skip.count for skip in skips)
    return OutageCost(total, without, kept, other, wasted, overlapping, overlapping_ms, unfinished, skipped)


def outage_cost(
    ledger: LedgerPort, *, since: int, until: int | None = None, job: str | None = None
) -> OutageCost:
    """The cost of what started at `since` or later and before `until`, both epoch ms on the ledger's clock.

    Raises `LedgerAbsent` where the ledger does not answer.
    """
    runs = ledger.runs(since=since, job=job)
    skips = ledger.skips(since=since, job=job)
    return cost_of(
        (run for run in runs if until is None or run.started < until),
        (skip for skip in skips if until is None or skip.first < until),
    )
