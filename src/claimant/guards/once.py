"""The guard `once`, as it is declared and as it is used: rows in the database where the effect lands.

`once(db)` keeps a row for each operation; `once(db, constraint=…)` lets the caller's own unique index reject. Declaring
opens nothing. An external call inside the effect is not protected by it: after a failed commit that call would stand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from claimant._drive import blocking
from claimant._flows.once import missing_tables
from claimant._flows.once import once as once_flow
from claimant._model.durations import Duration, duration_ms, in_words
from claimant._model.errors import Refused
from claimant._model.events import Event
from claimant._model.guarding import TRAITS, Attempt, Diagnosis, Dialect
from claimant._model.operation import Operation
from claimant._model.ops import Emit, Flow
from claimant._model.outcome import Answer, AnswerKind
from claimant._sql.constraint import Constraint, in_postgres, in_sqlite
from claimant._sql.handles import Make, Recognised, recognise, unscoped
from claimant._sql.live import postgres_remembers, sqlite_remembers
from claimant._sql.target import Target, engine_of, not_accepted, target_of
from claimant.guards.sessions import Session, StillOpen, blocking_table

T = TypeVar("T")

LONGEST_WAIT_MS = 30_000
"""How long a duplicate waits for the first attempt at most; a longer effect is answered `in_flight`."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a run tells its guard. `hole`: what made a duplicate possible, where known. `committed`: see `Once`."""

    job: str
    stake: str
    run_id: str
    hole: str
    emit: Callable[[Event], object]
    committed: Callable[[], None] | None = None
    """Called after a joined transaction has committed, where the handle can tell (ORM sessions)."""


@dataclass(frozen=True, slots=True)
class Said(Generic[T]):
    """A guard's answer, and what a joined one leaves open. `still_open`: is the caller's transaction still open?"""

    answer: Answer[T]
    joined: bool
    still_open: Callable[[], bool] | None


class Once:
    """A declared guard. Make one with `once()`; it may be shared by jobs and threads."""

    __slots__ = ("_fit", "constraint", "db", "longest_ms", "retry_window_ms", "target")

    def __init__(
        self,
        target: Target,
        db: object,
        *,
        constraint: str | None,
        longest_ms: int,
        retry_window_ms: int | None,
    ) -> None:
        self.target = target
        self.db = db
        self.constraint = constraint
        self.longest_ms = longest_ms
        self.retry_window_ms = retry_window_ms
        self._fit: dict[str, Constraint | None] = {}

    @property
    def dialect(self) -> str:
        """The database's kind: "sqlite" or "postgresql"."""
        return self.target.dialect.value

    def describe(self) -> str:
        """Where the second attempt is rejected, for people; never with a password."""
        by = "" if self.constraint is None else f" by {self.constraint}"
        return f"once in {self.target.address}{by}"

    def __repr__(self) -> str:
        return f"<{self.describe()}, longest {in_words(self.longest_ms)}>"

    def fit(self, place: str, found: list[Constraint | None]) -> Flow[None]:
        """See, on the live database, that it can guard. Once per process and database, but for what a connection sets."""
        if self.target.dialect is Dialect.SQLITE:
            yield from sqlite_remembers(self.target)
        if place not in self._fit:
            if self.target.dialect is Dialect.POSTGRESQL and not (yield from postgres_remembers()):
                raise missing_tables("")
            self._fit[place] = None if self.constraint is None else (yield from self._own(self.constraint))
        found.append(self._fit[place])

    def _own(self, declared: str) -> Flow[Constraint]:
        look = in_postgres if self.target.dialect is Dialect.POSTGRESQL else in_sqlite
        constraint = yield from look(declared)
        if constraint.nullable:
            text = (
                f"constraint={declared!r} covers columns that may be NULL ({constraint.nullable}), and two NULLs do not violate "
                "it: make them NOT NULL"
            )
            yield Emit(Event("guard.nullable", "", text, "warning", {"constraint": declared}))
        return constraint


