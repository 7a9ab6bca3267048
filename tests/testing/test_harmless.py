"""`assert_harmless` passes jobs whose duplicates do no harm, and says which duplicate did harm of those whose do."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from claimant import AsyncRun, Claimant, Refused, Run, guards, once
from claimant.testing.harmless import assert_harmless, assert_harmless_async
from claimant.testing.isolation import isolated

DEBIT = "UPDATE wallet SET cents = cents - 5"


class Bank:
    """A database with one wallet, and a Claimant whose servers do not exist: nothing may touch them."""

    def __init__(self, url: str, connect: Callable[[], Any]) -> None:
        self.url, self.connect = url, connect
        with self.open() as conn:
            conn.execute("CREATE TABLE wallet (cents BIGINT)")
            conn.execute("INSERT INTO wallet VALUES (1000)")
            conn.commit()
        self.claims = Claimant(
            "redis://127.0.0.1:1/0?deadline=50ms", ledger="postgresql://127.0.0.1:1/none?deadline=50ms"
        )

    def open(self) -> Any:
        return closing(self.connect())

    def cents(self) -> int:
        with self.open() as conn:
            return int(conn.execute("SELECT cents FROM wallet").fetchone()[0])

    def job(self, body: Callable[..., Any], **options: Any) -> Any:
        given: dict[str, Any] = {"key": ["order"], "stake": "money", "guard": once(self.url)}
        return self.claims.job(f"debit-{len(self.claims.jobs)}", **given | options)(body)


@pytest.fixture(params=["sqlite", "postgres"])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    """A bank on each database in turn."""
    if request.param == "sqlite":
        path = tmp_path / "bank.db"
        return Bank(f"sqlite:{path}", lambda: sqlite3.connect(path, timeout=20))
    url = request.getfixturevalue("pg_dsn")
    guards.init(url)
    return Bank(url, lambda: psycopg.connect(url))


def test_a_guarded_job_is_harmless_in_all_four_ways(bank: Bank) -> None:
    """One effect for each way, no more and no less, with leases and ledger of the test's own."""
    runs: list[int] = []

    def debit(run: Run, order: int) -> None:
        runs.append(order)
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)

    job = bank.job(debit)
    body = job.body
    assert_harmless(job, 42, effect=bank.cents)
    assert bank.cents() == 1000 - 4 * 5
    assert len(runs) == 8
    assert job.body is body
    assert_harmless(job, 43)
    assert bank.cents() == 1000 - 8 * 5


def test_an_effect_that_joins_the_callers_transaction_is_harmless(bank: Bank) -> None:
    """Joined, the reply is lost after the caller's commit."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            conn.execute("BEGIN" if bank.url.startswith("sqlite") else "SELECT 1")
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)
            conn.commit()

    assert_harmless(bank.job(debit), 42, effect=bank.cents)
    assert bank.cents() == 980


def test_a_job_with_slots_is_harmless(bank: Bank) -> None:
    """A slot that is done is no second run, and a slot whose end was never told is run again."""

    def debit(run: Run) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)

    assert_harmless(bank.job(debit, key=[], every="1d"), effect=bank.cents)
    assert bank.cents() == 980


def test_each_item_of_a_batch_is_guarded_by_itself(bank: Bank) -> None:
    """Several operations in one run are judged each."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            for item in (1, 2, 3):
                run.once(conn, lambda tx: tx.execute(DEBIT) and None, operation=("item", order, item))

    assert_harmless(bank.job(debit), 42, effect=bank.cents)
    assert bank.cents() == 1000 - 4 * 15


@pytest.mark.parametrize("running", [False, True], ids=["own loop", "running loop"])
def test_an_async_job_is_harmless(pg_dsn: str, running: bool) -> None:
    """The same for `async def`, on a loop of its own or on the one that runs."""
    guards.init(pg_dsn)
    bank = Bank(pg_dsn, lambda: psycopg.connect(pg_dsn))

    async def debit(run: AsyncRun, order: int) -> None:
        async with await psycopg.AsyncConnection.connect(pg_dsn) as conn:
            await run.once(conn, lambda tx: tx.execute(DEBIT))

    job = bank.job(debit)
    if not running:
        assert_harmless(job, 42, effect=bank.cents)
    else:

        async def main() -> None:
            with pytest.raises(Refused, match=r"CLM074.*assert_harmless_async"):
                assert_harmless(job, 42)
            await assert_harmless_async(job, 42, effect=bank.cents)

        asyncio.run(main())
    assert bank.cents() == 980


