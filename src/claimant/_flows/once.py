"""The guard `once`: the operation's identity is committed in the same transaction as its effect, or not at all.

The guard row comes first, the effect second, so a duplicate waits before it does any work. One algorithm, two
faces: *owned* opens, commits and re-runs the transaction; *joined* works inside the caller's, behind a savepoint,
and never commits. Nothing is ever deleted on an exception: it rolls back with the effect.
"""

from __future__ import annotations

from typing import Any, NoReturn

from claimant._flows.once_inside import (
    WOULD_REJECT,
    Progress,
    Stage,
    bounds,
    inside,
    rejection,
    take_write_lock,
    with_tables,
)
from claimant._model.durations import in_words
from claimant._model.errors import Refused
from claimant._model.events import Event, Level
from claimant._model.guarding import (
    Attempt,
    BeginOwned,
    Classify,
    Close,
    Commit,
    Diagnosis,
    Execute,
    NotReplayed,
    Open,
    Rollback,
    RollbackTo,
    Statement,
    Trouble,
)
from claimant._model.ops import Emit, Flow, Jitter, Now, SleepUntil
from claimant._model.outcome import Answer, AnswerKind

TRIES = 8
"""How often one call runs its whole transaction, at most."""
LOSSES = 3
"""How often one call replaces a lost connection while nothing is in doubt."""
RESOLVE_MS = 10_000
"""How long a COMMIT without an acknowledgement is asked about before the answer is unknown."""
RERUN = frozenset({Trouble.SERIALIZATION, Trouble.DEADLOCK, Trouble.STALE})
COUNTED = frozenset({AnswerKind.DUPLICATE, AnswerKind.MISMATCH, AnswerKind.IN_FLIGHT})


def once(plan: Attempt) -> Flow[Answer[Any]]:
    """Attempt the operation once and say what came of it. The effect's own exceptions are raised after the rollback."""
    answer: Answer[Any] = yield from (_joined(plan) if plan.joined else _owned(plan))
    kind = WOULD_REJECT if answer.would_reject else answer.kind.value
    level: Level = "debug" if kind == AnswerKind.APPLIED else "warning"
    text = f"{answer.operation}: {kind}" + (f": {answer.reason}" if answer.reason else "")
    fields: dict[str, str | int | float | bool | None] = {
        "operation": answer.operation,
        "run_id": plan.run_id,
    }
    fields |= {"joined": plan.joined, "stake": plan.stake, "hole": plan.hole}
    yield Emit(Event(f"guard.{kind}", plan.job, text, level, fields))
    return answer


# -- owned: the transaction is ours --------------------------------------------------------------------------------


def _owned(plan: Attempt) -> Flow[Answer[Any]]:
    progress = Progress()
    while True:
        progress.tries += 1
        progress.stage = Stage.OPEN
        try:
            return (yield from _transaction(plan, progress))
        except GeneratorExit:
            raise
        except BaseException as error:
            answer = yield from _after(plan, progress, error)
            if answer is not None:
                return answer


def _transaction(plan: Attempt, progress: Progress) -> Flow[Answer[Any]]:
    """One whole transaction, from the connection to the COMMIT."""
    yield Open()
    progress.stage = Stage.GUARD
    yield BeginOwned()
    if plan.traits.one_writer:
        yield from take_write_lock(plan.wait_ms)
    if plan.traits.lock_bounds and plan.violated is not None:
        # The guard row brings its own bounds.
        yield Execute(Statement.BOUNDS, bounds(plan))
    answer = yield from inside(plan, progress)
    if progress.stage is Stage.CHECK:
        progress.stage = Stage.COMMIT
    else:
        # Whatever happens from here on, the answer is known: nothing but its count is at stake.
        progress.stage, progress.answer = Stage.COUNT, answer
        if answer.kind in COUNTED:
            yield from with_tables(plan, rejection(plan, answer.kind.value))
    yield from _commit(plan)
    yield Close()
    return answer


