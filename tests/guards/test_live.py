"""What is refused because of what the live database is, before anything is done in it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from claimant._model.errors import Refused
from claimant._model.outcome import AnswerKind
from claimant.guards import init, once, rejections
from tests.guards import benches
from tests.guards.attempts import attempt, charge, core_charge, notes


@pytest.mark.parametrize("pragma", ["synchronous=OFF", "journal_mode=MEMORY", "journal_mode=OFF"])
def test_sqlite_that_forgets_is_refused(tmp_path: Path, pragma: str) -> None:
    """Settings with which a crash undoes a commit are refused on the very connection that has them."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE notes (text TEXT)")
        conn.execute(f"PRAGMA {pragma}")
        with pytest.raises(Refused, match="CLM041"):
            attempt(once(path), conn)
        assert not conn.in_transaction
        assert conn.execute("SELECT count(*) FROM notes").fetchone() == (0,)


def test_sqlite_in_memory_is_refused(tmp_path: Path) -> None:
    """A handle of a database in memory is refused although a file was declared."""
    with closing(sqlite3.connect(":memory:")) as conn, pytest.raises(Refused, match="CLM041"):
        attempt(once(tmp_path / "app.db"), conn)
    engine = sa.create_engine("sqlite://")
    with pytest.raises(Refused, match="CLM041"):
        attempt(once(tmp_path / "app.db"), engine, core_charge)
    engine.dispose()


def test_another_file_is_refused(tmp_path: Path) -> None:
    """The guard row must be in the file where the effect is."""
    with closing(sqlite3.connect(tmp_path / "other.db")) as conn, pytest.raises(Refused, match="CLM044"):
        attempt(once(tmp_path / "app.db"), conn)


def test_the_same_file_by_another_name_is_accepted(tmp_path: Path) -> None:
    """A link to the declared file is the declared file."""
    path = Path(benches.sqlite_file(tmp_path))
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with closing(sqlite3.connect(link)) as conn:
        assert attempt(once(path), conn).answer.kind is AnswerKind.APPLIED


def test_another_dialect_is_refused(tmp_path: Path, guarded: str) -> None:
    """A handle of another kind of database is refused."""
    with closing(sqlite3.connect(tmp_path / "app.db")) as conn, pytest.raises(Refused, match="CLM044"):
        attempt(once(guarded), conn)
    with psycopg.connect(guarded) as conn, pytest.raises(Refused, match="CLM044"):
        attempt(once(tmp_path / "app.db"), conn)


def test_another_database_of_the_server_is_refused(guarded: str, make_database: Callable[[], str]) -> None:
    """The declared database's name is compared with the handle's, through psycopg and SQLAlchemy."""
    other = make_database()
    with psycopg.connect(other) as conn, pytest.raises(Refused, match="CLM044"):
        attempt(once(guarded), conn)
    engine = sa.create_engine(other.replace("postgresql:", "postgresql+psycopg:"))
    with pytest.raises(Refused, match="CLM044"):
        attempt(once(guarded), engine, core_charge)
    engine.dispose()


def test_missing_tables_say_what_to_run(pg_dsn: str) -> None:
    """On PostgreSQL the tables are made by `init`, and without them nothing is done."""
    with psycopg.connect(pg_dsn) as conn:
        conn.execute("CREATE TABLE notes (text TEXT)")
        conn.commit()
        with pytest.raises(Refused, match="claimant init --guard"):
            attempt(once(pg_dsn), conn)
        with pytest.raises(Refused, match="claimant init --guard"):
            rejections(pg_dsn)
        assert notes(pg_dsn) == 0
        guard = once(pg_dsn)
        init(pg_dsn)
        init(pg_dsn)
        assert attempt(guard, conn).answer.kind is AnswerKind.APPLIED


@pytest.mark.parametrize("kind", ["UNLOGGED", "TEMPORARY"])
def test_guard_table_that_forgets_is_refused(pg_dsn: str, kind: str) -> None:
    """An unlogged or temporary guard table is emptied by what the effect survives."""
    init(pg_dsn)
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE notes (text TEXT)")
        if kind == "UNLOGGED":
            conn.execute("ALTER TABLE claimant_guard SET UNLOGGED")
        else:
            conn.execute("CREATE TEMPORARY TABLE claimant_guard (LIKE public.claimant_guard INCLUDING ALL)")
        with pytest.raises(Refused, match="CLM041"):
            attempt(once(pg_dsn), conn)
    assert notes(pg_dsn) == 0


