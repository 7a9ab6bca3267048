"""What the guard `once` does between the begin and the end of a transaction: the same when owned and when joined.

Nothing here commits, rolls a transaction back, or decides what an error means for the call.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn

from claimant._flows.kept import kept
from claimant._model.errors import Refused
from claimant._model.guarding import (
    Attempt,
    Classify,
    Effect,
    Execute,
    InTransaction,
    Kept,
    NotReplayed,
    ReleaseSavepoint,
    Reply,
    Savepoint,
    Statement,
    TransactionEnded,
    Trouble,
)
from claimant._model.ops import Flow, Jitter, Now, SleepUntil
from claimant._model.outcome import Answer, AnswerKind

LOOKS = 3
"""How often a guard row may vanish between the insert and the look before we stop trying."""
LONGEST_PAUSE_MS = 50
WOULD_REJECT = "would_reject"
"""What an attempt is counted as that was let through only because nothing is stopped."""


class Stage(Enum):
    """How far a try has come; it decides what an error means."""

    OPEN = "open"
    WAIT = "wait"
    """Waiting for the write lock, inside a caller's transaction that has not begun in the database."""
    GUARD = "guard"
    EFFECT = "effect"
    CHECK = "check"
    COMMIT = "commit"
    COUNT = "count"


@dataclass(slots=True)
class Progress:
    """Where one call stands. `doubt`: the result of an effect whose COMMIT was sent and never acknowledged."""

    stage: Stage = Stage.OPEN
    savepoint: bool = False
    answer: Answer[Any] | None = None
    result: Any = None
    kept: Kept = field(default_factory=Kept)
    doubt: str = ""
    doubt_ms: int = 0
    tries: int = 0
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Existing:
    """The guard row of an earlier attempt."""

    fingerprint: bytes
    attempt: str
    result: str | None
    note: str


def inside(plan: Attempt, progress: Progress) -> Flow[Answer[Any]]:
    """Claim the operation and do the effect, or find out who did; behind a savepoint where that is needed."""
    progress.stage = Stage.GUARD
    # Joined: so that a failure leaves the caller's work alone. SQLite: so that a commit in the effect shows.
    guarded_by_savepoint = plan.joined or not plan.traits.transaction_ids
    if guarded_by_savepoint:
        yield Savepoint()
        progress.savepoint = True
    yield from plan.verify()
    claimed = yield from _claimed(plan)
    if not isinstance(claimed, Existing):
        answer = yield from _first(plan, progress, claimed)
    elif plan.observe and claimed.attempt != plan.run_id:
        answer = yield from _let_through(plan, progress, claimed)
    else:
        answer = _judged(plan, progress, claimed)
    if guarded_by_savepoint:
        try:
            yield ReleaseSavepoint()
        except TransactionEnded:
            yield from _ended(plan)
        progress.savepoint = False
    return answer


def _claimed(plan: Attempt) -> Flow[Existing | str]:
    """Insert the guard row under a bounded wait. The mark of the transaction for the first attempt."""
    if plan.violated is None:
        return (yield from _inserted(plan))
    # The caller's own constraint is the guard: the effect itself is the first to know.
    return (yield Execute(Statement.BEGUN)).rows[0][0] if plan.traits.transaction_ids else ""


def _inserted(plan: Attempt) -> Flow[Existing | str]:
    claim = _claim_of(plan)
    for _ in range(LOOKS):
        reply: Reply = yield from with_tables(plan, claim)
        mark = reply.rows[0][0] if reply.rows else None
        if mark is not None or (reply.count == 1 and not reply.rows):
            return str(mark or "")
        # A statement of its own: under READ COMMITTED it sees what the insert has waited for.
        found = yield from look(plan)
        if found is not None:
            return found
    raise RuntimeError(
        f"the guard row of {plan.operation.label} appeared and vanished {LOOKS} times; is it being pruned too early?"
    )


def _claim_of(plan: Attempt) -> Execute:
    """The insert, with the bounds of its wait in the same statement where the database has such bounds."""
    operation = plan.operation
    row = (operation.key, operation.label, operation.fingerprint, plan.run_id, plan.job)
    if not plan.traits.lock_bounds:
        return Execute(Statement.CLAIM, row)
    if plan.joined:
        # In the caller's transaction the bound is for this one wait, and a stricter one of theirs stays.
        return Execute(Statement.CLAIM_WITHIN, (bounds(plan)[0], bounds(plan)[0], *row))
    return Execute(Statement.CLAIM_BOUND, (*bounds(plan), *row))


def bounds(plan: Attempt) -> tuple[str, str]:
    """How long a lock may be waited for, and how long our transaction may be idle."""
    return f"{plan.wait_ms}ms", f"{plan.longest_ms}ms"


def look(plan: Attempt) -> Flow[Existing | None]:
    """The guard row, if there is one to be seen."""
    reply: Reply = yield Execute(Statement.LOOK, (plan.operation.key,))
    for fingerprint, attempt, result, note in reply.rows:
        return Existing(bytes(fingerprint), attempt, result, note or "")
    return None


def _judged(plan: Attempt, progress: Progress, row: Existing) -> Answer[Any]:
    label, ours = plan.operation.label, plan.operation.fingerprint
    if row.attempt == plan.run_id:
        if progress.doubt:
            return Answer(AnswerKind.APPLIED, label, progress.result, reason=progress.kept.note)
        return Answer(AnswerKind.APPLIED, label, _decoded(row), replayed=True, reason=row.note)
    if ours and row.fingerprint and ours != row.fingerprint:
        return Answer(
            AnswerKind.MISMATCH,
            label,
            reason="this operation was done before with other values; it was not done again. Find out which values are right: "
            "either the identity is too coarse, or somebody changed the request",
        )
    return Answer(AnswerKind.DUPLICATE, label, _decoded(row), replayed=not row.note, reason=row.note)


