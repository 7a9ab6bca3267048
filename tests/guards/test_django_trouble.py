"""A Django connection that is lost, closed, begun behind Django's back or of another database: one effect, or none and a clear word."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from claimant._model.errors import Refused
from claimant._model.outcome import AnswerKind
from claimant.guards import init, once, rejections
from tests.guards import benches
from tests.guards.attempts import attempt
from tests.guards.django_benches import (
    DjangoPostgres,
    DjangoSqlite,
    django_connection,
    django_settings,
    named_in_settings,
)
from tests.support.proxy import Proxy
from tests.support.shared import Shared

CHILDREN = """
CREATE TABLE parents (id INTEGER PRIMARY KEY);
CREATE TABLE children (parent INTEGER NOT NULL REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)
"""


def charge(tx: Any) -> str:
    with tx.cursor() as cursor:
        cursor.execute("INSERT INTO notes (text) VALUES ('charged')")
    return "ok"


def bare(wrapper: Any) -> None:
    """Django knows of nothing that is open."""
    wrapper.ensure_connection()
    assert not wrapper.in_atomic_block
    assert not wrapper.needs_rollback
    assert wrapper.get_autocommit()
    assert (wrapper.savepoint_ids, wrapper.atomic_blocks, wrapper.run_on_commit) == ([], [], [])


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


# -- lost


@pytest.fixture
def proxy(postgres: Shared) -> Iterator[Proxy]:
    with Proxy(postgres.port) as proxy:
        yield proxy


@pytest.fixture
def far(guarded: str, proxy: Proxy) -> Iterator[Any]:
    """This thread's default connection, through the proxy."""
    with django_connection(DjangoPostgres(proxy.url(guarded)).settings_dict()) as wrapper:
        wrapper.ensure_connection()
        yield wrapper


def test_commit_whose_acknowledgement_is_lost(guarded: str, proxy: Proxy, far: Any) -> None:
    """The same call asks on a new connection of Django's, finds its own row, and answers with the result."""
    proxy.cut_after_request(times=1, match=b"COMMIT")
    said = attempt(once(guarded), far, charge)
    assert proxy.counts.faults == 1
    assert (said.answer.kind, said.answer.value, said.answer.replayed) == (AnswerKind.APPLIED, "ok", False)
    assert psycopg_count(guarded, "notes") == 1
    assert rejections(guarded) == []
    bare(far)


def test_connection_that_is_lost_after_the_effect(guarded: str, proxy: Proxy, far: Any) -> None:
    """The transaction went with the connection: the whole is run again on a new one, and the effect happens once."""
    tries: list[int] = []

    def cut_once(tx: Any) -> str:
        tries.append(1)
        done = charge(tx)
        if len(tries) == 1:
            proxy.drop_connections()
        return done

    assert attempt(once(guarded), far, cut_once).answer.kind is AnswerKind.APPLIED
    assert (len(tries), psycopg_count(guarded, "notes")) == (2, 1)
    bare(far)


