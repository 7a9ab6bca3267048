"""Rows for the tests of this folder."""

from __future__ import annotations

from typing import Any

from claimant._drive.ports import LeaseRow
from claimant._model.records import AnswerRow
from claimant._model.rows import JobRow, RunRow, TallyRow
from claimant._model.value import LeaseValue

NOW = 1_796_000_000_000
MINUTE = 60_000


def job(**values: Any) -> JobRow:
    """A job that ran an hour ago with success, then what `values` say."""
    fresh: dict[str, Any] = {
        "job": "rebuild-index",
        "key": "",
        "stake": "rebuild",
        "guarded": False,
        "runs": 3,
        "failed": 0,
        "last_started": NOW - 60 * MINUTE,
        "last_success": NOW - 59 * MINUTE,
        "last_kind": "ran",
        "last_reason": "",
        "running_since": None,
        "running_holder": "",
        "skips_in_row": 0,
        "last_skip": None,
        "last_skip_holder": "",
        "last_skip_reason": "",
        "duplicates": 0,
        "without_claim": 0,
        "unfinished": 0,
        "stall_bound_ms": 61 * MINUTE,
        "last_slot": None,
        "lifetime_ms": 30_000,
        "max_run_ms": 60 * MINUTE,
        "last_ended": NOW - 59 * MINUTE,
    }
    return JobRow(**fresh | values)


def lease(holder: str = "web-1/17", remaining_ms: int | None = 21_000) -> LeaseRow:
    """A lease in the store."""
    return LeaseRow("claimant::rebuild-index", LeaseValue("ab12", 30_000, holder).encode(), remaining_ms)


def run(**values: Any) -> RunRow:
    """A run that ended well."""
    fresh: dict[str, Any] = {
        "run_id": "r1",
        "job": "debit",
        "key": "order=1",
        "slot": None,
        "attempt": 1,
        "stake": "money",
        "guarded": True,
        "holder": "web-1/17",
        "claim_at_start": "kept",
        "started": NOW,
        "ended": NOW + 40,
        "kind": "ran",
        "claim": "kept",
        "reason": "",
        "took_ms": 40,
        "wasted_ms": 0,
        "overlapping": 0,
        "lifetime_ms": 30_000,
        "max_run_ms": 60_000,
        "renewals": 0,
        "worst_gap_ms": 0,
    }
    return RunRow(**fresh | values)


def duplicate(hole: str = "deadline passed") -> AnswerRow:
    """A rejected attempt."""
    return AnswerRow("debit(1)", "duplicate", hole, joined=False, lease_checked="trusted")


def tally(**values: Any) -> TallyRow:
    """A row of the tally."""
    fresh: dict[str, Any] = {
        "job": "debit",
        "stake": "money",
        "hole": "deadline passed",
        "claim": "kept",
        "joined": False,
        "count": 2,
        "wasted_ms": 1_500,
    }
    return TallyRow(**fresh | values)
