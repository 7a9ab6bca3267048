"""The effect and the caller: what an effect may return, what it may not do, and what stays the caller's."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from claimant._model.errors import Refused
from claimant._model.operation import identify
from claimant._model.outcome import AnswerKind
from claimant.guards import once, once_aio, once_blocking, rejections
from tests.guards.attempts import CHARGE, OPERATION, attempt, attempt_aio, charge, context, notes


class Base(orm.DeclarativeBase):
    pass


class Debit(Base):
    __tablename__ = "debits"
    order_id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    amount: orm.Mapped[int]


@pytest.fixture
def conn(guarded: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(guarded) as conn:
        yield conn
        conn.rollback()


@pytest.fixture
def engine(guarded: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(guarded.replace("postgresql:", "postgresql+psycopg:"))
    yield engine
    engine.dispose()


def setting(conn: psycopg.Connection[Any], name: str) -> str:
    row = conn.execute(f"SELECT current_setting('{name}')").fetchone()
    assert row is not None
    return str(row[0])


def test_coroutine_in_a_plain_body_is_refused_and_closed(guarded: str, conn: psycopg.Connection[Any]) -> None:
    """An effect that nobody would await is refused, without a warning, and its transaction rolled back."""

    async def effect(tx: Any) -> None:
        tx.execute(CHARGE)

    with pytest.raises(Refused, match="CLM048"):
        attempt(once(guarded), conn, effect)
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert attempt(once(guarded), conn).answer.kind is AnswerKind.APPLIED


def test_generator_is_refused(guarded: str, conn: psycopg.Connection[Any]) -> None:
    """An effect that yields did no work when it was called."""

    def effect(tx: Any) -> Iterator[None]:
        yield tx.execute(CHARGE)

    with pytest.raises(Refused, match="CLM048"):
        attempt(once(guarded), conn, effect)


def test_plain_effect_in_an_async_body(guarded: str) -> None:
    """Under asyncio an effect may be a plain function."""
    engine = sa_aio.create_async_engine(guarded.replace("postgresql:", "postgresql+psycopg:"))

    async def scenario() -> Any:
        try:
            return await attempt_aio(once(engine), engine, lambda _: "nothing to await")
        finally:
            await engine.dispose()

    assert asyncio.run(scenario()).answer.value == "nothing to await"


def test_cancelled_effect_leaves_nothing(guarded: str) -> None:
    """A cancelled attempt rolls back and stays cancelled; the next one applies on the same connection."""

    async def scenario() -> Any:
        async with await psycopg.AsyncConnection.connect(guarded) as conn:
            inside = asyncio.Event()

            async def effect(tx: Any) -> None:
                await tx.execute(CHARGE)
                inside.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(attempt_aio(once(guarded), conn, effect))
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await attempt_aio(once(guarded), conn, run_id="run-2")

    assert asyncio.run(scenario()).answer.kind is AnswerKind.APPLIED
    assert notes(guarded) == 1


def test_cursor_is_no_result(guarded: str, conn: psycopg.Connection[Any]) -> None:
    """The common `lambda tx: tx.execute(…)` keeps nothing and notes nothing."""
    first = attempt(once(guarded), conn, lambda tx: tx.execute(CHARGE)).answer
    second = attempt(once(guarded), conn, run_id="run-2").answer
    assert (first.kind, first.reason) == (AnswerKind.APPLIED, "")
    assert (second.result, second.reason) == (None, "")


def test_swallowed_error_is_not_applied(guarded: str, conn: psycopg.Connection[Any]) -> None:
    """An effect that goes on after a database error has been rolled back already; it never passes for applied."""

    def effect(tx: psycopg.Connection[Any]) -> None:
        tx.execute(CHARGE)
        with contextlib.suppress(psycopg.Error):
            tx.execute("SELECT 1/0")

    with pytest.raises(psycopg.errors.InFailedSqlTransaction) as caught:
        attempt(once(guarded), conn, effect)
    assert "void" in caught.value.__notes__[0]
    conn.execute("SELECT 1")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        attempt(once(guarded), conn, effect)
    conn.execute(CHARGE)
    conn.commit()
    assert notes(guarded) == 1


@pytest.mark.parametrize("make", ["connection", "session"])
def test_swallowed_error_leaves_an_sqlalchemy_caller_its_transaction(
    guarded: str, engine: sa.Engine, make: str
) -> None:
    """Joined, what the void effect did is undone to its savepoint, and the caller's own work can be committed."""

    def effect(tx: Any) -> None:
        tx.execute(sa.text(CHARGE))
        with contextlib.suppress(sa.exc.DBAPIError):
            tx.execute(sa.text("SELECT 1/0"))

    with contextlib.closing(engine.connect() if make == "connection" else orm.Session(engine)) as caller:
        caller.execute(sa.text(CHARGE))
        with pytest.raises(sa.exc.InternalError) as caught:
            attempt(once(guarded), caller, effect)
        assert "void" in caught.value.__notes__[0]
        caller.commit()
    assert notes(guarded) == 1


