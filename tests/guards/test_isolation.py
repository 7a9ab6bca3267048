"""The matrix of isolation levels, outcomes of the first attempt, and snapshots taken before or after it."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from claimant._model.outcome import AnswerKind
from claimant.guards import Said, once, rejections
from tests.guards.attempts import CHARGE, attempt, charge, core_charge, notes, rows

LEVELS = [
    psycopg.IsolationLevel.READ_COMMITTED,
    psycopg.IsolationLevel.REPEATABLE_READ,
    psycopg.IsolationLevel.SERIALIZABLE,
]


def connect(url: str, level: psycopg.IsolationLevel) -> psycopg.Connection[Any]:
    conn = psycopg.connect(url)
    conn.isolation_level = level
    return conn


def second_while_first_is_open(
    url: str, level: psycopg.IsolationLevel, *, fails: bool, second: Callable[[psycopg.Connection[Any]], Any]
) -> Any:
    """The result of `second`, which runs into a first attempt that ends (as told) only once somebody waits for it."""
    guard, inside, end = once(url), threading.Event(), threading.Event()
    found: list[Any] = []

    def effect(tx: Any) -> str:
        tx.execute(CHARGE)
        inside.set()
        assert end.wait(20)
        if fails:
            raise ValueError("the first one failed")
        return "first"

    def run_first() -> None:
        with connect(url, level) as conn:
            try:
                attempt(guard, conn, effect, "run-1")
            except ValueError:
                conn.rollback()

    def run_second() -> None:
        with connect(url, level) as conn:
            try:
                found.append(second(conn))
            except BaseException as error:
                conn.rollback()
                found.append(error)

    first = threading.Thread(target=run_first)
    first.start()
    assert inside.wait(20)
    other = threading.Thread(target=run_second)
    other.start()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while rows(url, waiting)[0][0] == 0:
        assert other.is_alive()
    end.set()
    first.join(20)
    other.join(20)
    return found[0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fails", [False, True])
def test_owned_at_any_level(guarded: str, level: psycopg.IsolationLevel, fails: bool) -> None:
    """Owned: a first attempt that commits makes a duplicate, one that rolls back makes way; never an error, one effect."""
    said: Said[Any] = second_while_first_is_open(
        guarded, level, fails=fails, second=lambda conn: attempt(once(guarded), conn, charge, "run-2")
    )
    assert isinstance(said, Said), said
    assert said.answer.kind is (AnswerKind.APPLIED if fails else AnswerKind.DUPLICATE)
    assert said.answer.value == ("ok" if fails else "first")
    assert notes(guarded) == 1
    assert sum(row.count for row in rejections(guarded)) == (0 if fails else 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fails", [False, True])
def test_joined_with_a_snapshot_from_before(guarded: str, level: psycopg.IsolationLevel, fails: bool) -> None:
    """Joined above READ COMMITTED: a first that committed after the caller's snapshot is a 40001, and it is the caller's."""

    def second(conn: psycopg.Connection[Any]) -> Any:
        conn.execute("SELECT count(*) FROM notes")
        said = attempt(once(guarded), conn, charge, "run-2")
        conn.commit()
        return said

    said = second_while_first_is_open(guarded, level, fails=fails, second=second)
    if fails or level is psycopg.IsolationLevel.READ_COMMITTED:
        assert isinstance(said, Said), said
        assert said.answer.kind is (AnswerKind.APPLIED if fails else AnswerKind.DUPLICATE)
    else:
        assert isinstance(said, psycopg.errors.SerializationFailure)
        assert "run again as a whole" in said.__notes__[0]
    assert notes(guarded) == 1
    assert rejections(guarded) == []


@pytest.mark.parametrize("level", LEVELS)
def test_joined_with_a_snapshot_from_after(guarded: str, level: psycopg.IsolationLevel) -> None:
    """A first that committed before the caller's snapshot is an ordinary duplicate at every level."""
    guard = once(guarded)
    with connect(guarded, level) as conn:
        attempt(guard, conn, charge, "run-1")
        conn.execute("SELECT count(*) FROM notes")
        assert attempt(guard, conn, charge, "run-2").answer.kind is AnswerKind.DUPLICATE
        conn.execute(CHARGE)
        conn.commit()
    assert notes(guarded) == 2


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_many_at_once_at_any_level(guarded: str, level: str) -> None:
    """Twelve at once on one engine: one effect, eleven counted, no error."""
    engine = sa.create_engine(
        guarded.replace("postgresql:", "postgresql+psycopg:"), isolation_level=level, pool_size=12
    )
    guard, answers = once(engine), list[AnswerKind]()

    def one(at: int) -> None:
        answers.append(attempt(guard, engine, core_charge, f"run-{at}").answer.kind)

    threads = [threading.Thread(target=one, args=(at,)) for at in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    engine.dispose()
    assert sorted(answers) == [AnswerKind.APPLIED] + [AnswerKind.DUPLICATE] * 11
    assert notes(guarded) == 1
    assert sum(row.count for row in rejections(guarded)) == 11


def test_deadlock_of_two_effects_is_run_again(guarded: str) -> None:
    """Two owned effects that deadlock both come to apply: the victim's whole transaction is run again."""
    with psycopg.connect(guarded) as conn:
        conn.execute("INSERT INTO debits VALUES (1, 1), (2, 1)")
    guard, both, tries = once(guarded), threading.Barrier(2), list[int]()

    def effect(first: int, second: int) -> Callable[[Any], None]:
        def body(tx: Any) -> None:
            tries.append(first)
            tx.execute("UPDATE debits SET amount = amount + 1 WHERE order_id = %s", (first,))
            if tries.count(first) == 1:
                both.wait(20)
            tx.execute("UPDATE debits SET amount = amount + 1 WHERE order_id = %s", (second,))

        return body

    answers: list[Any] = []

    def one(first: int, second: int) -> None:
        from claimant._model.operation import identify

        with psycopg.connect(guarded) as conn:
            conn.execute("SET deadlock_timeout = '50ms'")
            conn.commit()
            operation = identify("transfer", {"from": str(first)})
            answers.append(
                attempt(guard, conn, effect(first, second), f"run-{first}", operation=operation).answer.kind
            )

    threads = [threading.Thread(target=one, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [AnswerKind.APPLIED] * 2
    assert sorted(rows(guarded, "SELECT amount FROM debits")) == [(3,), (3,)]
    assert len(tries) == 3