def test_connection_that_was_dead_before(guarded: str, far: Any) -> None:
    """A persistent connection that the server has ended is replaced, and the effect happens."""
    with psycopg.connect(guarded, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", [far.connection.info.backend_pid])
    assert attempt(once(guarded), far, charge).answer.kind is AnswerKind.APPLIED
    assert psycopg_count(guarded, "notes") == 1
    bare(far)


def test_connection_that_is_known_to_be_dead(guarded: str, far: Any) -> None:
    """One that Django still keeps after an earlier error is replaced before the effect."""
    from django.db import OperationalError

    with psycopg.connect(guarded, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", [far.connection.info.backend_pid])
    with pytest.raises(OperationalError):
        charge(far)
    assert attempt(once(guarded), far, charge).answer.kind is AnswerKind.APPLIED
    assert psycopg_count(guarded, "notes") == 1
    bare(far)


def test_connection_that_dies_in_the_callers_block(guarded: str, far: Any) -> None:
    """Joined, nothing is begun anew: the error is the caller's, whose block is rolled back."""
    from django.db import DatabaseError, transaction

    def cut_off(tx: Any) -> None:
        charge(tx)
        with psycopg.connect(guarded, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", [tx.connection.info.backend_pid])
        charge(tx)

    with pytest.raises(DatabaseError), transaction.atomic():
        charge(far)
        attempt(once(guarded), far, cut_off)
    assert psycopg_count(guarded, "notes") == 0
    assert attempt(once(guarded), far, charge).answer.kind is AnswerKind.APPLIED


def psycopg_count(url: str, table: str) -> int:
    with psycopg.connect(url) as conn:
        row = conn.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        assert row is not None
        return int(row[0])


def test_connection_closed_in_the_effect_never_passes_for_applied(bench: Any, conn: Any) -> None:
    """`connection.close()` inside a block makes Django's COMMIT nothing at all; it is an error, owned and joined."""
    from django.db import DatabaseError, transaction

    def closing(tx: Any) -> None:
        charge(tx)
        tx.close()

    with pytest.raises(DatabaseError):
        attempt(bench.guard(), conn, closing)
    bare(conn)
    with pytest.raises(DatabaseError), transaction.atomic():
        attempt(bench.guard(), conn, closing)
    assert (bench.notes(), bench.guard_rows()) == (0, 0)
    assert attempt(bench.guard(), conn, charge).answer.kind is AnswerKind.APPLIED
    bare(conn)


# -- what commits and what does not


def test_hook_that_fails_after_our_commit(bench: Any, conn: Any) -> None:
    """Its error comes out as it does from Django, says that the effect stands, and the next attempt is a duplicate."""
    from django.db import transaction

    def hooked(tx: Any) -> str:
        transaction.on_commit(lambda: 1 // 0)
        return charge(tx)

    with pytest.raises(ZeroDivisionError) as caught:
        attempt(bench.guard(), conn, hooked, "run-1")
    assert ["the effect was committed" in note for note in caught.value.__notes__] == [True]
    bare(conn)
    assert attempt(bench.guard(), conn, charge, "run-2").answer.kind is AnswerKind.DUPLICATE
    assert bench.notes() == 1


def test_constraint_that_is_checked_at_the_commit(bench: Any, conn: Any, tmp_path: Path) -> None:
    """Django's foreign keys fail at the COMMIT: its own error comes out, and neither effect nor guard row stays."""
    from django.db import IntegrityError, transaction

    with conn.cursor() as cursor:
        for statement in CHILDREN.split(";"):
            cursor.execute(statement)

    def orphan(tx: Any) -> None:
        with tx.cursor() as cursor:
            cursor.execute("INSERT INTO children (parent) VALUES (1)")

    try:
        with pytest.raises(IntegrityError):
            attempt(bench.guard(), conn, orphan)
        bare(conn)
        with pytest.raises(IntegrityError), transaction.atomic():
            assert attempt(bench.guard(), conn, orphan).answer.kind is AnswerKind.APPLIED
        assert bench.guard_rows() == 0
    finally:
        with conn.cursor() as cursor:
            cursor.execute("DROP TABLE children")
            cursor.execute("DROP TABLE parents")


def test_durable_blocks_keep_their_rule(bench: Any, conn: Any) -> None:
    """Inside a durable block the guard joins; a durable block inside the effect is refused by Django, and nothing stays."""
    from django.db import transaction

    with transaction.atomic(durable=True):
        said = attempt(bench.guard(), conn, charge, "run-1")
        assert (said.answer.kind, said.joined) == (AnswerKind.APPLIED, True)
        transaction.set_rollback(True)
    assert bench.notes() == 0

    @transaction.atomic(durable=True)
    def durable() -> None:
        charge(conn)

    with pytest.raises(RuntimeError, match="durable"):
        attempt(bench.guard(), conn, lambda _: durable(), "run-2")
    bare(conn)
    assert (bench.notes(), bench.guard_rows()) == (0, 0)


def test_block_of_the_effect_that_fails_and_is_caught(bench: Any, conn: Any) -> None:
    """With a savepoint of its own around what may fail, the effect goes on as in any Django code, owned and joined."""
    from django.db import IntegrityError, transaction

    def careful(tx: Any) -> str:
        try:
            with transaction.atomic(), tx.cursor() as cursor:
                cursor.execute("INSERT INTO debits (order_id, amount) VALUES (1, -1)")
        except IntegrityError:
            pass
        return charge(tx)

    assert attempt(bench.guard(), conn, careful, "run-1").answer.kind is AnswerKind.APPLIED
    bare(conn)
    with transaction.atomic():
        said = attempt(bench.guard(), conn, careful, "run-2")
    assert (said.answer.kind, bench.notes()) == (AnswerKind.DUPLICATE, 1)


def test_rolled_back_savepoint_of_the_callers_is_seen(bench: Any, conn: Any) -> None:
    """The caller's inner block takes effect and guard row away; no hook of ours is left for the outer block's commit."""
    from django.db import transaction

    told: list[str] = []
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            said = attempt(bench.guard(), conn, charge)
            still_open: Any = said.still_open
            assert still_open()
            still_open.on_commit(lambda: told.append("committed"))
            raise ZeroDivisionError
        assert not still_open()
    assert (told, bench.notes(), bench.guard_rows()) == ([], 0, 0)


def test_autocommit_off_in_the_settings(bench: Any) -> None:
    """Before Django has connected as after it, the guard joins; the caller's commit commits, and is seen."""
    with django_connection(bench.settings_dict() | {"AUTOCOMMIT": False}) as conn:
        said = attempt(bench.guard(), conn, charge)
        assert (said.answer.kind, said.joined, bench.notes()) == (AnswerKind.APPLIED, True, 0)
        still_open: Any = said.still_open
        assert still_open()
        assert not still_open.on_commit(lambda: None)
        conn.commit()
        assert not still_open()
        charge(conn)
        assert not still_open()
        conn.rollback()
    assert (bench.notes(), bench.guard_rows()) == (1, 1)


# -- refused


def test_transaction_that_django_does_not_know_of_is_refused(bench: Any, conn: Any) -> None:
    """After a BEGIN by statement Django's blocks would say what is not so."""
    with conn.cursor() as cursor:
        cursor.execute("BEGIN")
    with pytest.raises(Refused, match=r"CLM045.*transaction\.atomic"):
        attempt(bench.guard(), conn, charge)
    assert bench.guard_rows() == 0


def test_connection_of_another_thread_is_refused(bench: Any, conn: Any) -> None:
    """Each thread has its own, and Django would begin on that one."""
    refusals: list[BaseException] = []

    def elsewhere() -> None:
        with django_connection(bench.settings_dict()):
            try:
                attempt(bench.guard(), conn, charge)
            except Refused as refused:
                refusals.append(refused)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [error.code for error in refusals if isinstance(error, Refused)] == ["CLM042"]
    assert bench.notes() == 0


def test_caches_are_no_databases(tmp_path: Path) -> None:
    """Django's cache is behind the same kind of proxy as its connection, and forgets."""
    from django.core.cache import cache

    django_settings()
    with pytest.raises(Refused, match="CLM042"):
        attempt(once(tmp_path / "app.db"), cache, charge)
    with pytest.raises(Refused, match="CLM040"):
        once(cache)


# -- django:ALIAS


@pytest.fixture
def move(bench: Any, make_database: Callable[[], str]) -> Callable[[Path], Any]:
    """Makes another database of the bench's kind."""

    def made(folder: Path) -> Any:
        if isinstance(bench, DjangoSqlite):
            (folder / "test").mkdir()
            return DjangoSqlite(benches.sqlite_file(folder / "test"))
        url = make_database()
        init(url)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(benches.TABLES)
        return DjangoPostgres(url)

    return made


def test_alias_follows_where_django_goes(bench: Any, tmp_path: Path, move: Callable[[Path], Any]) -> None:
    """The test runner moves an alias to another database after the job was declared; the guard goes with it."""
    settings = bench.settings_dict()
    guard = once(named_in_settings(settings))
    assert guard.describe() == "once in django:default"
    moved = move(tmp_path)
    settings["NAME"] = moved.settings_dict()["NAME"]
    with django_connection(settings) as conn:
        assert attempt(guard, conn, charge).answer.kind is AnswerKind.APPLIED
    assert (bench.notes(), moved.notes()) == (0, 1)


def test_alias_is_compared_with_other_handles(
    bench: Any, tmp_path: Path, move: Callable[[Path], Any]
) -> None:
    """The driver's own connection is accepted where it is of the database that the alias has, and refused elsewhere."""
    guard, other = once(named_in_settings(bench.settings_dict())), move(tmp_path)

    def connected(to: Any) -> Any:
        return sqlite3.connect(to.path) if isinstance(to, DjangoSqlite) else psycopg.connect(to.url)

    with closing(connected(other)) as raw, pytest.raises(Refused, match="CLM044"):
        attempt(guard, raw)
    with closing(connected(bench)) as raw:
        assert attempt(guard, raw).answer.kind is AnswerKind.APPLIED
    assert (bench.notes(), other.notes()) == (1, 0)


def test_another_alias_is_refused(bench: Any, conn: Any) -> None:
    """Also where both are of one database today: they need not be tomorrow."""
    guard = once(named_in_settings(bench.settings_dict(), "books"))
    with pytest.raises(Refused, match=r"CLM044.*connections\['books'\]"):
        attempt(guard, conn, charge)
    assert bench.notes() == 0


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, "CLM041"),
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": "file:x?mode=memory&cache=shared"}, "CLM041"),
        ({"ENGINE": "django.db.backends.dummy"}, "CLM040"),
        ({"ENGINE": "no.such.backend"}, "CLM040"),
    ],
)
def test_alias_that_cannot_guard_is_refused_when_declared(settings: dict[str, Any], code: str) -> None:
    """In memory, not a database, no backend: said at the declaration, with what to write instead."""
    with pytest.raises(Refused, match=code):
        once(named_in_settings(settings, "odd"))


def test_alias_in_memory_at_last_is_refused_before_the_effect(tmp_path: Path) -> None:
    """Django's test runner keeps SQLite in memory unless it is told otherwise; such a database forgets."""
    settings = DjangoSqlite(benches.sqlite_file(tmp_path)).settings_dict()
    guard = once(named_in_settings(settings))
    settings["NAME"] = "file:memorydb_default?mode=memory&cache=shared"
    with django_connection(settings) as conn:
        conn.ensure_connection()
        conn.connection.execute("CREATE TABLE notes (text TEXT)")
        with pytest.raises(Refused, match="CLM041"):
            attempt(guard, conn, charge)
        assert conn.connection.execute("SELECT count(*) FROM notes").fetchone() == (0,)
        conn.connection.close()  # Django itself never closes a database in memory


def test_tables_and_rejections_by_alias(make_database: Callable[[], str]) -> None:
    """`init` makes the tables through Django's settings; rejections are read by alias and from a connection."""
    url = make_database()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(benches.TABLES)
    settings = DjangoPostgres(url).settings_dict()
    name = named_in_settings(settings)
    guard = once(name)
    with django_connection(settings) as conn:
        with pytest.raises(Refused, match="CLM046"):
            attempt(guard, conn, charge)
        assert init(name) == "django:default"
        for run_id in ("run-1", "run-2"):
            attempt(guard, conn, charge, run_id)
        assert [row.count for row in rejections(name)] == [1]
        assert rejections(conn) == rejections(name) == rejections(url)
        bare(conn)