def _commit(plan: Attempt) -> Flow[None]:
    """COMMIT; where readers keep SQLite from it, again: the transaction is still whole."""
    started: int = yield Now()
    while True:
        try:
            yield Commit()
            return
        except Exception as error:
            trouble = (yield Classify(error)).trouble
            now: int = yield Now()
            if (
                trouble is not Trouble.LOCK_TIMEOUT
                or not plan.traits.one_writer
                or now >= started + plan.wait_ms
            ):
                raise
        nap: int = yield Jitter(20)
        yield SleepUntil(now + 1 + nap)


def _after(plan: Attempt, progress: Progress, error: BaseException) -> Flow[Answer[Any] | None]:
    """What an error makes of the call: an answer, another try (None), or the error itself, raised."""
    found: Diagnosis = yield Classify(error)
    stage = progress.stage
    if stage is not Stage.OPEN:
        yield from _give_up(broken=found.trouble is Trouble.LOST)
    progress.savepoint = False
    if not isinstance(error, Exception):
        raise error
    if isinstance(error, NotReplayed):
        return _refused(
            plan,
            f"the connection was lost at the COMMIT ({progress.doubt}), which did not happen; the effect is not repeated on another "
            "connection, because what was set on yours (search_path, role, settings) is not set there",
        )
    if stage is Stage.COUNT:
        return (yield from _uncounted(plan, progress, found))
    if stage is Stage.OPEN:
        return (yield from _no_connection(plan, progress, found, error))
    if found.trouble in RERUN:
        return (yield from _run_again(plan, progress, found, error))
    if progress.doubt and stage is Stage.GUARD and found.trouble is not Trouble.LOST:
        return _unresolved(plan, progress, found)
    if isinstance(error, Refused) and stage is not Stage.EFFECT:
        raise error
    if plan.violated is not None and stage in (Stage.EFFECT, Stage.COMMIT) and plan.violated(found):
        return (yield from _own_constraint(plan, progress))
    match stage, found.trouble:
        case Stage.COMMIT, Trouble.LOST | Trouble.UNSURE:
            progress.doubt = found.text
            progress.doubt_ms = yield Now()
            # A constraint of the caller's own can only be asked by doing the effect again.
            return None if plan.replays or plan.violated is None else _unresolved(plan, progress, found)
        case Stage.COMMIT, Trouble.LOCK_TIMEOUT if plan.traits.one_writer:
            return _refused(
                plan, f"readers kept the database from committing for {in_words(plan.wait_ms)} ({found.text})"
            )
        case Stage.EFFECT, Trouble.LOST:
            if plan.reopens and plan.replays and progress.losses < LOSSES:
                progress.losses += 1
                return None
            if progress.doubt:
                return _unresolved(plan, progress, found)
            raise error
        case Stage.EFFECT, _:
            raise error
        case _, Trouble.LOST:
            if plan.reopens and (plan.replays or progress.doubt) and progress.losses < LOSSES:
                progress.losses += 1
                return None
            return _unresolved(plan, progress, found) if progress.doubt else _unanswered(plan, found)
        case Stage.GUARD, Trouble.LOCK_TIMEOUT:
            yield from _count_apart(plan, AnswerKind.IN_FLIGHT)
            return in_flight(plan, found)
        case Stage.GUARD, Trouble.READ_ONLY:
            return _refused(
                plan, f"the guard's database takes no writes here; is it a standby? ({found.text})"
            )
    _raise_noted(plan, error, found, stage)


def _give_up(*, broken: bool) -> Flow[None]:
    """Roll back and give the connection back. What fails here has no say: the transaction ends with its connection."""
    try:
        yield Rollback()
    except GeneratorExit:
        raise
    except Exception:
        broken = True
    except BaseException:
        # Cancelled once more: what was taken is given back all the same, and dropped, because it may be in a transaction.
        yield Close(broken=True)
        raise
    yield Close(broken)


def _no_connection(
    plan: Attempt, progress: Progress, found: Diagnosis, error: Exception
) -> Flow[Answer[Any] | None]:
    if not found.driver:
        raise error
    if not progress.doubt:
        return _unanswered(plan, found)
    now: int = yield Now()
    if not plan.reopens or now >= progress.doubt_ms + RESOLVE_MS:
        return _unresolved(plan, progress, found)
    nap: int = yield Jitter(250)
    yield SleepUntil(now + 50 + nap)
    return None


