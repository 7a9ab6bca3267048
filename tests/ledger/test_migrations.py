"""A ledger of an earlier version is brought up to date with everything that is in it; a later one may still let us in."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from claimant._drive.ports import LedgerPort
from claimant._model.errors import Refused
from claimant._model.records import Began, Begin, SlotClosed
from claimant.ledger import init, open_ledger, schema, sql_for
from claimant.testing.ledger_rows import SLOT, answer, ended, started
from claimant.testing.ledger_suite import RecordSuite
from tests.ledger.conftest import Open
from tests.support.servers import wait

HERE = Path(__file__).parent
NOW = 1_796_000_000_000
# A job, a slot that it closed and the run that did: written by the first version.
ROWS = """
INSERT INTO claimant_jobs (id, namespace, job, key, stake, runs, last_run, last_slot, last_started, last_ended, last_success, last_kind)
  VALUES ({job}, 'shop', 'rebuild-index', '', 'rebuild', 1, {run}, '2026-11-30T21:00:00Z', 1, 2, 2, 'ran');
INSERT INTO claimant_slots (id, job, slot, attempts, last_run, last_started, closed, closed_by, completed, result)
  VALUES ({slot}, {job}, '2026-11-30T21:00:00Z', 1, {run}, 1, 2, 'r1', 1, '7');
INSERT INTO claimant_runs (id, run_id, job, slot, slot_text, attempt, stake, guarded, holder, claim_at_start, lifetime_ms,
    stall_bound_ms, max_run_ms, overlapping, started, ended, kind, claim, result)
  VALUES ({run}, 'r1', {job}, {slot}, '2026-11-30T21:00:00Z', 1, 'rebuild', 0, 'web-1:7', 'kept', 30000, 90000, 60000, 0, 1, 2,
    'ran', 'kept', '7');
"""


def old_rows(quote: str) -> str:
    from claimant.ledger.text import digest

    ids = {
        "job": digest("shop", "rebuild-index", ""),
        "slot": digest("shop", "rebuild-index", "", SLOT),
        "run": digest("shop", "r1"),
    }
    return ROWS.format(**{name: quote % value.hex() for name, value in ids.items()})


@pytest.fixture
def old_sqlite(tmp_path: Path) -> str:
    """A ledger file of the first version, with a closed slot in it."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((HERE / "schema_1_sqlite.sql").read_text() + old_rows("X'%s'"))
        connection.commit()
    return f"sqlite:{path}"


@pytest.fixture
def old_postgres(pg_dsn: str) -> str:
    """The same in PostgreSQL."""
    with psycopg.connect(pg_dsn) as connection:
        text = (HERE / "schema_1_postgresql.sql").read_text() + old_rows("'\\x%s'::bytea")
        connection.execute(text.encode())
    return pg_dsn


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest) -> str:
    """A ledger of the first version of each kind in turn."""
    return request.getfixturevalue(f"old_{request.param}")


def check(url: str, opened: Open) -> None:
    ledger = opened(url)
    closed = ledger.call(Begin(started(slot=SLOT)))
    assert isinstance(closed, SlotClosed)
    assert (closed.run_id, closed.completed, closed.result) == ("r1", True, "7")
    run = started(
        slot="next", guard="once in db", mode="observe", forced=True, would="held", schedule="every 1 h"
    )
    assert isinstance(ledger.call(Begin(run)), Began)
    ledger.call(ended(run))
    [row] = ledger.jobs("rebuild-index")
    assert (row.runs, row.guard, row.mode, row.schedule, row.would_skip) == (
        2,
        "once in db",
        "observe",
        "every 1 h",
        1,
    )
    old, new = sorted(ledger.runs(job="rebuild-index"), key=lambda each: each.started)
    assert (old.run_id, old.mode, old.forced, old.would) == ("r1", "enforce", False, "")
    assert (new.mode, new.forced, new.would) == ("observe", True, "held")


def test_an_old_ledger_keeps_what_it_says(old: str, opened: Open) -> None:
    """After `init` a slot that was closed is closed, runs are there, and what is new can be written."""
    init(old)
    check(old, opened)
    init(old)
    check_versions(old)


def check_versions(url: str) -> None:
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection:
            rows = connection.execute("SELECT version, compatible FROM claimant_ledger").fetchall()
    else:
        with psycopg.connect(url) as pg:
            rows = pg.execute("SELECT version, compatible FROM claimant_ledger").fetchall()
    assert rows == [(schema.VERSION, schema.COMPATIBLE)]


