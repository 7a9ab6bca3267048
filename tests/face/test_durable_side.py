"""The durable side at a job's face: open transactions, an absent ledger, an absent guard database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from claimant import AsyncRun, Claimant, NotDone, Run, guards, once
from claimant._model.outcome import Claim, Kind
from claimant._model.records import LedgerNow
from claimant.ledger import init as init_ledger
from tests.support.servers import Server, wait


@pytest.fixture
def app(pg_dsn: str) -> str:
    """The application's PostgreSQL, with the guard's tables and a table of debits."""
    guards.init(pg_dsn)
    init_ledger(pg_dsn)
    with psycopg.connect(pg_dsn) as conn:
        conn.execute("CREATE TABLE debit (order_id bigint NOT NULL, cents bigint NOT NULL)")
        conn.execute("CREATE TABLE note (text text NOT NULL)")
    return pg_dsn


def rows(dsn: str, table: str) -> list[Any]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


INSERT = "INSERT INTO debit VALUES (%s, %s)"


def test_an_application_with_its_own_transaction_open(claims: Claimant, app: str) -> None:
    """The guard joins the caller's transaction: it commits and rolls back with the caller's own work."""

    @claims.job("debit", key=["order_id"], stake="money", guard=once(app))
    def debit(run: Run, order_id: int, conn: Any) -> str:
        conn.execute("INSERT INTO note VALUES (%s)", (f"saw {order_id}",))
        return run.once(conn, lambda tx: tx.execute(INSERT, (order_id, 100))).kind.value

    with psycopg.connect(app) as conn:
        conn.execute("SELECT 1")
        rolled_back = debit(42, conn)
        conn.rollback()
    assert (rolled_back.kind, rolled_back.value) == (Kind.UNCOMMITTED, "applied")
    assert rows(app, "debit") == rows(app, "note") == []
    with psycopg.connect(app) as conn, conn.transaction():
        assert debit(42, conn).value == "applied"
    with psycopg.connect(app) as conn, conn.transaction():
        assert debit(42, conn).value == "duplicate"
    assert rows(app, "debit") == [(42, 100)]
    assert rows(app, "note") == [("saw 42",), ("saw 42",)]
    (tally,) = claims.ledger.tallies("debit")
    assert (tally.count, tally.joined) == (1, True)


class Base(DeclarativeBase):
    pass


class Debit(Base):
    __tablename__ = "debit"
    order_id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int]


def test_an_orm_session_that_has_already_read(claims: Claimant, app: str) -> None:
    """A session is in a transaction after any read: the guard joins it, and the commit closes the slot."""
    engine = sa.create_engine(app.replace("postgresql://", "postgresql+psycopg://"))

    @claims.job("debit", every="1h", stake="money", guard=once(app))
    def debit(run: Run, session: Session) -> str:
        session.scalars(sa.select(Debit)).all()
        return run.once(session, lambda tx: tx.add(Debit(order_id=42, cents=100))).kind.value

    try:
        with Session(engine) as session:
            first = debit(session)
            assert (first.kind, first.value) == (Kind.UNCOMMITTED, "applied")
            assert rows(app, "debit") == []
            session.commit()
        assert rows(app, "debit") == [(42, 100)]
        with Session(engine) as session:
            wait(lambda: debit(session).kind is Kind.DONE, "the slot to be closed after the commit", 5)
    finally:
        engine.dispose()


def test_a_commit_in_the_middle_of_the_body_does_not_close_its_slot(claims: Claimant, app: str) -> None:
    """A batch commits its first item and fails at the second: the slot is not done, and the next attempt does the rest."""
    engine = sa.create_engine(app.replace("postgresql://", "postgresql+psycopg://"))
    failing = [True]

    @claims.job("batch", every="1h", attempts=2, stake="money", guard=once(app))
    def batch(run: Run, session: Session) -> None:
        for number in (1, 2):
            session.scalars(sa.select(Debit)).all()
            run.once(
                session,
                partial(Session.add, instance=Debit(order_id=number, cents=1)),
                operation=("item", number),
            )
            session.commit()
            if failing:
                failing.pop()
                raise ValueError("crash between two items")

    try:
        with Session(engine) as session, pytest.raises(ValueError, match="between two items"):
            batch(session)
        with Session(engine) as session:
            second = batch(session)
    finally:
        engine.dispose()
    assert second.kind is Kind.RAN
    assert [answer.kind.value for answer in second.answers] == ["duplicate", "applied"]
    assert rows(app, "debit") == [(1, 1), (2, 1)]


def test_an_async_session_that_has_already_read(claims: Claimant, app: str) -> None:
    """The same under asyncio, with an async session over psycopg."""

    @claims.job("debit", key=["order_id"], stake="money", guard=once(app))
    async def debit(run: AsyncRun, order_id: int, session: AsyncSession) -> str:
        (await session.scalars(sa.select(Debit))).all()
        answer = await run.once(session, lambda tx: tx.add(Debit(order_id=order_id, cents=100)))
        await session.commit()
        return answer.kind.value

    async def main() -> list[str | None]:
        engine = create_async_engine(app.replace("postgresql://", "postgresql+psycopg://"))
        values = []
        for _ in range(2):
            async with AsyncSession(engine) as session:
                values.append((await debit(7, session)).value)
        await engine.dispose()
        await claims.aclose()
        return values

    assert asyncio.run(main()) == ["applied", "duplicate"]
    assert rows(app, "debit") == [(7, 100)]


@pytest.fixture
def away(tmp_path: Path) -> Iterator[Callable[..., Claimant]]:
    """A Claimant on a memory store and a ledger at some URL."""
    made: list[Claimant] = []

    def make(ledger: str, **options: Any) -> Claimant:
        made.append(Claimant(f"memory:{tmp_path}", ledger=ledger, **options))
        return made[-1]

    yield make
    for claims in made:
        claims.close()


UNREACHABLE = ["postgresql://me:hunter2@127.0.0.1:1/none?deadline=300ms", "sqlite:/proc/nowhere/ledger.db"]


@pytest.mark.parametrize("ledger", UNREACHABLE)
def test_a_ledger_that_is_unreachable_at_the_start(
    away: Callable[..., Claimant], ledger: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Cheap and guarded jobs run, slots included; at-most-once does not run what it cannot record; no password is shown."""
    claims = away(ledger)
    assert claims.job("scan", stake="scan")(lambda run: 7)().value == 7
    slot = claims.job("slot", stake="rebuild", every="1h")(lambda run: 8)()
    assert (slot.kind, slot.value) == (Kind.RAN, 8)
    assert (slot.slot or "").endswith(":00:00Z")
    once_at_most = claims.job("mail", stake="notify", delivery="at-most-once", every="1h")(lambda run: 9)()
    assert once_at_most.kind is Kind.ABSENT
    assert "ledger" in once_at_most.reason
    assert "hunter2" not in caplog.text + repr(once_at_most)