def _run_again(
    plan: Attempt, progress: Progress, found: Diagnosis, error: Exception
) -> Flow[Answer[Any] | None]:
    """40001, a deadlock: the whole transaction, with a new snapshot, after a pause that keeps two from meeting again."""
    if progress.tries >= TRIES:
        if progress.doubt:
            return _unresolved(plan, progress, found)
        error.add_note(
            f"claimant: {plan.operation.label} was run {progress.tries} times and rolled back each time; it did not happen"
        )
        raise error
    now: int = yield Now()
    nap: int = yield Jitter(5 << progress.tries)
    yield SleepUntil(now + nap)
    return None


def _own_constraint(plan: Attempt, progress: Progress) -> Flow[Answer[Any]]:
    """The caller's own constraint rejected the effect: the whole transaction is rolled back, then counted by itself."""
    label = plan.operation.label
    if progress.doubt:
        return Answer(
            AnswerKind.DUPLICATE,
            label,
            replayed=True,
            reason="the effect stands, once; whether it is this attempt's own, whose COMMIT was never acknowledged, a constraint "
            "cannot tell. Not counted as rejected",
        )
    yield from _count_apart(plan, AnswerKind.DUPLICATE)
    return Answer(AnswerKind.DUPLICATE, label, replayed=True, reason="rejected by the declared constraint")


def _count_apart(plan: Attempt, kind: AnswerKind) -> Flow[None]:
    """Count a rejection in a transaction of its own, after the one that met it was rolled back."""
    tries = 0
    while True:
        tries += 1
        found = yield from _counted(plan, kind)
        if found is None:
            return
        again = found.trouble in RERUN or (found.trouble is Trouble.LOST and plan.reopens)
        if not again or tries > LOSSES:
            yield from _tell_uncounted(plan, kind, found)
            return
        now: int = yield Now()
        nap: int = yield Jitter(5 << tries)
        yield SleepUntil(now + nap)


def _counted(plan: Attempt, kind: AnswerKind) -> Flow[Diagnosis | None]:
    """Count it once; what went wrong, or None. Safe to repeat: an attempt is rejected for one cause once."""
    opened = False
    try:
        yield Open()
        opened = True
        yield BeginOwned()
        if plan.traits.one_writer:
            # In flight: the lock has been waited for already.
            yield from take_write_lock(0 if kind is AnswerKind.IN_FLIGHT else plan.wait_ms)
        yield from with_tables(plan, rejection(plan, kind.value))
        yield from _commit(plan)
        yield Close()
    except GeneratorExit:
        raise
    except BaseException as error:
        found: Diagnosis = yield Classify(error)
        if opened:
            yield from _give_up(broken=found.trouble is Trouble.LOST)
        if not isinstance(error, Exception):
            raise
        return found
    return None


def _uncounted(plan: Attempt, progress: Progress, found: Diagnosis) -> Flow[Answer[Any] | None]:
    """The answer stands; its count was rolled back. Try the whole again where that may help: it counts one attempt once."""
    answer = progress.answer
    if found.trouble in RERUN and progress.tries < TRIES:
        now: int = yield Now()
        nap: int = yield Jitter(5 << progress.tries)
        yield SleepUntil(now + nap)
        return None
    if found.trouble is Trouble.LOST and plan.reopens and progress.losses < LOSSES:
        progress.losses += 1
        return None
    if answer is not None and answer.kind in COUNTED:
        yield from _tell_uncounted(plan, answer.kind, found)
    return answer


def _tell_uncounted(plan: Attempt, kind: AnswerKind, found: Diagnosis) -> Flow[None]:
    text = f"{plan.operation.label}: {kind.value}, rejected but not counted in the guard's database: {found.text}"
    yield Emit(
        Event(
            "guard.uncounted",
            plan.job,
            text,
            "error",
            {"operation": plan.operation.label, "run_id": plan.run_id},
        )
    )


# -- joined: the transaction is the caller's -----------------------------------------------------------------------