@pytest.mark.parametrize(
    "made",
    [
        "ALTER TABLE debits ADD CONSTRAINT chosen UNIQUE (amount) DEFERRABLE",
        "CREATE INDEX chosen ON debits (amount)",
        "CREATE UNIQUE INDEX chosen ON debits (amount) WHERE amount > 3",
        "CREATE UNLOGGED TABLE other (id INTEGER CONSTRAINT chosen PRIMARY KEY)",
        "CREATE TABLE other (id INTEGER CONSTRAINT chosen PRIMARY KEY) PARTITION BY RANGE (id)",
    ],
)
def test_unfit_constraint_of_postgres_is_refused(pg_dsn: str, made: str) -> None:
    """A constraint that lets a second row through, now or after a crash, cannot be the guard."""
    init(pg_dsn)
    with psycopg.connect(pg_dsn, autocommit=True) as conn:
        conn.execute(benches.TABLES)
        conn.execute(made)
        with pytest.raises(Refused, match=r"CLM04[19]"):
            attempt(once(pg_dsn, constraint="chosen"), conn)
    assert notes(pg_dsn) == 0


def test_constraint_may_name_its_schema(guarded: str) -> None:
    """An index outside the search path is found by its schema, and its violation recognised."""
    with psycopg.connect(guarded, autocommit=True) as conn:
        conn.execute(
            "CREATE SCHEMA books; CREATE TABLE books.entries (id INTEGER CONSTRAINT one_entry PRIMARY KEY)"
        )
        try:
            guard = once(guarded, constraint="books.one_entry")
            said = [
                attempt(guard, conn, lambda tx: tx.execute("INSERT INTO books.entries VALUES (1)"), run_id)
                for run_id in ("run-1", "run-2")
            ]
            with pytest.raises(Refused, match="CLM049"):
                attempt(once(guarded, constraint="one_entry"), conn)
        finally:
            conn.execute("DROP SCHEMA books CASCADE")
    assert [one.answer.kind for one in said] == [AnswerKind.APPLIED, AnswerKind.DUPLICATE]


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE entries (id INTEGER, note TEXT, CONSTRAINT one_entry UNIQUE (id))",
        "CREATE TABLE entries (Id INTEGER, note TEXT, CONSTRAINT [one_entry] PRIMARY KEY (id))",
        "CREATE TABLE entries (id INTEGER); CREATE UNIQUE INDEX one_entry ON entries (id)",
        "CREATE TABLE entries (id INTEGER); CREATE UNIQUE INDEX one_entry ON entries (abs(id))",
    ],
)
def test_named_constraint_of_sqlite_is_found(tmp_path: Path, table: str) -> None:
    """An index, and a named UNIQUE or PRIMARY KEY of a table, is found by name and its violation recognised."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.executescript(table)
        guard = once(path, constraint="one_entry")
        said = [
            attempt(guard, conn, lambda tx: tx.execute("INSERT INTO entries (id) VALUES (1)"), run_id)
            for run_id in ("run-1", "run-2")
        ]
    assert [one.answer.kind for one in said] == [AnswerKind.APPLIED, AnswerKind.DUPLICATE]


def test_constraint_that_replaces_is_refused(tmp_path: Path) -> None:
    """A table that silently replaces or ignores the second row does not reject it."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE entries (id INTEGER, CONSTRAINT one_entry UNIQUE (id) ON CONFLICT IGNORE)")
        with pytest.raises(Refused, match="CLM049"):
            attempt(once(path, constraint="one_entry"), conn)


def test_autocommit_below_sqlalchemy_is_refused(guarded: str) -> None:
    """AUTOCOMMIT is refused on engines, connections and sessions, and below SQLAlchemy; a plain psycopg one is not."""
    url = guarded.replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(url)
    hidden = sa.create_engine(url, connect_args={"autocommit": True})
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    guard = once(guarded)
    for handle in (autocommit, hidden, orm.sessionmaker(autocommit)):
        with pytest.raises(Refused, match="CLM045"):
            attempt(guard, handle, core_charge)
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn,
        pytest.raises(Refused, match="CLM045"),
    ):
        attempt(guard, conn, core_charge)
    with orm.Session(autocommit) as session, pytest.raises(Refused, match="CLM045"):
        attempt(guard, session, core_charge)
    assert notes(guarded) == 0
    with psycopg.connect(guarded, autocommit=True) as raw:
        assert attempt(guard, raw, charge).answer.kind is AnswerKind.APPLIED
    engine.dispose()
    hidden.dispose()


def test_read_only_database_refuses_in_words(guarded: str) -> None:
    """Where nothing can be written the answer is `refused`, says why, and the effect did not happen."""
    with psycopg.connect(guarded) as conn:
        conn.read_only = True
        answer = attempt(once(guarded), conn).answer
    assert answer.kind is AnswerKind.REFUSED
    assert "standby" in answer.reason
    assert "did not happen" in answer.reason


def test_read_only_file_refuses_in_words(tmp_path: Path) -> None:
    """The same for a SQLite file."""
    path = benches.sqlite_file(tmp_path)
    with closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)) as conn:
        answer = attempt(once(f"sqlite:{path}"), conn).answer
    assert answer.kind is AnswerKind.REFUSED
    assert "did not happen" in answer.reason
