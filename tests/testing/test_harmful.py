"""`assert_harmless` finds the jobs whose duplicates do harm: planted mistakes, each as somebody would write it."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import psycopg
import pytest

from claimant import AsyncRun, Run
from claimant._model.ops import Release
from claimant.testing import assert_harmless, duplicates
from tests.testing.bank import DEBIT, Bank


@pytest.mark.claimant_unguarded("what this test is about")
def test_a_guard_that_is_not_used(bank: Bank) -> None:
    """A body that does its effect by itself has no guard, whatever its declaration says."""

    def debit(run: Run, order: int) -> None:
        bank.debit_by_itself()

    with pytest.raises(
        AssertionError, match=r"debit-0: twice in a row: 2 starts, and none of them used .*run\.once"
    ):
        assert_harmless(bank.job(debit), 42)


def test_an_effect_before_the_guard(bank: Bank) -> None:
    """What commits by itself before the guard's transaction happens again with each attempt; only its value shows it."""

    def debit(run: Run, order: int) -> None:
        bank.debit_by_itself()
        with bank.open() as conn:
            run.once(conn, lambda tx: None)

    job = bank.job(debit)
    assert_harmless(job, 42)  # the answers alone cannot show it
    with pytest.raises(
        AssertionError, match=r"twice in a row: it changed the effect by -10, and one run .* -5"
    ):
        assert_harmless(job, 43, effect=bank.cents)


def test_an_effect_after_the_guard(bank: Bank) -> None:
    """What follows the guarded effect follows a duplicate as well."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: None)
        bank.debit_by_itself()

    with pytest.raises(AssertionError, match=r"twice in a row: it changed the effect by -10"):
        assert_harmless(bank.job(debit), 42, effect=bank.cents)


def test_an_effect_that_follows_the_first_answer(bank: Bank) -> None:
    """Done by the first attempt only, and outside of its transaction: the worker that dies in between has lost it."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            answer = run.once(conn, lambda tx: None)
        if answer.kind == "applied":
            bank.debit_by_itself()

    with pytest.raises(
        AssertionError, match=r"the reply lost .*: it changed the effect by 0, and one run .* -5"
    ):
        assert_harmless(bank.job(debit), 42, effect=bank.cents)


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_an_effect_inside_the_guard_on_another_connection(pg_bank: Bank, colour: str) -> None:
    """A rollback does not reach it: the worker that dies before the COMMIT leaves it done, and the next does it again."""
    bank = pg_bank

    def outside(tx: object) -> None:
        bank.debit_by_itself()

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            run.once(conn, outside)

    async def debit_later(run: AsyncRun, order: int) -> None:
        async def later(tx: object) -> None:
            outside(tx)

        async with await psycopg.AsyncConnection.connect(bank.url) as conn:
            await run.once(conn, later)

    with pytest.raises(
        AssertionError, match=r"the reply lost .*: it changed the effect by -10, .*a call, a mail"
    ):
        assert_harmless(bank.job(debit if colour == "plain" else debit_later), 42, effect=bank.cents)


def test_an_identity_of_each_attempts_own(bank: Bank) -> None:
    """A key that is made in the run makes every attempt a first one."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None, operation=("debit", str(uuid.uuid4())))

    with pytest.raises(
        AssertionError, match="twice in a row: the starts named different operations .*business key"
    ):
        assert_harmless(bank.job(debit), 42)


def test_an_identity_that_is_asked_of_the_world(bank: Bank) -> None:
    """Numbered by what is there already, attempts at the same time agree, and one after another do not."""

    def debit(run: Run, order: int) -> None:
        number = bank.cents()
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None, operation=("debit", number))

    with pytest.raises(AssertionError, match="named different operations"):
        assert_harmless(bank.job(debit), 42)


def test_a_check_before_the_effect_is_no_guard(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read, then write: right twice in a row, and wrong for two at the same time."""
    monkeypatch.setattr(duplicates, "MEET_S", 60)  # they do meet, also on a machine that is busy

    def debit(run: Run, order: int) -> None:
        done = bank.ask(f"SELECT count(*) FROM paid WHERE what = '{order}'")
        with bank.open() as conn:
            run.once(conn, lambda tx: None)
        if not done:
            bank.debit_by_itself()
            with bank.open() as conn:
                conn.execute(f"INSERT INTO paid VALUES ('{order}') ON CONFLICT (what) DO NOTHING")
                conn.commit()

    with pytest.raises(
        AssertionError, match="two at the same time: it changed the effect by -10, and one run .* -5"
    ):
        assert_harmless(bank.job(debit), fresh=bank.new_order, effect=bank.cents)


def test_a_guard_row_that_is_deleted(bank: Bank) -> None:
    """Somebody's clean-up that forgets the operation makes the next attempt a first one."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)
            conn.execute("DELETE FROM claimant_guard")
            conn.commit()

    with pytest.raises(AssertionError, match=r"was applied 2 times\. Its row is not kept"):
        assert_harmless(bank.job(debit), 42)


def test_parameters_that_differ_between_attempts(bank: Bank) -> None:
    """The same order with another amount is a mismatch, which nobody has resolved."""
    amounts = iter(range(100))

    def debit(run: Run, order: int, cents: int) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)

    job = bank.job(debit)
    plain_call = type(job).__call__

    class Odd(type(job)):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return plain_call(self, *args, cents=next(amounts))

    job.__class__ = Odd
    with pytest.raises(AssertionError, match="was answered 'mismatch'"):
        assert_harmless(job, 42)


def test_an_effect_value_that_sees_nothing(bank: Bank) -> None:
    """A probe of the wrong thing would make any job look harmless."""

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)

    with pytest.raises(AssertionError, match="effect= gave 7 before the first run and after it"):
        assert_harmless(bank.job(debit), 42, effect=lambda: 7)


def test_what_the_body_raises_is_raised(bank: Bank) -> None:
    """A job that fails has not been shown to be harmless."""

    def debit(run: Run, order: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        assert_harmless(bank.job(debit), 42)
    assert "assert_harmless, twice in a row" in raised.value.__notes__[-1]


def test_a_job_that_fails_beside_another_is_started_again_and_then_believed(bank: Bank) -> None:
    """One failure of two is a redelivery; a second one is the body's own."""
    numbers = itertools.count(1)

    def debit(run: Run, order: int) -> None:
        number = next(numbers)
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)
        if number in (4, 5):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        assert_harmless(bank.job(debit), 42)
    assert "two at the same time" in raised.value.__notes__[-1]


def test_a_way_that_did_not_take_place_does_not_pass(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second start is turned away, two holders were never tried."""
    monkeypatch.setattr(duplicates, "Release", lambda key, value, until: Release(key, "another's", until))

    def debit(run: Run, order: int) -> None:
        with bank.open() as conn:
            run.once(conn, lambda tx: tx.execute(DEBIT) and None)

    with pytest.raises(AssertionError, match=r"the claim lost .*could not be tried.*held"):
        assert_harmless(bank.job(debit), 42)
