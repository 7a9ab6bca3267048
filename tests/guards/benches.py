"""Every kind of handle that a guard accepts, as benches for the suite."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import psycopg_pool
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from claimant.testing.guard_bench import Bench, Caller

TABLES = """
CREATE TABLE debits (order_id INTEGER NOT NULL, amount INTEGER NOT NULL CHECK (amount > 0));
CREATE UNIQUE INDEX one_debit ON debits (order_id);
CREATE UNIQUE INDEX some_debits ON debits (order_id) WHERE amount > 100;
CREATE TABLE receipts (number INTEGER NOT NULL UNIQUE);
CREATE TABLE notes (text TEXT NOT NULL);
CREATE INDEX plain_notes ON notes (text);
"""


def sqlite_file(folder: Path) -> str:
    """A database with the suite's tables, in WAL mode, as an application would have it."""
    path = folder / "app.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA journal_mode=WAL")
        conn.executescript(TABLES)
    return str(path)


class SqliteBench(Bench):
    """What is the same for all handles of a SQLite file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.url = self.db = f"sqlite:{path}"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as conn:
            return conn.execute(sql).fetchall()


class PostgresBench(Bench):
    """What is the same for all handles of a PostgreSQL database."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = self.db = url

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as conn:
            return conn.execute(sql).fetchall()

    def blocked(self) -> bool:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return bool(self.rows(waiting)[0][0])


# -- sqlite3


class Sqlite3(SqliteBench):
    """sqlite3.Connection, as it comes."""

    options: ClassVar[dict[str, Any]] = {}

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=0.1, **self.options)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[Any]:
        with closing(self.connect()) as conn:
            yield conn

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Caller]:
        async def commit() -> None:
            conn.execute("COMMIT")

        async def rollback() -> None:
            if conn.in_transaction:
                conn.execute("ROLLBACK")

        with closing(self.connect()) as conn:
            if not conn.in_transaction:
                conn.execute("BEGIN")
            yield Caller(conn, commit, rollback)

    async def execute(self, tx: Any, sql: str) -> Any:
        return tx.execute(sql)

    async def commit(self, tx: Any) -> None:
        tx.commit()


class Sqlite3Autocommit(Sqlite3):
    """isolation_level=None, with row and text factories of the application's own."""

    options: ClassVar[dict[str, Any]] = {"isolation_level": None}

    def connect(self) -> sqlite3.Connection:
        conn = super().connect()
        conn.row_factory = sqlite3.Row
        conn.text_factory = bytes
        return conn

    async def commit(self, tx: Any) -> None:
        tx.executescript("SELECT 1;")


class Sqlite3AutocommitTrue(Sqlite3):
    """autocommit=True (Python 3.12): commit() and rollback() do nothing."""

    options: ClassVar[dict[str, Any]] = {"autocommit": True}

    async def commit(self, tx: Any) -> None:
        tx.execute("COMMIT")


class Sqlite3Aio(Sqlite3):
    """A plain sqlite3.Connection inside an async body."""

    waits = True


# -- psycopg


class Psycopg(PostgresBench):
    """psycopg.Connection."""

    options: ClassVar[dict[str, Any]] = {}
    forbids_commit = (psycopg.ProgrammingError,)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[Any]:
        with closing(psycopg.connect(self.url, **self.options)) as conn:
            yield conn

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Caller]:
        async def commit() -> None:
            conn.execute("COMMIT")

        async def rollback() -> None:
            conn.execute("ROLLBACK")

        with closing(psycopg.connect(self.url, **self.options)) as conn:
            conn.execute("BEGIN" if conn.autocommit else "SELECT 1")
            yield Caller(conn, commit, rollback)

    async def execute(self, tx: Any, sql: str) -> Any:
        return tx.execute(sql)

    async def commit(self, tx: Any) -> None:
        tx.commit()


class PsycopgAutocommit(Psycopg):
    """autocommit=True, dict rows; its careless effect commits by statement, behind psycopg's back."""

    options: ClassVar[dict[str, Any]] = {"autocommit": True, "row_factory": psycopg.rows.dict_row}

    async def commit(self, tx: Any) -> None:
        tx.execute("COMMIT")


