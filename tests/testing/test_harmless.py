"""`assert_harmless` passes jobs whose duplicates do no harm, and leaves everything as it was."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from claimant import AsyncRun, Claimant, Refused, Run, guards, once
from claimant.testing import assert_harmless, assert_harmless_async, duplicates
from tests.guards.django_benches import DjangoPostgres, django_settings
from tests.support.servers import wait
from tests.testing.bank import DEBIT, Bank


def plain(bank: Bank) -> Any:
    """A job that does all of its effect under its guard."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)

    return bank.job(debit)


def test_a_guarded_job_is_harmless_in_all_four_ways(bank: Bank) -> None:
    """One effect for each way, no more and no less, with leases and ledger of the test's own."""
    runs: list[int] = []

    def debit(run: Run, order: int) -> None:
        runs.append(order)
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)

    job = bank.job(debit)
    body, before = job.body, (bank.claims.store, bank.claims.ledger)
    assert_harmless(job, 42, effect=bank.cents)
    assert bank.cents() == 1000 - 4 * 5
    # The reply is lost twice: before the COMMIT, and after it.
    assert len(runs) == 2 + 2 + 2 + 3
    assert job.body is body
    assert (bank.claims.store, bank.claims.ledger) == before


def test_the_same_arguments_can_be_tried_again(bank: Bank) -> None:
    """A database that other tests have used, or this one before, proves as much as a new one."""
    job = plain(bank)
    assert_harmless(job, 42)
    assert_harmless(job, 42, effect=bank.cents)
    assert bank.cents() == 1000 - 8 * 5


def test_an_effect_that_joins_the_callers_transaction_is_harmless(bank: Bank) -> None:
    """Joined, the reply is lost after the caller's commit."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            conn.execute("BEGIN" if bank.sqlite else "SELECT 1")
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)
            conn.commit()

    assert_harmless(bank.job(debit), 42, effect=bank.cents)
    assert bank.cents() == 980


def test_each_attempt_has_a_django_connection_of_its_own_and_leaves_none(
    pg_bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django's connections belong to a thread: two attempts in one would be one transaction, and an open one keeps its database."""
    from django.db import connections, transaction

    bank = pg_bank
    bench = DjangoPostgres(bank.url)
    monkeypatch.setitem(django_settings().DATABASES, "default", bench.settings_dict())
    backends = set[int]()

    def debit(run: Run, order: int) -> None:
        conn = connections["default"]
        with transaction.atomic():
            with conn.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                backends.add(cursor.fetchone()[0])
            run.once(conn, lambda tx: tx.cursor().execute(DEBIT))

    assert_harmless(bank.job(debit), 42, effect=bank.cents)
    assert bank.cents() == 980
    assert len(backends) == 2 + 2 + 2 + 3
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    wait(lambda: bank.ask(others) == 0, "the attempts' connections to end", 20)


def test_a_body_that_locks_the_row_first_is_tried_without_a_deadlock(
    pg_bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt cannot come to its effect before the first one ends: then it comes after it."""
    monkeypatch.setattr(duplicates, "MEET_S", 0.2)
    bank = pg_bank

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            conn.execute("SELECT cents FROM wallet FOR UPDATE")
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)
            conn.commit()

    assert_harmless(bank.job(debit), 42, effect=bank.cents)
    assert bank.cents() == 980


def test_an_attempt_that_the_database_rolled_back_is_delivered_again(
    pg_bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A serialization failure in the caller's own transaction is an error, and no harm."""
    monkeypatch.setattr(duplicates, "MEET_S", 60)
    bank, failures = pg_bank, list[str]()

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            conn.execute("SELECT cents FROM wallet")
            try:
                run.once(conn, lambda tx: tx.execute(DEBIT) and None)
            except psycopg.errors.SerializationFailure as error:
                failures.append(str(error))
                raise
            conn.commit()

    assert_harmless(bank.job(debit), 42, effect=bank.cents)
    assert failures
    assert bank.cents() == 980


def test_a_job_with_slots_is_harmless(bank: Bank) -> None:
    """A slot that is done is no second run, and a slot whose end was never told is run again."""
    found: list[str | None] = []

    def debit(run: Run) -> None:
        found.append(run.slot)
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)

    # Many slots may pass meanwhile; all attempts of a way are at one.
    assert_harmless(bank.job(debit, key=[], every="1s"), effect=bank.cents)
    assert bank.cents() == 980
    assert len(found) == 1 + 2 + 2 + 3
    assert len(set(found)) == 1


