"""What one run's body does that its flow must know afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from claimant._model.holding import Tenure
from claimant._model.outcome import Answer, Claim
from claimant._model.policy import Plan

if TYPE_CHECKING:
    from claimant._model.records import AnswerRow


@dataclass(slots=True)
class Journal:
    """What the body does that the flow must know: written by `Run`, read after the body ended."""

    run_id: str
    slot: str | None
    tenure: Tenure | None
    claim: Claim
    plan: Plan
    unclaimed: str = ""
    """Why the run began without a claim that it can believe; "" where it has one."""
    answers: list[Answer[Any]] = field(default_factory=list)
    last: dict[bytes, Answer[Any]] = field(default_factory=dict)
    """The last answer of each operation, by its identity: labels are for people, and two may read the same."""
    rows: list[AnswerRow] = field(default_factory=list)
    still_open: list[Callable[[], bool]] = field(default_factory=list)
    """One question per joined transaction: is the caller's transaction with this effect still open?"""