class PsycopgPool(Psycopg):
    """psycopg_pool.ConnectionPool; the guard is declared with a URL."""

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[Any]:
        with psycopg_pool.ConnectionPool(self.url, min_size=1, max_size=4) as pool:
            yield pool


class PsycopgAio(PostgresBench):
    """psycopg.AsyncConnection."""

    waits = True
    forbids_commit = (psycopg.ProgrammingError,)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.url) as conn:
            yield conn

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Caller]:
        async with await psycopg.AsyncConnection.connect(self.url) as conn:
            await conn.execute("SELECT 1")
            yield Caller(conn, conn.commit, conn.rollback)

    async def execute(self, tx: Any, sql: str) -> Any:
        return await tx.execute(sql)

    async def commit(self, tx: Any) -> None:
        await tx.commit()


class PsycopgPoolAio(PsycopgAio):
    """psycopg_pool.AsyncConnectionPool."""

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[Any]:
        async with psycopg_pool.AsyncConnectionPool(self.url, min_size=1, max_size=4, open=False) as pool:
            yield pool


# -- SQLAlchemy, for either database


def core_url(bench: Bench, driver: str) -> str:
    """The bench's URL in SQLAlchemy's spelling."""
    scheme, _, rest = bench.url.partition(":")
    return f"sqlite+{driver}:///{rest}" if scheme == "sqlite" else f"postgresql+{driver}:{rest}"


def plain_handles(base: Any, driver: str) -> list[Any]:
    """Engine, connection, session, session maker and scoped session, plain."""

    class Engine(base):  # type: ignore[misc]
        @asynccontextmanager
        async def idle(self) -> AsyncIterator[Any]:
            engine = sa.create_engine(core_url(self, driver), **(OPTIONS if driver != "pysqlite" else {}))
            try:
                yield engine
            finally:
                engine.dispose()

        @asynccontextmanager
        async def begun(self) -> AsyncIterator[Caller]:
            async with Connection.idle(self) as conn:
                await self.execute(conn, "SELECT 1")
                yield caller(conn)

        async def execute(self, tx: Any, sql: str) -> Any:
            return tx.execute(sa.text(sql))

        async def commit(self, tx: Any) -> None:
            tx.commit()

    class Connection(Engine):
        @asynccontextmanager
        async def idle(self) -> AsyncIterator[Any]:
            async with Engine.idle(self) as engine:
                with engine.connect() as conn:
                    yield conn

        async def commit(self, tx: Any) -> None:
            tx.exec_driver_sql("COMMIT")

    class Session(Engine):
        @asynccontextmanager
        async def idle(self) -> AsyncIterator[Any]:
            async with Engine.idle(self) as engine:
                with orm.Session(engine) as session:
                    yield session

        @asynccontextmanager
        async def begun(self) -> AsyncIterator[Caller]:
            async with Session.idle(self) as session:
                session.execute(sa.text("SELECT count(*) FROM notes"))
                yield caller(session)

    class Maker(Session):
        @asynccontextmanager
        async def idle(self) -> AsyncIterator[Any]:
            async with Engine.idle(self) as engine:
                yield orm.sessionmaker(engine)

    class Scoped(Session):
        @asynccontextmanager
        async def idle(self) -> AsyncIterator[Any]:
            async with Engine.idle(self) as engine:
                scoped = orm.scoped_session(orm.sessionmaker(engine))
                try:
                    yield scoped
                finally:
                    scoped.remove()

        @asynccontextmanager
        async def begun(self) -> AsyncIterator[Caller]:
            async with Scoped.idle(self) as scoped:
                scoped.execute(sa.text("SELECT 1"))
                yield caller(scoped)

    def caller(handle: Any) -> Caller:
        async def commit() -> None:
            handle.commit()

        async def rollback() -> None:
            handle.rollback()

        return Caller(handle, commit, rollback)

    return [Engine, Connection, Session, Maker, Scoped]


