"""Requests to a ledger with sensible values, for tests."""

from __future__ import annotations

import itertools
from typing import Any

from claimant._model.records import AnswerRow, Finish, RunStart, Skip

SLOT = "2026-11-30T21:00:00Z"
_numbers = itertools.count(1)


def started(job: str = "rebuild-index", slot: str | None = None, **values: Any) -> RunStart:
    """A start with a fresh run id and sensible values; `values` replace them."""
    fresh: dict[str, Any] = {
        "run_id": f"{next(_numbers):032x}",
        "key": "",
        "stake": "rebuild",
        "claim": "kept",
        "holder": "host-1/17",
        "lifetime_ms": 30_000,
        "stall_bound_ms": 3_630_000,
        "max_run_ms": 3_600_000,
        "guarded": False,
    }
    return RunStart(job=job, slot=slot, **fresh | values)


def ended(start: RunStart, kind: str = "ran", *, with_start: bool = True, **values: Any) -> Finish:
    """The end of a run; a success closes the slot."""
    fresh: dict[str, Any] = {
        "claim": start.claim,
        "reason": "",
        "took_ms": 40,
        "close_slot": kind == "ran" and start.slot is not None,
        "start": start if with_start else None,
    }
    return Finish(start.run_id, kind, **fresh | values)


def skipped(job: str = "rebuild-index", kind: str = "held", **values: Any) -> Skip:
    """A start that did not run."""
    fresh: dict[str, Any] = {
        "key": "",
        "slot": None,
        "holder": "host-2/9",
        "remaining_ms": 12_000,
        "reason": "held by host-2/9",
        "skipped_by": "host-1/17",
    }
    return Skip(job, kind=kind, **fresh | values)


def answer(kind: str = "duplicate", hole: str = "deadline passed", **values: Any) -> AnswerRow:
    """A guard's answer."""
    fresh: dict[str, Any] = {"operation": "debit(42)", "joined": False, "lease_checked": "trusted"}
    return AnswerRow(kind=kind, hole=hole, **fresh | values)
