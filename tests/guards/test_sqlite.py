"""What is SQLite's own: one writer, snapshots that go stale, tables made at first use, connections with flags."""

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from claimant._model.errors import Refused
from claimant._model.events import Event
from claimant._model.operation import identify
from claimant._model.outcome import AnswerKind
from claimant.guards import once, rejections
from tests.guards import benches
from tests.guards.attempts import CHARGE, attempt, attempt_aio, charge, core_charge


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(benches.sqlite_file(tmp_path))


@pytest.fixture
def conn(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=0.1)) as conn:
        yield conn


def notes(path: Path) -> int:
    with closing(sqlite3.connect(path)) as conn:
        return int(conn.execute("SELECT count(*) FROM notes").fetchone()[0])


def test_stale_snapshot_is_the_callers(path: Path, conn: sqlite3.Connection) -> None:
    """A caller that has read cannot write after somebody else did; the error is its own and says what to do."""
    conn.execute("BEGIN")
    conn.execute("SELECT count(*) FROM notes").fetchall()
    with closing(sqlite3.connect(path)) as other:
        attempt(once(path), other)
    with pytest.raises(sqlite3.OperationalError) as caught:
        attempt(once(path), conn, run_id="run-2")
    assert caught.value.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT"
    assert "run again as a whole" in caught.value.__notes__[0]
    conn.rollback()
    assert attempt(once(path), conn, run_id="run-2").answer.kind is AnswerKind.DUPLICATE


def test_joined_while_somebody_writes_is_in_flight(path: Path, conn: sqlite3.Connection) -> None:
    """A caller whose transaction cannot have the write lock is told `in_flight`, and its transaction stays usable."""
    conn.execute("BEGIN")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        answer = attempt(once(path, longest="200ms"), conn).answer
        writer.rollback()
    assert answer.kind is AnswerKind.IN_FLIGHT
    assert attempt(once(path), conn).answer.kind is AnswerKind.APPLIED
    conn.commit()
    assert notes(path) == 1


def test_own_patience_is_given_back(path: Path, conn: sqlite3.Connection) -> None:
    """The connection's busy_timeout is as it was, after success and after a wait in vain."""
    before = conn.execute("PRAGMA busy_timeout").fetchone()
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert attempt(once(path, longest="50ms"), conn).answer.kind is AnswerKind.IN_FLIGHT
        assert conn.execute("PRAGMA busy_timeout").fetchone() == before
        writer.rollback()
    attempt(once(path), conn)
    assert conn.execute("PRAGMA busy_timeout").fetchone() == before


def test_in_flight_is_counted_once_the_lock_is_free(path: Path, conn: sqlite3.Connection) -> None:
    """What cannot be counted, because the database stays locked, is told as an event instead."""
    events: list[Event] = []
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        attempt(once(path, longest="50ms"), conn, events=events)
        writer.rollback()
    assert [event.kind for event in events] == ["guard.uncounted", "guard.in_flight"]


def test_waiting_does_not_stop_the_loop(path: Path) -> None:
    """Inside an async body a plain connection that waits for the lock leaves the loop to the one that has it."""
    guard = once(path)

    async def slow(tx: sqlite3.Connection) -> str:
        tx.execute(CHARGE)
        for _ in range(20):
            await asyncio.sleep(0.005)
        return "first"

    async def one(run_id: str) -> AnswerKind:
        with closing(sqlite3.connect(path, timeout=30)) as conn:
            return (await attempt_aio(guard, conn, slow, run_id)).answer.kind

    async def scenario() -> tuple[tuple[AnswerKind, ...], float]:
        began = time.monotonic()
        answers = await asyncio.gather(one("run-1"), one("run-2"), one("run-3"))
        return answers, time.monotonic() - began

    answers, took = asyncio.run(scenario())
    assert sorted(answers) == [AnswerKind.APPLIED, AnswerKind.DUPLICATE, AnswerKind.DUPLICATE]
    assert took < 5
    assert notes(path) == 1


def test_readers_that_keep_the_commit_away(tmp_path: Path) -> None:
    """Without WAL a reader delays the COMMIT: it is tried again, and given up with nothing done."""
    path = tmp_path / "rollback.db"
    with closing(sqlite3.connect(path)) as writer, closing(sqlite3.connect(path, timeout=0)) as reader:
        writer.executescript("CREATE TABLE notes (text TEXT)")
        attempt(once(path), writer, lambda tx: None, "run-0")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM notes").fetchall()
        writer.execute("PRAGMA busy_timeout=0")
        other = identify("debit-wallet", {"order_id": "43"})
        answer = attempt(once(path, longest="100ms"), writer, operation=other).answer
        assert (answer.kind, "readers" in answer.reason) == (AnswerKind.REFUSED, True)
        assert not writer.in_transaction
        reader.rollback()
        assert notes(path) == 0
        assert attempt(once(path), writer, operation=other).answer.kind is AnswerKind.APPLIED


