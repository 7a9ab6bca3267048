"""What a job start came to: two axes, what happened to the work and what happened to the claim.

Held, absent, unknown and done are four different outcomes from here to the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, NoReturn, TypeVar

from claimant._model.errors import NotDone, Refused

T = TypeVar("T")


class Kind(StrEnum):
    """What happened to the work."""

    RAN = "ran"
    """The body returned."""
    DONE = "done"
    """The slot was closed before: the work was completed (or its attempts are used up: see `reason`)."""
    HELD = "held"
    """Somebody else holds the claim; the body did not run."""
    ABSENT = "absent"
    """The store or the ledger is absent and the policy says not to go on; the body did not run."""
    UNKNOWN = "unknown"
    """An operation's last answer is in flight or unknown; the slot stays open."""
    STOPPED = "stopped"
    """The body was stopped, or an operation was refused or mismatched; the slot stays open."""
    UNCOMMITTED = "uncommitted"
    """The body returned, and the caller's own transaction with the effect is still open."""


class Claim(StrEnum):
    """What happened to the claim while the work ran."""

    KEPT = "kept"
    LOST = "lost"
    """The store answered that it was gone."""
    ABSENT = "absent"
    """There was none, or the trust window ended without an answer."""
    UNKNOWN = "unknown"
    """The create was sent and never answered."""
    STALLED = "stalled"
    """No progress for `stall_after`: renewal stopped."""
    OVER = "over"
    """The run passed `max_run`: renewal stopped."""
    OFF = "off"
    """Leases are off (`mode="off"`), or somebody else held the claim and `mode="observe"` stops nothing."""
    NONE = "none"
    """The work did not start, so there was nothing to claim for."""


class AnswerKind(StrEnum):
    """What a guard said of one attempt at an operation."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    IN_FLIGHT = "in_flight"
    MISMATCH = "mismatch"
    UNKNOWN = "unknown"
    REFUSED = "refused"


RETRY_IN_MS = 1_000
"""The back-off that `NotDone.retry_in` starts from; a holder with less time left makes it shorter."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A guard's answer. `replayed`: the value is the first attempt's, kept with the guard row.

    `would_reject`: the effect was done again, because `mode="observe"` stops nothing; the guard would have rejected it.
    """

    kind: AnswerKind
    operation: str
    result: T | None = None
    replayed: bool = False
    reason: str = ""
    would_reject: bool = False

    @property
    def value(self) -> T | None:
        """The effect's result, first or replayed. Raises `NotDone` or `Refused` where the effect is not known to stand."""
        match self.kind:
            case AnswerKind.APPLIED | AnswerKind.DUPLICATE:
                return self.result
            case AnswerKind.MISMATCH:
                raise Refused("CLM043", f"{self.operation}: {self.reason}", name=self.operation)
            case _:
                raise NotDone(
                    f"{self.operation}: {self.kind.value}: {self.reason}",
                    retry_in=RETRY_IN_MS / 1000,
                    reason=f"{self.kind.value}: {self.reason}",
                    name=self.operation,
                )

    def __bool__(self) -> NoReturn:
        raise TypeError("an Answer has no truth value: look at .kind, or take .value")

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; the result is left out, because it need not be."""
        return {
            "kind": self.kind.value,
            "operation": self.operation,
            "replayed": self.replayed,
            "reason": self.reason,
            "would_reject": self.would_reject,
        }


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What one call of a job came to. It has no truth value: look at `.kind`, or take `.value`.

    `retry_in` is in seconds and None where nothing is to be retried. `slot` is the UTC instant in ISO 8601.
    `details` holds the holder, the time it has left, and the like, as plain values.
    """

    kind: Kind
    claim: Claim
    name: str
    reason: str = ""
    result: T | None = None
    slot: str | None = None
    run_id: str | None = None
    retry_in: float | None = None
    answers: tuple[Answer[Any], ...] = ()
    completed: bool = False
    """Whether the work is known to be completed: by this run, or, with kind "done", by another rather than given up."""
    details: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)

    @property
    def value(self) -> T | None:
        """The result of completed work; raises `NotDone` (try later) or `Refused` (a mismatch) for anything else.

        For "done" it is the result kept with the slot, or None where none was kept.
        """
        if self.kind in (Kind.RAN, Kind.UNCOMMITTED) or (self.kind is Kind.DONE and self.completed):
            return self.result
        for answer in self.answers:
            if answer.kind is AnswerKind.MISMATCH:
                return answer.value
        raise NotDone(
            f"{self.name}: {self.kind.value}: {self.reason}",
            retry_in=RETRY_IN_MS / 1000 if self.retry_in is None else self.retry_in,
            reason=f"{self.kind.value}: {self.reason}",
            name=self.name,
        )

    def __bool__(self) -> NoReturn:
        raise TypeError("an Outcome has no truth value: look at .kind, or take .value")

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: everything but the result, which need not be."""
        return {
            "kind": self.kind.value,
            "claim": self.claim.value,
            "name": self.name,
            "reason": self.reason,
            "slot": self.slot,
            "run_id": self.run_id,
            "retry_in": self.retry_in,
            "completed": self.completed,
            "answers": [answer.as_dict() for answer in self.answers],
            "details": dict(self.details),
        }