@pytest.mark.parametrize("was", ["0", "10ms", "7s"])
def test_the_callers_lock_bound_is_its_own_again(
    guarded: str, conn: psycopg.Connection[Any], was: str
) -> None:
    """Joined, the bound of the guard's own wait is gone after it, for the first attempt and for a duplicate."""
    for run_id in ("run-1", "run-2"):
        conn.execute(f"SET LOCAL lock_timeout = '{was}'")
        seen: list[Any] = []

        def effect(tx: Any, seen: list[Any] = seen) -> None:
            seen.append(tx.execute("SHOW lock_timeout").fetchone())

        attempt(once(guarded), conn, effect, run_id)
        assert conn.execute("SHOW lock_timeout").fetchone() == (was,)
        assert seen in ([(was,)], [])
        conn.commit()


def test_error_of_another_database_is_not_ours(guarded: str, conn: psycopg.Connection[Any]) -> None:
    """A connection error that the effect met elsewhere does not have it run again."""
    tries: list[int] = []

    def effect(tx: Any) -> None:
        tries.append(1)
        raise ConnectionResetError("a payment provider hung up")

    with pytest.raises(ConnectionResetError):
        attempt(once(guarded), conn, effect)
    assert len(tries) == 1


def test_guards_nest(guarded: str, conn: psycopg.Connection[Any]) -> None:
    """An operation inside the effect of another commits, or not, with it."""
    guard, inner = once(guarded), identify("send-receipt", {"order_id": "42"})

    def effect(tx: Any) -> str:
        said = attempt(guard, tx, charge, operation=inner)
        assert said.joined
        return charge(tx)

    def failing(tx: Any) -> None:
        effect(tx)
        raise ValueError

    with pytest.raises(ValueError):
        attempt(guard, conn, failing)
    assert notes(guarded) == 0
    assert attempt(guard, conn, effect).answer.kind is AnswerKind.APPLIED
    assert attempt(guard, conn, charge, "run-2", operation=inner).answer.kind is AnswerKind.DUPLICATE
    assert notes(guarded) == 2


def test_bounds_of_an_own_transaction(guarded: str, conn: psycopg.Connection[Any]) -> None:
    """Owned: lock waits and idle time are bounded by `longest`, for this transaction only."""
    seen: list[str] = []

    def effect(tx: psycopg.Connection[Any]) -> None:
        seen.extend(setting(tx, name) for name in ("lock_timeout", "idle_in_transaction_session_timeout"))

    attempt(once(guarded, longest="7s"), conn, effect)
    assert seen == ["7s", "7s"]
    attempt(once(guarded, longest="2m"), conn, effect, "run-2", operation=identify("other", {"id": "1"}))
    assert seen[2:] == ["30s", "2min"]
    assert (setting(conn, "lock_timeout"), setting(conn, "idle_in_transaction_session_timeout")) == ("0", "0")


@pytest.mark.parametrize("own", ["0", "250ms", "90s"])
def test_bounds_of_the_callers_transaction_are_its_own(
    guarded: str, conn: psycopg.Connection[Any], own: str
) -> None:
    """Joined: the effect and the caller go on with the caller's lock bound, and idle time was never touched."""
    conn.execute(f"SET LOCAL lock_timeout = '{own}'")
    before = setting(conn, "lock_timeout")
    seen: list[str] = []

    def effect(tx: psycopg.Connection[Any]) -> None:
        seen.append(setting(tx, "lock_timeout"))

    attempt(once(guarded), conn, effect)
    attempt(once(guarded), conn, effect, "run-2")
    assert seen == [before]
    assert setting(conn, "lock_timeout") == before
    assert setting(conn, "idle_in_transaction_session_timeout") == "0"


def test_pipeline_is_refused(guarded: str, conn: psycopg.Connection[Any]) -> None:
    """In a pipeline an answer comes too late to be acted on."""
    with conn.pipeline(), pytest.raises(Refused, match="CLM042"):
        attempt(once(guarded), conn)


def test_psycopg_application_with_its_own_transaction_block(
    guarded: str, conn: psycopg.Connection[Any]
) -> None:
    """Inside the application's `with conn.transaction()` the guard joins, and its rollback takes both away."""
    guard = once(guarded)
    with pytest.raises(ValueError), conn.transaction():
        conn.execute(CHARGE)
        assert attempt(guard, conn).joined
        raise ValueError
    assert notes(guarded) == 0
    with conn.transaction():
        said = attempt(guard, conn)
        assert said.still_open is not None
        assert said.still_open()
    assert not said.still_open()
    conn.execute("SELECT 1")
    assert not said.still_open()
    assert notes(guarded) == 1