def once(
    db: object,
    *,
    constraint: str | None = None,
    retry_window: Duration | None = None,
    longest: Duration = "30s",
) -> Once:
    """Guard an effect in the database `db`: its second attempt is rejected there, in the effect's own transaction.

    `db`: a URL ("postgresql:///app", "sqlite:PATH", SQLAlchemy's spelling too) or a ready engine or pool; it says where
    the effect lands, and `run.once` is given a handle of that database. `constraint`: the name of YOUR unique index or
    constraint, which then is the guard: the effect inserts plainly, and its violation is a duplicate. `longest`: the longest
    that the effect takes, as a duration; in a transaction of our own PostgreSQL ends one that is idle for longer, and a
    duplicate waits that long for the first, at most 30 s. `retry_window`: how long an attempt may come after the first.

    Raises `Refused`: CLM040 (nothing that can guard), CLM041 (volatile), CLM010 (not a duration), CLM049 (no constraint).

        debit = once("postgresql:///app")
    """
    target = target_of(db)
    named: object = constraint
    if named is not None and not (isinstance(named, str) and named.strip()):
        raise Refused(
            "CLM049", f"constraint={constraint!r} must name your unique index or constraint, e.g. 'one_debit'"
        )
    found = recognise(db)
    if found is not None and found.make in (Make.ENGINE, Make.MAKER):
        from claimant.guards.on_sqlalchemy import refuse_autocommit

        refuse_autocommit(engine_of(db, found.make))
    return Once(
        target,
        db,
        constraint=constraint,
        longest_ms=duration_ms(longest, "longest"),
        retry_window_ms=None if retry_window is None else duration_ms(retry_window, "retry_window"),
    )


def once_blocking(
    guard: Once, handle: Any, effect: Callable[[Any], T], operation: Operation, context: Context
) -> Said[T]:
    """Attempt `operation` once on this thread. Raises what the effect raises, after the rollback, and `Refused`."""
    found = _checked(handle, effect)
    if found.waits:
        raise Refused(
            "CLM042",
            f"run.once() was given an async {found.make.value}, and this job's body is a plain function. Write the body as "
            "`async def`, or pass a plain handle",
            name=context.job,
        )
    session = _session(guard, unscoped(handle, found.make), found)
    plan = _attempt(guard, session, operation, context)
    answer: Answer[T] = blocking.run(
        once_flow(plan), blocking_table(session, effect, guard.target.dialect, context.emit)
    )
    return _said(session, answer, plan, context)


async def once_aio(
    guard: Once, handle: Any, effect: Callable[[Any], Any], operation: Operation, context: Context
) -> Said[Any]:
    """`once_blocking` on the running loop; `effect` may be plain or a coroutine function."""
    from claimant._drive import aio  # asyncio is imported by those who use it
    from claimant.guards.awaiting import aio_table

    found = _checked(handle, effect)
    if not found.waits and guard.target.dialect is Dialect.POSTGRESQL:
        raise Refused(
            "CLM042",
            f"run.once() was given a plain {found.make.value} inside an `async def` body: a duplicate that waits for the first "
            "would stop the whole event loop, the first with it. Pass the async one",
            name=context.job,
        )
    session = _session(guard, unscoped(handle, found.make), found)
    plan = _attempt(guard, session, operation, context)
    answer: Answer[Any] = await aio.run(
        once_flow(plan), aio_table(session, effect, guard.target.dialect, context.emit)
    )
    return _said(session, answer, plan, context)


def _checked(handle: Any, effect: object) -> Recognised:
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


def _session(guard: Once, handle: Any, found: Recognised) -> Session:
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


def _attempt(guard: Once, session: Session, operation: Operation, context: Context) -> Attempt:
    fit: list[Constraint | None] = []

    def violated(found: Diagnosis) -> bool:
        return bool(fit) and fit[-1] is not None and fit[-1].violated(found)

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
        verify=lambda: guard.fit(session.place, fit),
        violated=None if guard.constraint is None else violated,
    )


def _said(session: Session, answer: Answer[T], plan: Attempt, context: Context) -> Said[T]:
    """What is left open only matters where our own effect is in the caller's transaction."""
    still_open: StillOpen | None = None
    if plan.joined and answer.kind is AnswerKind.APPLIED:
        still_open = session.caller(b"" if plan.violated else plan.operation.key, plan.run_id)
        if still_open is not None and context.committed is not None:
            still_open.on_commit(context.committed)
    return Said(answer, plan.joined, still_open)