def _joined(plan: Attempt) -> Flow[Answer[Any]]:
    progress = Progress()
    try:
        yield Open()
        progress.stage = Stage.WAIT
        if plan.traits.one_writer:
            yield from take_write_lock(plan.wait_ms)
        return (yield from inside(plan, progress))
    except GeneratorExit:
        raise
    except BaseException as error:
        found: Diagnosis = yield Classify(error)
        undone = yield from _undone(progress, found)
        if isinstance(error, Exception) and undone and not isinstance(error, Refused):
            if progress.stage in (Stage.WAIT, Stage.GUARD) and found.trouble is Trouble.LOCK_TIMEOUT:
                return in_flight(plan, found)
            if progress.stage is Stage.EFFECT and plan.violated is not None and plan.violated(found):
                return Answer(
                    AnswerKind.DUPLICATE,
                    plan.operation.label,
                    replayed=True,
                    reason="rejected by the declared constraint",
                )
        if found.trouble in RERUN:
            error.add_note(
                f"claimant: {plan.operation.label} was attempted inside your transaction, which must be rolled back and run "
                "again as a whole; the next attempt will be answered correctly"
            )
            raise
        if (
            isinstance(error, Refused)
            or progress.stage in (Stage.OPEN, Stage.EFFECT)
            or not isinstance(error, Exception)
        ):
            raise
        _raise_noted(plan, error, found, progress.stage)


def _undone(progress: Progress, found: Diagnosis) -> Flow[bool]:
    """Roll back to the savepoint. Whether the caller's transaction is usable afterwards."""
    if not progress.savepoint:
        # What failed without a savepoint, an ORM's own flush for instance, is the caller's.
        return progress.stage is Stage.WAIT
    try:
        yield RollbackTo()
    except Exception:
        return False
    return found.trouble is not Trouble.LOST


# -- answers and errors --------------------------------------------------------------------------------------------


def in_flight(plan: Attempt, found: Diagnosis) -> Answer[Any]:
    """Somebody holds what this attempt needs, and did not end in time."""
    who = (
        "somebody kept the database locked" if plan.traits.one_writer else "another attempt is still running"
    )
    reason = f"{who} for longer than this one may wait ({found.text}); nothing was done"
    return Answer(AnswerKind.IN_FLIGHT, plan.operation.label, reason=reason)


def _refused(plan: Attempt, reason: str) -> Answer[Any]:
    return Answer(AnswerKind.REFUSED, plan.operation.label, reason=f"{reason}: the effect did not happen")


def _unanswered(plan: Attempt, found: Diagnosis) -> Answer[Any]:
    return _refused(plan, f"the guard's database did not answer ({found.text})")


def _unresolved(plan: Attempt, progress: Progress, found: Diagnosis) -> Answer[Any]:
    return Answer(
        AnswerKind.UNKNOWN,
        plan.operation.label,
        reason=f"the COMMIT was sent and never acknowledged ({progress.doubt}), and the database could not be asked again "
        f"({found.text}). A row of attempt {plan.run_id} in claimant_guard says that it happened; no such row, that it did not",
    )


def _raise_noted(plan: Attempt, error: Exception, found: Diagnosis, stage: Stage) -> NoReturn:
    if stage is Stage.GUARD and found.trouble is Trouble.MISSING_TABLE:
        raise missing_tables(plan.job) from error
    if found.trouble is Trouble.VOID:
        error.add_note(
            f"claimant: the effect of {plan.operation.label} met a database error and went on, but the error had made the "
            "transaction void; it was rolled back. Let the error out, or put a savepoint around what may fail"
        )
    elif stage is Stage.GUARD:
        error.add_note(
            f"claimant: raised while the guard row of {plan.operation.label} was written; the effect did not run"
        )
    raise error


def missing_tables(name: str) -> Refused:
    """The guard's tables are not there, and are not made at first use on this database."""
    return Refused(
        "CLM046",
        "the guard's tables are not in this database, so nothing can be guarded here: run `claimant init --guard URL` once "
        "(or apply what it prints with --sql), with a role that may create tables",
        name=name,
    )