def test_one_message_rather_than_two_is_harmless(bank: Bank) -> None:
    """A slot that closes when its run starts is never run again, also where its worker died."""
    runs: list[str | None] = []

    def remind(run: Run) -> None:
        runs.append(run.slot)
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)

    job = bank.job(remind, key=[], every="1d", stake="notify", delivery="at-most-once")
    assert_harmless(job, effect=bank.cents)
    assert len(runs) == 4


def test_each_item_of_a_batch_is_guarded_by_itself(bank: Bank) -> None:
    """Several operations in one run are judged each."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            for item in (1, 2, 3):
                run.once(conn, lambda tx: tx.execute(DEBIT) and None, operation=("item", order, item))

    assert_harmless(bank.job(debit), 42, effect=bank.cents)
    assert bank.cents() == 1000 - 4 * 15


def test_an_effect_that_can_happen_once_for_an_order_needs_new_orders(bank: Bank) -> None:
    """`fresh` gives each way its own; without it the body's error says what to give."""

    def pay(run: Run, order: int, note: str = "") -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: bank.pay(tx, order))

    job = bank.job(pay)
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.UniqueViolation)) as raised:
        assert_harmless(job, "42")
    assert "two at the same time" in raised.value.__notes__[-1]
    assert "fresh=" in raised.value.__notes__[-1]
    assert_harmless(job, fresh=bank.new_order, effect=bank.payments)
    assert_harmless(job, "twenty euros", fresh=lambda: (bank.new_order(),))
    assert bank.payments() == 1 + 8


def test_your_own_constraint_is_tried_with_new_arguments(bank: Bank) -> None:
    """It rejects what the guard's rows know nothing of, so the same arguments would try one way only."""

    def pay(run: Run, order: int) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: bank.pay(tx, order))

    job = bank.job(pay, guard=once(bank.url, constraint="one_payment"))
    with pytest.raises(Refused, match=r"CLM074.*fresh="):
        assert_harmless(job, 42)
    assert_harmless(job, fresh=bank.new_order, effect=bank.payments)
    assert bank.payments() == 4
    with pytest.raises(AssertionError, match="twice in a row: .* was never applied: it had happened before"):
        assert_harmless(job, fresh=lambda: 1)


def test_your_own_constraint_on_a_slot_is_tried_with_earlier_slots(bank: Bank) -> None:
    """A slot is one operation there, and each way needs one that has not happened."""

    def pay(run: Run) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: bank.pay(tx, run.slot))

    job = bank.job(pay, key=[], every="1d", stake="append", guard=once(bank.url, constraint="one_payment"))
    assert_harmless(job, effect=bank.payments)
    assert bank.payments() == 4


def test_a_claimant_that_stops_nothing_is_tried_as_one_that_does(bank: Bank) -> None:
    """What is proved is the guard, so the ways do not follow `mode="observe"` or "off"."""
    for mode in ("observe", "off"):
        bank.claims = Claimant("redis://127.0.0.1:1/0", ledger=bank.claims.ledger.address, mode=mode)
        assert_harmless(plain(bank), 42, effect=bank.cents)
    assert bank.cents() == 1000 - 8 * 5


# -- async -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("running", [False, True], ids=["own loop", "running loop"])
def test_an_async_job_is_harmless(pg_bank: Bank, running: bool) -> None:
    """The same for `async def`, on a loop of its own or on the one that runs."""
    bank, runs = pg_bank, list[int]()

    async def debit(run: AsyncRun, order: int) -> None:
        runs.append(order)
        async with await psycopg.AsyncConnection.connect(bank.url) as conn:
            await run.once(conn, lambda tx: tx.execute(DEBIT))

    job = bank.job(debit)
    if not running:
        assert_harmless(job, 42, effect=bank.cents)
    else:

        async def cents() -> int:
            return bank.cents()

        async def new_order() -> int:
            return bank.new_order()

        async def main() -> None:
            with pytest.raises(Refused, match=r"CLM074.*assert_harmless_async"):
                assert_harmless(job, 42)
            await assert_harmless_async(job, effect=cents, fresh=new_order)

        asyncio.run(main())
        assert set(runs) == {1, 2, 3, 4}
    assert bank.cents() == 980
    assert len(runs) == 9


