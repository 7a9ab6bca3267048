"""What the four ways must have come to, and the sentence for the one that did harm.

A function of what was seen: the guard's answers, and the values of the caller's `effect`. It starts nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto
from numbers import Number
from typing import Any, NoReturn

from claimant import Refused
from claimant._model.outcome import AnswerKind, Kind
from claimant.testing.duplicates import InARow, Way

WELL = frozenset({AnswerKind.APPLIED, AnswerKind.DUPLICATE, AnswerKind.IN_FLIGHT})
"""Answers that do no harm. In flight: of two at the same time one may be told to come back, and has done nothing."""
ENDED = frozenset({Kind.RAN, Kind.UNCOMMITTED})
IN_THE_GUARD = (
    "Do all of it in the function that run.once() calls, on the connection that this function is given; what cannot be done "
    "there (a call, a mail, a file) is not guarded by run.once()"
)


class Kept(Enum):
    """What keeps a duplicate of the job from doing harm."""

    BY_ONCE = auto()
    """Its guard, which answers."""
    OUT_OF_SIGHT = auto()
    """A guard that is attested."""
    BY_ITSELF = auto()
    """Nothing: the result must be the same after any number of runs."""


class Verdict:
    """Of one job. Raises `AssertionError` from `of` at the first way that did harm."""

    def __init__(self, name: str, kept: Kept) -> None:
        self._name = name
        self._kept = kept
        self._one: Any = None
        """What one run changes the effect's value by, or makes it."""

    def of(self, way: Way, before: Any, after: Any, *, looked: bool) -> None:
        """Judge a way that has ended. `looked`: there is an `effect`, which gave `before` and `after`."""
        left = [attempt.outcome for attempt in way.attempts if attempt.outcome is not None]
        if any(outcome.kind in (Kind.HELD, Kind.ABSENT) for outcome in left):
            self._harm(
                way,
                f"this could not be tried, because a start was turned away ({', '.join(str(each.kind) for each in left)})",
            )
        if self._kept is Kept.BY_ONCE:
            self._answers(way)
        if looked:
            self._values(way, before, after)

    def _values(self, way: Way, before: Any, after: Any) -> None:
        same = self._kept is Kept.BY_ITSELF
        if isinstance(way, InARow):
            self._one = way.after_one if same else self._change(before, way.after_one)
            if not same and self._one == 0:
                self._harm(
                    way,
                    f"effect= gave {before!r} before the first run and after it. It must be a number that this job's effect "
                    "changes, read anew from where the effect lands",
                )
        found = after if same else self._change(before, after)
        if not _equal(found, self._one):
            if same:
                self._harm(
                    way,
                    f"the effect was {found!r} afterwards, and {self._one!r} after one run. The job has no guard, so its result "
                    "must be overwritten and the same every time. Make it so, or declare guard=once(db) and use run.once()",
                )
            self._harm(
                way,
                f"it changed the effect by {found!r}, and one run changes it by {self._one!r}. {IN_THE_GUARD}",
            )

    def _change(self, before: Any, after: Any) -> Any:
        for value in (before, after):
            if isinstance(value, bool) or not isinstance(value, Number):
                raise Refused(
                    "CLM074",
                    f"{self._name}: effect= gave {value!r}. Where a job has a guard it must be a number that each effect "
                    "changes, such as a balance or a count of rows: only a number shows whether it happened once or twice",
                    name=self._name,
                )
        return after - before

    def _answers(self, way: Way) -> None:
        used = [attempt.answers for attempt in way.attempts if attempt.answers]
        if not used:
            self._harm(
                way,
                f"{len(way.attempts)} starts, and none of them used the declared guard. Do the effect with "
                "run.once(conn, effect)",
            )
        for answer in (answer for answers in used for answer in answers):
            if answer.kind not in WELL:
                self._harm(
                    way,
                    f"{answer.operation} was answered {answer.kind.value!r} ({answer.reason}), so it is not known to have "
                    "happened once",
                )
        whole = [
            {answer.operation for answer in attempt.answers}
            for attempt in way.attempts
            if attempt.answers and attempt.outcome is not None and attempt.outcome.kind in ENDED
        ]
        named = [{answer.operation for answer in answers} for answers in used]
        # One that was told to come back may have left a batch in its middle.
        all_of_it = whole[0] if whole else max(named, key=len)
        if any(each != all_of_it for each in whole) or any(not each <= all_of_it for each in named):
            self._harm(
                way,
                f"the starts named different operations ({_some(set().union(*named))}), so none is a duplicate of another. "
                "The identity must come from the business key, and be the same for every attempt: nothing random, no clock",
            )
        applied = Counter(
            answer.operation for answers in used for answer in answers if answer.kind is AnswerKind.APPLIED
        )
        for operation in sorted(all_of_it):
            if applied[operation] > 1:
                self._harm(
                    way,
                    f"{operation} was applied {applied[operation]} times. Its row is not kept: does something delete it, or do "
                    "the attempts use databases of their own?",
                )
            if applied[operation] == 0:
                self._harm(
                    way,
                    f"{operation} was never applied: it had happened before, so nothing was tried. Give a database in which it "
                    "has not, or fresh=, which gives each way arguments that were never used",
                )

    def _harm(self, way: Way, what: str) -> NoReturn:
        raise AssertionError(f"{self._name}: {way.name}: {what}")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=1e-9)
    return bool(one == other)


def _some(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:3])