def async_handles(base: Any, driver: str) -> list[Any]:
    """The same, to be awaited."""

    class AsyncEngine(base):  # type: ignore[misc]
        waits = True

        @asynccontextmanager
        async def idle(self) -> AsyncIterator[Any]:
            engine = sa_aio.create_async_engine(core_url(self, driver))
            try:
                yield engine
            finally:
                await engine.dispose()

        @asynccontextmanager
        async def begun(self) -> AsyncIterator[Caller]:
            async with AsyncConnection.idle(self) as conn:
                await self.execute(conn, "SELECT 1")
                yield Caller(conn, conn.commit, conn.rollback)

        async def execute(self, tx: Any, sql: str) -> Any:
            return await tx.execute(sa.text(sql))

        async def commit(self, tx: Any) -> None:
            await tx.commit()

    class AsyncConnection(AsyncEngine):
        @asynccontextmanager
        async def idle(self) -> AsyncIterator[Any]:
            async with AsyncEngine.idle(self) as engine, engine.connect() as conn:
                yield conn

    class AsyncSession(AsyncEngine):
        @asynccontextmanager
        async def idle(self) -> AsyncIterator[Any]:
            async with AsyncEngine.idle(self) as engine, sa_aio.AsyncSession(engine) as session:
                yield session

        @asynccontextmanager
        async def begun(self) -> AsyncIterator[Caller]:
            async with AsyncSession.idle(self) as session:
                await session.execute(sa.text("SELECT count(*) FROM notes"))
                yield Caller(session, session.commit, session.rollback)

    class AsyncMaker(AsyncSession):
        @asynccontextmanager
        async def idle(self) -> AsyncIterator[Any]:
            async with AsyncEngine.idle(self) as engine:
                yield sa_aio.async_sessionmaker(engine)

    return [AsyncEngine, AsyncConnection, AsyncSession, AsyncMaker]


OPTIONS: dict[str, Any] = {"pool_size": 8}


def named(kinds: list[Any], driver: str) -> dict[str, Callable[[str], Bench]]:
    """Benches by name, e.g. "psycopg-Session"."""
    return {f"{driver}-{kind.__name__}": kind for kind in kinds}


_PLAIN_SQLITE = named(plain_handles(SqliteBench, "pysqlite"), "pysqlite")
_AIOSQLITE = named(async_handles(SqliteBench, "aiosqlite"), "aiosqlite")
_PLAIN_POSTGRES = named(plain_handles(PostgresBench, "psycopg"), "core")
_ASYNC_POSTGRES = named(async_handles(PostgresBench, "psycopg"), "core")
_OWNED = ("Maker", "AsyncMaker")


def joinable(kinds: dict[str, Callable[[str], Bench]]) -> dict[str, Callable[[str], Bench]]:
    """Those that can be in a transaction of the caller's."""
    return {name: kind for name, kind in kinds.items() if not name.endswith(_OWNED)}


def owned(kinds: dict[str, Callable[[str], Bench]]) -> dict[str, Callable[[str], Bench]]:
    """Those that cannot."""
    return {name: kind for name, kind in kinds.items() if name.endswith(_OWNED)}


SQLITE: dict[str, Callable[[str], Bench]] = {
    "sqlite3": Sqlite3,
    "sqlite3-isolation-none": Sqlite3Autocommit,
    "sqlite3-aio": Sqlite3Aio,
    **({"sqlite3-autocommit-true": Sqlite3AutocommitTrue} if sys.version_info >= (3, 12) else {}),
    **joinable(_PLAIN_SQLITE),
    **joinable(_AIOSQLITE),
}
SQLITE_OWNED = owned(_PLAIN_SQLITE) | owned(_AIOSQLITE)
POSTGRES: dict[str, Callable[[str], Bench]] = {
    "psycopg": Psycopg,
    "psycopg-autocommit": PsycopgAutocommit,
    "psycopg-aio": PsycopgAio,
    **joinable(_PLAIN_POSTGRES),
    **joinable(_ASYNC_POSTGRES),
    **joinable(named(async_handles(PostgresBench, "asyncpg")[:1], "asyncpg")),
}
POSTGRES_OWNED: dict[str, Callable[[str], Bench]] = {
    "psycopg-pool": PsycopgPool,
    "psycopg-pool-aio": PsycopgPoolAio,
    **owned(_PLAIN_POSTGRES),
    **owned(_ASYNC_POSTGRES),
}