# -- what does harm is found -----------------------------------------------------------------------------------------


@pytest.mark.claimant_unguarded("what this test is about")
def test_a_guard_that_is_not_used_is_found(bank: Bank) -> None:
    """A body that does its effect by itself has no guard, whatever its declaration says."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            conn.execute(DEBIT)
            conn.commit()

    with pytest.raises(AssertionError, match=r"debit-0: twice in a row: 2 runs, and none of them used"):
        assert_harmless(bank.job(debit), 42)


def test_an_effect_on_another_connection_is_found_by_its_value(bank: Bank) -> None:
    """What commits by itself, before the guard's transaction, happens again with each attempt."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as other:
            other.execute(DEBIT)
            other.commit()
        with bank.open() as conn:
            run.once(conn, lambda tx: None)

    job = bank.job(debit)
    assert_harmless(job, 42)  # the answers alone cannot show it
    with pytest.raises(AssertionError, match=r"the effect came to -10, and one run changes it by -5"):
        assert_harmless(job, 43, effect=bank.cents)


def test_an_identity_of_each_attempts_own_is_found(bank: Bank) -> None:
    """A key that is made in the run makes every attempt a first one."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None, operation=("debit", str(uuid.uuid4())))

    with pytest.raises(AssertionError, match="operations of their own"):
        assert_harmless(bank.job(debit), 42)


def test_an_effect_value_that_sees_nothing_is_found(bank: Bank) -> None:
    """A probe of the wrong thing would make any job look harmless."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)

    with pytest.raises(AssertionError, match="does not see the effect"):
        assert_harmless(bank.job(debit), 42, effect=lambda: 7)


def test_what_the_body_raises_is_raised(bank: Bank) -> None:
    """A job that fails has not been shown to be harmless."""

    def debit(run: Run, order: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        assert_harmless(bank.job(debit), 42)
    assert isinstance(bank.claims.store.address, str)


# -- without a guard -------------------------------------------------------------------------------------------------


def test_a_rebuild_is_harmless_if_its_result_is_the_same(tmp_path: Path) -> None:
    """A job without a guard is judged by what it leaves: the same after any number of runs."""
    claims = Claimant("redis://127.0.0.1:1/0", ledger="sqlite:never.db")
    target = tmp_path / "index"
    rebuild = claims.job("rebuild", stake="rebuild")(lambda run: target.write_text("index") and None)
    append = claims.job("append", stake="scan")(
        lambda run: target.write_text(target.read_text() + "x") and None
    )
    assert_harmless(rebuild, effect=target.read_text if target.exists() else lambda: _text(target))
    with pytest.raises(AssertionError, match="append: twice in a row"):
        assert_harmless(append, effect=lambda: _text(target))
    with pytest.raises(Refused, match="CLM074"):
        assert_harmless(rebuild)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


# -- isolation -------------------------------------------------------------------------------------------------------


def test_an_isolated_claimant_is_as_it_was_afterwards(tmp_path: Path) -> None:
    """Inside, jobs of a module's own Claimant run on fakes; afterwards, also after an error, it is the module's again."""
    claims = Claimant(f"sqlite:{tmp_path / 'leases.db'}", ledger=f"sqlite:{tmp_path / 'ledger.db'}")
    tick = claims.job("tick", every="1d", stake="rebuild")(lambda run: run.slot)
    store, ledger = claims.store, claims.ledger
    with isolated(claims):
        assert tick().kind == "ran"
        with isolated(claims):
            assert tick().kind == "ran"
        assert tick().kind == "done"
    with pytest.raises(ZeroDivisionError), isolated(claims):
        assert not (tmp_path / "leases.db").exists()
        raise ZeroDivisionError
    assert (claims.store, claims.ledger) == (store, ledger)
    assert tick().kind == "ran"
    assert tick().kind == "done"
    assert (tmp_path / "leases.db").exists()
    claims.close()
