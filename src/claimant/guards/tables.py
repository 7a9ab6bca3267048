"""The guard's tables, made once by hand or by `claimant init --guard URL`; and the rejections that were counted in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from claimant._flows.once import missing_tables
from claimant._model.dialect import Dialect
from claimant._model.errors import Refused
from claimant._model.guarding import Reply, Statement, Trouble
from claimant._sql.diagnosis import diagnose, one_line
from claimant._sql.guard_texts import TEXTS
from claimant._sql.guard_texts import schema_sql as _schema_sql
from claimant._sql.handles import Make, recognise
from claimant._sql.target import Target, not_accepted, target_of
from claimant.guards import sessions

_INIT_LOCK = 0x636C6169_6D616E74
"""Concurrent CREATE TABLE IF NOT EXISTS can still fail in PostgreSQL; an advisory lock makes them take turns."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Attempts of one job that its guard rejected for one cause and hole. Instants are epoch ms of the guard's database."""

    job: str
    stake: str
    cause: str
    hole: str
    count: int
    first_ms: int
    last_ms: int


def schema_sql(dialect: str) -> str:
    """The SQL of the guard's tables for "sqlite" or "postgresql"; safe to run again. Raises `Refused` (CLM040)."""
    try:
        return _schema_sql(Dialect(dialect))
    except ValueError:
        raise Refused(
            "CLM040", f"no guard tables for {dialect!r}; there are some for sqlite and postgresql"
        ) from None


def init(url: str) -> str:
    """Make the guard's tables in the database of `url`, if they are missing. Returns its address, without a password.

    Raises `Refused` as `once()` does, and CLM046 where the tables could not be made.
    """
    target = target_of(url)
    if target.dialect is Dialect.SQLITE:
        _with_sqlite(target, _make, write=True)
    else:
        _with_postgres(target, _make_locked)
    return target.address


def rejections(where: Any, job: str | None = None) -> list[Rejection]:
    """What guards in the database `where` (a URL or a plain handle) rejected, by job, stake, cause and hole.

    Raises `Refused` (CLM046) where PostgreSQL has no guard tables; a SQLite file without them has rejected nothing.
    """
    params = (job or "", job or "")
    found = recognise(where)
    if found is None:
        target = target_of(where)
        if target.dialect is Dialect.SQLITE:
            reply = _with_sqlite(
                target, lambda conn: _tally(_sqlite_execute(conn), target.dialect, params), write=False
            )
        else:
            reply = _with_postgres(target, lambda conn: _tally(_dbapi_execute(conn), target.dialect, params))
        return _rows(reply)
    if found.waits:
        raise Refused("CLM042", "rejections() takes a URL or a plain handle, not one that must be awaited")
    match found.make:
        case Make.DJANGO:
            return _rows(_tally_of_django(where, params))
        case Make.SQLITE3:
            return _rows(_tally(_sqlite_execute(where), Dialect.SQLITE, params))
        case Make.PSYCOPG:
            return _rows(_tally(_dbapi_execute(where), Dialect.POSTGRESQL, params))
        case Make.PSYCOPG_POOL:
            with where.connection() as conn:
                return _rows(_tally(_dbapi_execute(conn), Dialect.POSTGRESQL, params))
        case Make.ENGINE:
            with where.connect() as conn:
                return _rows(_tally(_core_execute(conn), Dialect(conn.dialect.name), params))
        case Make.CONNECTION:
            return _rows(_tally(_core_execute(where), Dialect(where.dialect.name), params))
        case _:
            raise not_accepted(where)


def _tally_of_django(handle: Any, params: tuple[Any, ...]) -> Reply | None:
    from claimant.guards.on_django import dialect_of, wrapper_of

    wrapper = wrapper_of(handle)
    dialect = dialect_of(wrapper)
    wrapper.ensure_connection()
    plain = _sqlite_execute if dialect is Dialect.SQLITE else _dbapi_execute
    return _tally(plain(wrapper.connection), dialect, params)


def _rows(reply: Reply | None) -> list[Rejection]:
    return [] if reply is None else [Rejection(*row) for row in reply.rows]


def _tally(execute: Any, dialect: Dialect, params: tuple[Any, ...]) -> Reply | None:
    try:
        reply: Reply = execute(TEXTS[dialect][Statement.TALLY], params)
    except Exception as error:
        if diagnose(error).trouble is not Trouble.MISSING_TABLE:
            raise
        if dialect is Dialect.SQLITE:
            return None
        raise missing_tables("") from error
    return reply


def _sqlite_execute(conn: Any) -> Any:
    from claimant.guards.on_sqlite3 import execute

    return lambda text, params: execute(conn, text, params)


def _dbapi_execute(conn: Any) -> Any:
    from claimant._sql.paramstyle import rendered

    def execute(text: str, params: tuple[Any, ...]) -> Reply:
        import psycopg
        from psycopg.rows import tuple_row

        with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
            cursor.execute(rendered(text, "format").encode(), params)
            return Reply(cursor.fetchall() if cursor.description else [], cursor.rowcount)

    return execute


def _core_execute(conn: Any) -> Any:
    from claimant._sql.paramstyle import rendered

    def execute(text: str, params: tuple[Any, ...]) -> Reply:
        result = conn.exec_driver_sql(rendered(text, conn.dialect.paramstyle), params)
        return Reply([tuple(row) for row in result])

    return execute


def _make(conn: Any) -> None:
    execute = _sqlite_execute(conn)
    execute("BEGIN IMMEDIATE", ())
    for statement in (Statement.MAKE_GUARD, Statement.MAKE_REJECTION):
        execute(TEXTS[Dialect.SQLITE][statement], ())
    execute("COMMIT", ())


def _make_locked(conn: Any) -> None:
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s)", (_INIT_LOCK,))
        for statement in (Statement.MAKE_GUARD, Statement.MAKE_REJECTION):
            conn.execute(TEXTS[Dialect.POSTGRESQL][statement])


def _with_sqlite(target: Target, work: Any, *, write: bool) -> Any:
    import sqlite3
    from contextlib import closing
    from pathlib import Path

    if target.alias:
        return _with_django(target, work)
    path = Path(target.name or "")
    if not write and not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=sessions.CONNECT_S)) as conn:
            return work(conn)
    except sqlite3.Error as error:
        raise Refused("CLM046", f"{target.address}: {one_line(error)}") from error


def _with_postgres(target: Target, work: Any) -> Any:
    if target.alias:
        return _with_django(target, work)
    try:
        import psycopg
    except ImportError as error:
        raise Refused("CLM040", "PostgreSQL needs a driver: pip install 'claimant[postgres]'") from error
    try:
        with psycopg.connect(target.url, connect_timeout=int(sessions.CONNECT_S), autocommit=True) as conn:
            return work(conn)
    except psycopg.Error as error:
        raise Refused("CLM046", f"{target.address}: {one_line(error)}") from error


def _with_django(target: Target, work: Any) -> Any:
    """On the driver's connection below one of Django's, for this alone: the thread's own may be in a transaction."""
    from django.db import connections

    wrapper = connections[target.alias].copy()
    try:
        wrapper.ensure_connection()
        return work(wrapper.connection)
    except Exception as error:
        if isinstance(error, Refused) or not diagnose(error).driver:
            raise
        raise Refused("CLM046", f"{target.address}: {one_line(error)}") from error
    finally:
        wrapper.close()