def test_a_ledger_that_goes_away_mid_run_loses_nothing(
    away: Callable[..., Claimant], private_postgres: Callable[..., Server]
) -> None:
    """The body's result stands, the caller waits for one deadline, and the run is written when the ledger answers again."""
    server = private_postgres()
    init_ledger(server.url)
    joint = "&" if "?" in server.url else "?"
    claims = away(f"{server.url}{joint}deadline=500ms")

    @claims.job("paused", stake="scan")
    def paused(run: Run) -> str:
        server.pause()
        return "result"

    try:
        assert paused().value == "result"
        assert paused().value == "result"
    finally:
        server.resume()

    def written() -> bool:
        try:
            claims.ledger.call(LedgerNow())  # an answer is what has the rest written
            (row,) = claims.ledger.jobs("paused")
        except NotDone:
            return False
        return row.runs == 2 and row.unfinished == 0 and row.last_success is not None

    wait(written, "both runs to be written", 15)


def test_an_unreachable_guard_database_means_no_effect_and_says_why(claims: Claimant) -> None:
    """The effect does not happen; the outcome is stopped, names the guard's database, and can be retried."""
    engine = sa.create_engine("postgresql+psycopg://127.0.0.1:1/none")
    happened: list[int] = []

    @claims.job("debit", key=["order_id"], stake="money", guard=once("postgresql://127.0.0.1:1/none"))
    def debit(run: Run, order_id: int) -> None:
        run.once(engine, lambda tx: happened.append(order_id))

    outcome = debit(42)
    engine.dispose()
    assert not happened
    assert (outcome.kind, outcome.claim) == (Kind.STOPPED, Claim.KEPT)
    assert "127.0.0.1" in outcome.reason
    with pytest.raises(NotDone) as not_done:
        _ = outcome.value
    assert not_done.value.retry_in > 0