def test_an_old_file_is_brought_up_to_date_by_its_first_use(old_sqlite: str, opened: Open) -> None:
    """A host's own ledger needs no `init`, also where eight threads with connections of their own come at once."""
    ledgers = [opened(old_sqlite) for _ in range(8)]
    errors: list[BaseException] = []

    def use(ledger) -> None:
        try:
            ledger.call(Begin(started(slot=SLOT)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(ledger,)) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    check(old_sqlite, opened)
    check_versions(old_sqlite)


class TestOneStepBack(RecordSuite):
    """All that the first version of the tables was made for works in them, for a library that would like more columns."""

    @pytest.fixture
    def open_one(self, opened: Open, pg_dsn: str) -> Callable[[str], LedgerPort]:
        with psycopg.connect(pg_dsn) as connection:
            connection.execute((HERE / "schema_1_postgresql.sql").read_text().encode())
        return lambda namespace: opened(f"{pg_dsn}?deadline=15s", namespace)  # the machine may be busy


def test_an_old_database_is_used_until_init(
    old_postgres: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that come before `init` go on without the new columns, on the same connection also after it; new ones fill them."""
    monkeypatch.setattr("claimant.ledger.lines.SHORTEST_IDLE_MS", 60_000)
    before = open_ledger(old_postgres, namespace="shop")
    observed = started("scan", mode="observe", would="held", forced=True, guard="g", schedule="every 1 h")
    closed = before.call(Begin(started(slot=SLOT)))
    assert isinstance(closed, SlotClosed)
    assert isinstance(before.call(Begin(observed)), Began)
    assert {row.job: (row.mode, row.would_skip, row.forced) for row in before.jobs()} == {
        "rebuild-index": ("enforce", 0, 0),
        "scan": ("enforce", 0, 0),
    }
    assert {row.would for row in before.runs()} == {""}
    assert before.survey(namespace="shop").version == 1
    with psycopg.connect(old_postgres) as connection:
        connection.execute(sql_for(old_postgres).encode())  # what a reviewer applies
    before.call(ended(observed, answers=(answer("would_reject"),)))
    assert before.survey(namespace="shop").version == 1, "the connection is the one from before"
    check(old_postgres, opened)
    check_versions(old_postgres)
    after = open_ledger(old_postgres, namespace="shop")
    assert after.survey(namespace="shop").version == schema.VERSION
    assert [(row.last_kind, row.mode) for row in after.jobs("scan")] == [("ran", "enforce")]
    before.close()
    after.close()


def test_tables_that_are_two_steps_back_are_refused(
    old_postgres: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too old for this library is neither used nor changed by a job: it says what to run."""
    monkeypatch.setattr("claimant.ledger.schema.GOES_ON_WITH", 2)
    ledger = opened(old_postgres)
    with pytest.raises(Refused, match=r"CLM080.*claimant init"):
        ledger.call(Begin(started()))
    init(old_postgres)
    assert isinstance(ledger.call(Begin(started())), Began)


@pytest.mark.parametrize("held", ["read", "written"])
def test_init_holds_up_no_job(old_postgres: str, opened: Open, held: str) -> None:
    """While a backup or another transaction keeps `init` from altering a table, jobs pass it within their deadline."""
    done: list[object] = []

    def bring_up_to_date() -> None:
        try:
            done.append(init(old_postgres))
        except BaseException as error:
            done.append(error)

    ledger = opened(f"{old_postgres}?deadline=1s")
    thread = threading.Thread(target=bring_up_to_date)
    with psycopg.connect(old_postgres) as backup, psycopg.connect(old_postgres, autocommit=True) as watch:
        backup.execute("SELECT count(*) FROM claimant_jobs")
        if held == "written":
            backup.execute("UPDATE claimant_jobs SET skips = skips")
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        for number in range(3):
            wait(lambda: watch.execute(waiting).fetchall() != [(0,)], "init to wait for the table", 10)
            run = started("debit", key=f"n={number}")
            assert isinstance(ledger.call(Begin(run)), Began)
            ledger.call(ended(run))
        assert done == []
    thread.join(20)
    assert done == [old_postgres]
    assert len(ledger.jobs("debit")) == 3
    check(old_postgres, opened)


def test_a_later_version_that_lets_us_in_is_used(url: str, opened: Open) -> None:
    """A fleet that is upgraded one host at a time goes on: additions say that older libraries may stay."""
    opened(url).call(Begin(started()))
    change = "UPDATE claimant_ledger SET version = 9"
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection:
            connection.execute(change)
            connection.commit()
    else:
        with psycopg.connect(url) as pg:
            pg.execute(change)
            pg.execute("ALTER TABLE claimant_jobs ADD COLUMN since_nine TEXT NOT NULL DEFAULT ''")
        init(url)
    assert isinstance(opened(url).call(Begin(started())), Began)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_old_and_new_ledgers_have_the_same_columns(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, pg_dsn: str
) -> None:
    """A ledger that was brought up to date is what a new one is, column by column."""
    old = request.getfixturevalue(f"old_{kind}")
    if kind == "sqlite":
        new = f"sqlite:{tmp_path / 'new.db'}"
        init(old)
        init(new)
        assert columns_of_file(old) == columns_of_file(new)
        return
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        init(old)
        before = columns_of_database(connection)
        connection.execute(
            "DROP TABLE claimant_ledger, claimant_jobs, claimant_runs, claimant_slots, claimant_skips, claimant_answers"
        )
        init(pg_dsn)
        assert before == columns_of_database(connection)
        assert len(before) > 60


def columns_of_file(url: str) -> set[tuple[object, ...]]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            (table, *column[1:])
            for table in tables
            for column in connection.execute(f"PRAGMA table_info({table})")
        }


def columns_of_database(connection: psycopg.Connection[tuple[object, ...]]) -> set[tuple[object, ...]]:
    return set(
        connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
            " WHERE table_name LIKE 'claimant%'"
        ).fetchall()
    )


def test_opening_an_old_ledger_needs_nothing_but_its_file(old_sqlite: str) -> None:
    """Reading alone brings it up to date as well: `status` of a new library on an old host's ledger works."""
    with closing(open_ledger(old_sqlite, namespace="shop")) as ledger:
        [row] = ledger.jobs()
    assert (row.job, row.runs, row.mode) == ("rebuild-index", 1, "enforce")