def test_what_is_cancelled_ends_and_leaves_the_job_as_it_was(pg_bank: Bank) -> None:
    """A test that runs out of time does not leave attempts behind it."""
    bank, ended, began = pg_bank, list[int](), asyncio.Event()

    async def debit(run: AsyncRun, order: int) -> None:
        try:
            began.set()
            await asyncio.sleep(60)
        finally:
            ended.append(order)

    async def main() -> None:
        trying = asyncio.create_task(assert_harmless_async(job, 42))
        await began.wait()
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying
        assert ended == [42]

    job = bank.job(debit)
    asyncio.run(main())
    assert job.body is debit
    assert str(bank.claims.store.address).startswith("redis:")


# -- without a guard -------------------------------------------------------------------------------------------------


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_rebuild_is_harmless_if_its_result_is_the_same(tmp_path: Path) -> None:
    """A job without a guard is judged by what it leaves: the same after any number of runs."""
    claims = Claimant("redis://127.0.0.1:1/0", ledger="sqlite:never.db")
    target, runs = tmp_path / "index", list[str]()

    @claims.job("rebuild", stake="rebuild")
    def rebuild(run: Run) -> None:
        runs.append(run.lease.checked)
        target.write_text("index")

    @claims.job("append", stake="scan")
    def append(run: Run) -> None:
        target.write_text(text_of(target) + "x")

    assert_harmless(rebuild, effect=lambda: text_of(target))
    assert len(runs) == 2 + 2 + 2 + 3
    with pytest.raises(AssertionError, match=r"append: twice in a row: .*must be overwritten"):
        assert_harmless(append, effect=lambda: text_of(target))
    with pytest.raises(Refused, match=r"CLM074.*no guard, so nothing says"):
        assert_harmless(rebuild)


def test_a_guard_that_is_out_of_sight_is_judged_by_the_effect(bank: Bank) -> None:
    """What is attested must hold: one effect for each order."""

    def pay(run: Run, order: int) -> None:
        with bank.open() as conn:
            conn.execute(f"INSERT INTO paid VALUES ('{order}') ON CONFLICT (what) DO NOTHING")
            conn.commit()

    attested = guards.Attested("unique index one_payment")
    job = bank.job(pay, guard=attested)
    with pytest.raises(Refused, match=r"CLM074.*out of sight, so nothing says"):
        assert_harmless(job, fresh=bank.new_order)
    with pytest.raises(Refused, match=r"CLM074.*fresh="):
        assert_harmless(job, 1, effect=bank.payments)
    assert_harmless(job, fresh=bank.new_order, effect=bank.payments)
    assert bank.payments() == 4
    harmful = bank.job(lambda run, order: bank.debit_by_itself(), guard=attested)
    with pytest.raises(AssertionError, match="twice in a row: it changed the effect by -10"):
        assert_harmless(harmful, fresh=bank.new_order, effect=bank.cents)


def test_what_cannot_be_tried_is_refused(bank: Bank) -> None:
    """A message without a guard is two messages; a function that is no job has no duplicates."""
    remind = bank.claims.job("remind", stake="notify", delivery="at-least-once")(lambda run: None)
    with pytest.raises(Refused, match=r"CLM074: remind: .*'notify' and without a guard does harm"):
        assert_harmless(remind, effect=bank.cents)
    with pytest.raises(Refused, match=r"CLM074: assert_harmless needs a job.*not function"):
        assert_harmless(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"CLM074: .*effect= gave \[\]"):
        assert_harmless(plain(bank), 42, effect=list)
    with pytest.raises(Refused, match=r"CLM074: .*effect= gave True"):
        assert_harmless(plain(bank), 42, effect=lambda: True)
