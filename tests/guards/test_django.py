"""What is Django's own: which connection is meant, what is refused, what a caller's block leaves open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claimant import AsyncRun, Claimant, Refused, Run, once
from claimant._model.outcome import AnswerKind, Kind
from tests.guards import benches
from tests.guards.django_benches import DjangoPostgres, DjangoSqlite, django_connection
from tests.support.servers import wait


@pytest.fixture(params=["sqlite", "postgres"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A database with a Django connection, of each kind."""
    if request.param == "sqlite":
        return DjangoSqlite(benches.sqlite_file(tmp_path))
    return DjangoPostgres(request.getfixturevalue("guarded"))


@pytest.fixture
def conn(bench: Any) -> Iterator[Any]:
    """This thread's default connection."""
    with django_connection(bench.settings_dict()) as wrapper:
        yield wrapper


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[Claimant]:
    with Claimant("memory:django", ledger=f"sqlite:{tmp_path / 'ledger.db'}") as made:
        yield made


def note(tx: Any) -> None:
    with tx.cursor() as cursor:
        cursor.execute("INSERT INTO notes (text) VALUES ('charged')")


def job(claims: Claimant, bench: Any, conn: Any) -> Any:
    @claims.job("debit", every="1d", stake="money", guard=once(bench.url))
    def debit(run: Run) -> str:
        return run.once(conn, note).kind

    return debit


def test_the_proxy_stands_for_the_threads_connection(claims: Claimant, bench: Any, conn: Any) -> None:
    """`django.db.connection` is taken for what it stands for."""
    from django.db import connection

    assert job(claims, bench, connection)().value == "applied"
    assert bench.notes() == 1
    assert not conn.in_atomic_block
    assert conn.get_autocommit()


def test_a_commit_of_the_callers_block_closes_the_slot(claims: Claimant, bench: Any, conn: Any) -> None:
    """The run ends uncommitted, with its result; the commit closes its slot."""
    from django.db import transaction

    debit = job(claims, bench, conn)
    with transaction.atomic():
        outcome = debit()
        assert (outcome.kind, outcome.value) == (Kind.UNCOMMITTED, "applied")
        [row] = claims.ledger.jobs()
        assert row.last_kind == "uncommitted"
    wait(lambda: claims.ledger.jobs()[0].last_kind == "ran", "the slot to be closed", 20)
    assert debit().kind is Kind.DONE
    assert bench.notes() == 1


def test_a_rollback_of_the_callers_block_leaves_everything_open(
    claims: Claimant, bench: Any, conn: Any
) -> None:
    """Effect, guard row and hook go with the block: the slot is open, and the next start does the work."""
    from django.db import transaction

    debit = job(claims, bench, conn)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert debit().kind is Kind.UNCOMMITTED
        raise ZeroDivisionError
    claims._wiring._worker.submit(lambda: None).result(20)
    assert bench.notes() == 0
    assert debit().value == "applied"
    assert bench.notes() == 1


def test_hooks_of_the_effect_are_called_by_our_commit(claims: Claimant, bench: Any, conn: Any) -> None:
    """In a transaction of our own, what the effect asks to be called on commit is called once, after it."""
    from django.db import transaction

    called: list[int] = []

    def effect(tx: Any) -> None:
        note(tx)
        transaction.on_commit(lambda: called.append(bench.notes()))

    @claims.job("mail", key=["n"], stake="money", guard=once(bench.url))
    def mail(run: Run, n: int) -> AnswerKind:
        return run.once(conn, effect).kind

    assert [mail(1).value, mail(1).value] == ["applied", "duplicate"]
    assert called == [1]


def test_an_error_that_the_effect_swallows_in_a_block_of_its_own_is_told(
    claims: Claimant, bench: Any, conn: Any
) -> None:
    """Django would roll the whole back without a word; it never passes for applied."""
    from django.db import transaction

    def effect(tx: Any) -> None:
        note(tx)
        try:
            with transaction.atomic(savepoint=False):
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    @claims.job("debit", key=["n"], stake="money", guard=once(bench.url))
    def debit(run: Run, n: int) -> None:
        run.once(conn, effect)

    with pytest.raises(transaction.TransactionManagementError, match="Let the error out"):
        debit(1)
    assert (bench.notes(), bench.guard_rows()) == (0, 0)
    with transaction.atomic():
        note(conn)
        with pytest.raises(transaction.TransactionManagementError, match="Let the error out"):
            debit(2)
    assert (bench.notes(), bench.guard_rows()) == (1, 0)


def test_without_autocommit_and_without_a_block_it_is_refused_or_joined(
    claims: Claimant, bench: Any, conn: Any
) -> None:
    """Where autocommit is off the caller commits: the guard joins, and its row goes with the caller's rollback."""
    conn.ensure_connection()
    conn.set_autocommit(False)
    debit = job(claims, bench, conn)
    note(conn)
    assert debit().value == "applied"
    conn.rollback()
    assert (bench.notes(), bench.guard_rows()) == (0, 0)
    conn.set_autocommit(True)


def test_a_connection_that_is_not_the_threads_own_is_refused(claims: Claimant, bench: Any, conn: Any) -> None:
    """Django would open its transaction on another one."""
    from django.db.utils import load_backend

    settings_dict = bench.settings_dict()
    stray = load_backend(settings_dict["ENGINE"]).DatabaseWrapper(settings_dict, "default")
    with pytest.raises(Refused, match=r"CLM042.*connections\['default'\]"):
        job(claims, bench, stray)()
    stray.close()


def test_another_database_is_refused(claims: Claimant, bench: Any, conn: Any, tmp_path: Path) -> None:
    """A guard row in another database does not commit with the effect."""
    other = (
        "postgresql:///elsewhere" if isinstance(bench, DjangoPostgres) else f"sqlite:{tmp_path / 'other.db'}"
    )

    @claims.job("debit", key=["n"], stake="money", guard=once(other))
    def debit(run: Run, n: int) -> None:
        run.once(conn, note)

    with pytest.raises(Refused, match="CLM044"):
        debit(1)
    assert bench.notes() == 0


def test_a_kind_that_cannot_guard_yet_is_refused_by_name(claims: Claimant, bench: Any, conn: Any) -> None:
    """MySQL has to wait, and the refusal says what can guard."""
    conn.vendor = "mysql"
    try:
        with pytest.raises(Refused, match=r"CLM040.*mysql.*SQLite and PostgreSQL"):
            job(claims, bench, conn)()
    finally:
        del conn.vendor


def test_an_async_body_is_told_to_use_a_thread(claims: Claimant, bench: Any, conn: Any) -> None:
    """Django's connections are for threads."""

    @claims.job("debit", key=["n"], stake="money", guard=once(bench.url))
    async def debit(run: AsyncRun, n: int) -> None:
        await run.once(conn, note)

    async def main() -> None:
        with pytest.raises(Refused, match=r"CLM042.*sync_to_async"):
            await debit(1)
        await claims.aclose()

    asyncio.run(main())