def test_orm_violation_shows_inside_the_guard(guarded: str, engine: sa.Engine) -> None:
    """What the effect adds to a session is sent out inside the guard, so that its violation is the guard's to judge."""
    guard = once(engine, constraint="one_debit")

    def effect(session: orm.Session) -> None:
        session.add(Debit(order_id=1, amount=5))

    said = []
    for run_id in ("run-1", "run-2"):
        with orm.Session(engine) as session:
            session.execute(sa.select(Debit)).all()
            said.append(attempt(guard, session, effect, run_id))
            session.execute(sa.text(CHARGE))
            session.commit()
    assert [one.answer.kind for one in said] == [AnswerKind.APPLIED, AnswerKind.DUPLICATE]
    assert all(one.joined for one in said)
    assert notes(guarded) == 2
    with orm.Session(engine) as session:
        assert attempt(guard, session, effect, "run-3").answer.kind is AnswerKind.DUPLICATE
        assert not session.in_transaction()
    assert [row.count for row in rejections(engine)] == [1]


def test_failing_effect_leaves_an_orm_session_usable(guarded: str, engine: sa.Engine) -> None:
    """After a failed flush inside the effect the session knows that the effect's objects are gone, and its own are not."""
    guard = once(engine)
    with orm.Session(engine) as session:
        session.add(Debit(order_id=1, amount=1))
        session.flush()
        with pytest.raises(sa.exc.IntegrityError):
            attempt(guard, session, lambda tx: tx.add(Debit(order_id=1, amount=2)))
        session.add(Debit(order_id=2, amount=1))
        session.commit()
        assert session.scalar(sa.select(sa.func.count()).select_from(Debit)) == 2
        assert (
            attempt(guard, session, lambda tx: tx.add(Debit(order_id=3, amount=1)), "run-2").answer.kind
            is AnswerKind.APPLIED
        )


def test_what_the_caller_left_pending_is_the_callers(
    guarded: str, engine: sa.Engine, conn: psycopg.Connection[Any]
) -> None:
    """A session's own pending work that fails on its way out is the caller's error, and never `in_flight`."""
    conn.execute("INSERT INTO debits VALUES (1, 1)")
    guard = once(engine)
    with orm.Session(engine) as session:
        session.execute(sa.text("SET LOCAL lock_timeout = '50ms'"))
        session.add(Debit(order_id=1, amount=2))
        with pytest.raises(sa.exc.OperationalError):
            attempt(guard, session, lambda tx: tx.execute(sa.text(CHARGE)))
    conn.commit()
    with orm.Session(engine) as session:
        session.add(Debit(order_id=1, amount=2))
        with pytest.raises(sa.exc.IntegrityError):
            attempt(guard, session, lambda tx: tx.execute(sa.text(CHARGE)), "run-2")
    assert notes(guarded) == 0


@pytest.mark.parametrize("end", ["commit", "rollback", "savepoint"])
def test_word_of_the_callers_commit(guarded: str, engine: sa.Engine, end: str) -> None:
    """An ORM session tells of the outermost commit, once; not of savepoints, and not of a rollback."""
    told: list[str] = []
    guard = once(engine)
    with orm.Session(engine) as session:
        session.execute(sa.text("SELECT 1"))
        said = once_blocking(
            guard,
            session,
            lambda tx: tx.execute(sa.text(CHARGE)),
            OPERATION,
            context("run-1", committed=lambda: told.append("c")),
        )
        with session.begin_nested():
            session.execute(sa.text(CHARGE))
        assert told == []
        assert said.still_open is not None
        assert said.still_open()
        if end == "commit":
            session.commit()
            session.execute(sa.text(CHARGE))
            session.commit()
        elif end == "rollback":
            session.rollback()
            session.execute(sa.text(CHARGE))
            session.commit()
        assert said.still_open() is (end == "savepoint")
    assert told == (["c"] if end == "commit" else [])


def test_word_of_the_callers_commit_under_asyncio(guarded: str) -> None:
    """The same for an async session."""
    told: list[str] = []
    engine = sa_aio.create_async_engine(guarded.replace("postgresql:", "postgresql+psycopg:"))

    async def effect(tx: Any) -> str:
        await tx.execute(sa.text(CHARGE))
        return "ok"

    async def scenario() -> None:
        async with sa_aio.AsyncSession(engine) as session:
            await session.execute(sa.text("SELECT 1"))
            await once_aio(
                once(engine), session, effect, OPERATION, context("run-1", committed=lambda: told.append("c"))
            )
            assert told == []
            await session.commit()
        await engine.dispose()

    asyncio.run(scenario())
    assert told == ["c"]


def test_rejections_are_read_from_any_plain_handle(
    guarded: str, engine: sa.Engine, conn: psycopg.Connection[Any]
) -> None:
    """URL, connection, engine and its connection show the same tally, for all jobs or one."""
    for run_id in ("run-1", "run-2", "run-3"):
        attempt(once(guarded), conn, run_id=run_id)
    with engine.connect() as core:
        seen = [rejections(where) for where in (guarded, conn, engine, core)]
    assert seen[0][0].count == 2
    assert all(one == seen[0] for one in seen)
    assert rejections(guarded, "debit-wallet") == seen[0]
    assert rejections(guarded, "another") == []
