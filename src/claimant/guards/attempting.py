"""One attempt at an operation under a declared guard: from the caller's handle to an answer.

The blocking face, and what `awaiting` shares with it. Decides nothing that the flow decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from claimant._drive import blocking
from claimant._flows.once import once
from claimant._model.dialect import Dialect
from claimant._model.errors import Refused
from claimant._model.guarding import TRAITS, Attempt, Diagnosis
from claimant._model.operation import Operation
from claimant._model.outcome import Answer, AnswerKind
from claimant._sql.constraint import Constraint
from claimant._sql.handles import Make, Recognised, recognise, unscoped
from claimant._sql.target import Target, not_accepted
from claimant.guards.fitting import fit
from claimant.guards.once import Context, Once, Said
from claimant.guards.sessions import Session, StillOpen, blocking_table

T = TypeVar("T")

LONGEST_WAIT_MS = 30_000
"""How long a duplicate waits for the first attempt at most; a longer effect is answered `in_flight`."""


def attempt(
    guard: Once, handle: Any, effect: Callable[[Any], T], operation: Operation, context: Context
) -> Said[T]:
    """Attempt `operation` once on this thread. Raises what the effect raises, after the rollback, and `Refused`."""
    found = checked(handle, effect)
    if found.waits:
        raise Refused(
            "CLM042",
            f"run.once() was given an async {found.make.value}, and this job's body is a plain function. Write the body as "
            "`async def`, or pass a plain handle",
            name=context.job,
        )
    session = session_of(guard, unscoped(handle, found.make), found)
    plan = plan_of(guard, session, operation, context)
    answer: Answer[T] = blocking.run(
        once(plan), blocking_table(session, effect, guard.target.dialect, context.emit)
    )
    return said(session, answer, plan, context)


def checked(handle: Any, effect: object) -> Recognised:
    """What the handle is. Raises `Refused` for one that cannot be used, and for an effect that is no function."""
    found = recognise(handle)
    if found is None:
        raise not_accepted(handle)
    if not callable(effect):
        raise Refused(
            "CLM048",
            f"the effect must be a function that takes the connection or session, not {type(effect).__name__}: it is called for "
            "the first attempt only. Write run.once(conn, lambda tx: tx.execute(…))",
        )
    return found


def session_of(guard: Once, handle: Any, found: Recognised) -> Session:
    """The session that carries requests out on `handle`."""
    declared = guard.target
    match found.make:
        case Make.SQLITE3:
            from claimant.guards.on_sqlite3 import Sqlite3Session

            _same_dialect(declared, Dialect.SQLITE, found)
            return Sqlite3Session(handle)
        case Make.PSYCOPG | Make.PSYCOPG_POOL:
            from claimant.guards.on_psycopg import AsyncPsycopgSession, PsycopgSession, spare_connection

            _same_dialect(declared, Dialect.POSTGRESQL, found)
            pool = found.make is Make.PSYCOPG_POOL
            spare = None if pool else spare_connection(declared, waits=found.waits)
            return (AsyncPsycopgSession if found.waits else PsycopgSession)(
                handle, pool=pool, declared=declared, spare=spare
            )
        case Make.DJANGO:
            from claimant.guards.on_django import DjangoSession, dialect_of, wrapper_of

            wrapper = wrapper_of(handle)
            _same_dialect(declared, dialect_of(wrapper), found)
            return DjangoSession(wrapper, declared)
        case make:
            from claimant.guards.on_sqlalchemy import AsyncSqlAlchemySession, SqlAlchemySession

            make = Make.SESSION if make is Make.SCOPED else make
            return (AsyncSqlAlchemySession if found.waits else SqlAlchemySession)(handle, make, declared)


def _same_dialect(declared: Target, given: Dialect, found: Recognised) -> None:
    if declared.dialect is not given:
        raise Refused(
            "CLM044",
            f"the guard was declared for {declared.address}, and run.once() was given a {found.make.value}: the effect would "
            "land in another database than its guard. Pass a handle of the declared database, or declare this one",
        )


def plan_of(guard: Once, session: Session, operation: Operation, context: Context) -> Attempt:
    """What the flow is told of this attempt."""
    fitted: list[Constraint | None] = []

    def violated(found: Diagnosis) -> bool:
        return bool(fitted) and fitted[-1] is not None and fitted[-1].violated(found)

    return Attempt(
        operation=operation,
        run_id=context.run_id,
        job=context.job,
        stake=context.stake,
        hole=context.hole,
        traits=TRAITS[guard.target.dialect],
        joined=session.joined,
        reopens=session.reopens,
        wait_ms=min(guard.longest_ms, LONGEST_WAIT_MS),
        longest_ms=guard.longest_ms,
        verify=lambda: fit(guard, session.place, fitted, context.job),
        violated=None if guard.constraint is None else violated,
        release_tells=session.release_tells,
        observe=context.observe,
        replays=session.replays,
    )


def said(session: Session, answer: Answer[T], plan: Attempt, context: Context) -> Said[T]:
    """What is left open only matters where our own effect is in the caller's transaction."""
    still_open: StillOpen | None = None
    if plan.joined and answer.kind is AnswerKind.APPLIED:
        still_open = session.caller(b"" if plan.violated else plan.operation.key, plan.run_id)
        if still_open is not None and context.committed is not None:
            still_open.on_commit(context.committed)
    return Said(answer, plan.joined, still_open)