def test_two_processes_make_the_tables_at_once(path: Path) -> None:
    """Guard tables are made at first use, by however many processes come first; each counts its rejection."""
    code = textwrap.dedent(
        """
        import sqlite3, sys
        from claimant.guards import once
        from tests.guards.attempts import attempt
        with sqlite3.connect(sys.argv[1]) as conn:
            sys.stdin.readline()
            print(attempt(once("sqlite:" + sys.argv[1]), conn, run_id=sys.argv[2]).answer.kind.value)
        conn.close()
        """
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), f"run-{at}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for at in range(3)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    said = sorted(child.communicate(timeout=60)[0].strip() for child in children)
    assert said == ["applied", "duplicate", "duplicate"]
    assert notes(path) == 1
    assert sum(row.count for row in rejections(f"sqlite:{path}")) == 2


def test_killed_after_the_effect_leaves_nothing(path: Path) -> None:
    """A process killed between effect and COMMIT leaves neither, and the next attempt applies."""
    code = textwrap.dedent(
        """
        import os, signal, sqlite3, sys
        from claimant.guards import once
        from tests.guards.attempts import CHARGE, attempt

        def effect(tx):
            tx.execute(CHARGE)
            os.kill(os.getpid(), signal.SIGKILL)

        attempt(once("sqlite:" + sys.argv[1]), sqlite3.connect(sys.argv[1]), effect)
        """
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60).returncode == -9
    assert notes(path) == 0
    with closing(sqlite3.connect(path)) as conn:
        assert attempt(once(path), conn, run_id="run-2").answer.kind is AnswerKind.APPLIED
    assert notes(path) == 1


@pytest.mark.parametrize("how", ["with tx", "executescript", "rollback", "commit and begin"])
def test_ending_the_transaction_inside_the_effect_is_told_apart(
    path: Path, conn: sqlite3.Connection, how: str
) -> None:
    """Whether the effect committed or rolled back by itself, the refusal says which, and what that means."""

    def effect(tx: sqlite3.Connection) -> None:
        tx.execute(CHARGE)
        match how:
            case "with tx":
                with tx:
                    tx.execute(CHARGE)
            case "executescript":
                tx.executescript(CHARGE)
            case "rollback":
                tx.rollback()
            case _:
                tx.commit()
                tx.execute(CHARGE)

    with pytest.raises(
        Refused, match="rolled the transaction back" if how == "rollback" else "the effect committed"
    ):
        attempt(once(path), conn, effect)
    assert not conn.in_transaction


def test_sqlalchemy_with_its_begin_recipe(path: Path) -> None:
    """An engine that emits BEGIN by itself is waited for like any other."""
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"isolation_level": None})
    sa.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))
    guard = once(engine)
    said = [attempt(guard, engine, core_charge, run_id).answer.kind for run_id in ("run-1", "run-2")]
    engine.dispose()
    assert said == [AnswerKind.APPLIED, AnswerKind.DUPLICATE]
    assert notes(path) == 1


def test_sqlalchemy_commit_of_the_caller_keeps_what_was_joined(path: Path) -> None:
    """SQLAlchemy counts a transaction that SQLite has not begun: the guard begins it, and the caller's commit ends it."""
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as conn:
        conn.exec_driver_sql("SELECT 1")
        said = attempt(once(path), conn, core_charge)
        assert said.joined
        assert notes(path) == 0
        conn.commit()
    engine.dispose()
    assert notes(path) == 1


def test_hundreds_of_operations_by_several_writers(path: Path) -> None:
    """Several threads over the same operations: each has one effect, each other attempt is counted."""
    guard, operations, writers = once(path), 60, 4

    def work(writer: int) -> None:
        with closing(sqlite3.connect(path, timeout=0)) as conn:
            for at in range(operations):
                operation = identify("debit-wallet", {"order_id": str(at)})
                attempt(guard, conn, charge, f"run-{writer}-{at}", operation=operation)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert notes(path) == operations
    assert sum(row.count for row in rejections(f"sqlite:{path}")) == operations * (writers - 1)


def test_autocommit_attribute(path: Path) -> None:
    """Python 3.12's autocommit=False has a transaction always open: joined, and told apart from a committed one."""
    if sys.version_info < (3, 12):
        # The attribute is not there; an open transaction on an old connection asks the same question.
        options: dict[str, Any] = {}
    else:
        options = {"autocommit": False}
    with closing(sqlite3.connect(path, **options)) as conn:
        if not conn.in_transaction:
            conn.execute("BEGIN")
        said = attempt(once(path), conn)
        assert said.joined
        assert said.still_open is not None
        assert said.still_open()
        conn.commit()
        assert not said.still_open()
        if not conn.in_transaction:
            conn.execute("BEGIN")
        assert not said.still_open()
        conn.rollback()
    assert notes(path) == 1