def _let_through(plan: Attempt, progress: Progress, row: Existing) -> Flow[Answer[Any]]:
    """Do the effect though the guard row is there, because nothing is stopped yet, and count what would have been."""
    label = plan.operation.label
    if progress.doubt:
        # Its own COMMIT was never acknowledged, and nothing but the first attempt leaves a row to be recognised by.
        return Answer(
            AnswerKind.UNKNOWN,
            label,
            reason=f"this repeated effect was let through, and its COMMIT was never acknowledged ({progress.doubt})",
        )
    would = _judged(plan, progress, row).kind.value
    if not plan.joined:
        yield from with_tables(plan, rejection(plan, WOULD_REJECT))
    progress.stage = Stage.EFFECT
    mark = (yield Execute(Statement.BEGUN)).rows[0][0] if plan.traits.transaction_ids else ""
    result = yield from _done_here(plan, progress, mark)
    return Answer(
        AnswerKind.APPLIED,
        label,
        result,
        reason=f"done again, because mode='observe' stops nothing: it would have been rejected as {would}",
        would_reject=True,
    )


def rejection(plan: Attempt, cause: str) -> Execute:
    """The row that counts one rejected attempt, once."""
    operation = plan.operation
    return Execute(
        Statement.REJECT,
        (operation.key, plan.run_id, cause, plan.job, operation.label, plan.stake, plan.hole),
    )


def _decoded(row: Existing) -> Any:
    return None if row.result is None else json.loads(row.result)


def _first(plan: Attempt, progress: Progress, mark: str) -> Flow[Answer[Any]]:
    progress.stage = Stage.EFFECT
    if plan.violated is None:
        # The row could be inserted, so the COMMIT that was in doubt did not happen.
        if progress.doubt and not plan.replays:
            raise NotReplayed
        progress.doubt = ""
    result = yield from _done_here(plan, progress, mark)
    progress.result, progress.kept = result, kept(result)
    if plan.violated is None and (progress.kept.text is not None or progress.kept.note):
        keep = (progress.kept.text, progress.kept.note, plan.operation.key, plan.run_id)
        yield Execute(Statement.KEEP, keep)
    return Answer(AnswerKind.APPLIED, plan.operation.label, result, reason=progress.kept.note)


def _done_here(plan: Attempt, progress: Progress, mark: str) -> Flow[Any]:
    """The effect's result; refused where it has ended the transaction itself."""
    result = yield Effect()
    progress.stage = Stage.CHECK
    if plan.traits.transaction_ids and not (progress.savepoint and plan.release_tells):
        [(still,)] = (yield Execute(Statement.STILL)).rows
        if still != mark:
            yield from _ended(plan)
    return result


def _ended(plan: Attempt) -> Flow[NoReturn]:
    """Say what it means that the effect committed or rolled back by itself."""
    how = "ended the transaction itself"
    durable = "What it wrote before that may be durable without a guard"
    if plan.violated is None:
        row: Existing | None = None
        seen = True
        try:
            row = yield from look(plan)
        except Exception as error:
            # A rollback takes tables made in the same transaction away as well.
            seen = (yield Classify(error)).trouble is Trouble.MISSING_TABLE
        if seen:
            if row is not None and row.attempt == plan.run_id:
                how = "committed the transaction itself"
                durable = "The guard row and what was written before that are durable, so the operation will not be done again"
            else:
                how = "rolled the transaction back itself"
                durable = "The guard row is gone with what was written before that, so the operation can be done again"
    raise Refused(
        "CLM047",
        f"{plan.operation.label}: the effect {how}. {durable}; what it did afterwards is not guarded. Remove commit(), "
        "rollback(), `with connection:` and executescript() from the effect: run.once ends the transaction, or the caller does",
        name=plan.job,
    )


def with_tables(plan: Attempt, request: Execute) -> Flow[Reply]:
    """Carry `request` out; where the guard's tables may be made at first use and are missing, make them first."""
    try:
        reply: Reply = yield request
    except Exception as error:
        if not plan.traits.makes_tables or (yield Classify(error)).trouble is not Trouble.MISSING_TABLE:
            raise
    else:
        return reply
    yield Execute(Statement.MAKE_GUARD)
    yield Execute(Statement.MAKE_REJECTION)
    again: Reply = yield request
    return again


def take_write_lock(wait_ms: int) -> Flow[None]:
    """Begin by taking SQLite's write lock, asking again for `wait_ms` while somebody has it.

    The connection's own patience is set aside meanwhile: it would block an event loop, and could not be bounded.
    """
    if (yield InTransaction()):
        return
    [(patience,)] = (yield Execute(Statement.PATIENCE)).rows
    yield Execute("PRAGMA busy_timeout=0")
    try:
        yield from _locked(wait_ms)
    except GeneratorExit:
        raise
    except BaseException as error:
        try:
            yield Execute(f"PRAGMA busy_timeout={int(patience)}")
        except Exception:
            # What ended the wait, a cancellation perhaps, is what the caller must hear.
            raise error from None
        raise
    yield Execute(f"PRAGMA busy_timeout={int(patience)}")


def _locked(wait_ms: int) -> Flow[None]:
    started: int = yield Now()
    most_ms = 1
    while True:
        try:
            yield Execute(Statement.IMMEDIATE)
            return
        except Exception as error:
            trouble = (yield Classify(error)).trouble
            now: int = yield Now()
            if trouble is not Trouble.LOCK_TIMEOUT or now >= started + wait_ms:
                raise
        nap: int = yield Jitter(most_ms)
        yield SleepUntil(min(now + 1 + nap, started + wait_ms))
        most_ms = min(most_ms * 2, LONGEST_PAUSE_MS)
