"""Which handle is this? Recognised by what it is, among the drivers that are loaded; nothing is imported for it."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Any

from claimant._model.record import record

ACCEPTED = (
    "a sqlite3 Connection; a psycopg Connection, AsyncConnection, ConnectionPool or AsyncConnectionPool; a SQLAlchemy "
    "Engine, Connection, Session, sessionmaker or scoped_session, or the async one of these; django.db.connection or "
    "connections[alias]; over SQLite or PostgreSQL"
)


class Make(StrEnum):
    """Who made the handle, and what it is good for."""

    SQLITE3 = "sqlite3 connection"
    PSYCOPG = "psycopg connection"
    PSYCOPG_POOL = "psycopg pool"
    ENGINE = "SQLAlchemy engine"
    CONNECTION = "SQLAlchemy connection"
    SESSION = "SQLAlchemy session"
    MAKER = "SQLAlchemy session maker"
    SCOPED = "SQLAlchemy scoped session"
    DJANGO = "Django connection"


@record
class Recognised:
    """A handle of a kind that can be used. `waits`: its calls must be awaited."""

    make: Make
    waits: bool

    @property
    def source(self) -> bool:
        """Whether connections can be had from it, one after the other."""
        return self.make in (Make.PSYCOPG_POOL, Make.ENGINE, Make.MAKER)


_KINDS = (
    ("sqlite3", "Connection", Make.SQLITE3, False),
    ("psycopg", "Connection", Make.PSYCOPG, False),
    ("psycopg", "AsyncConnection", Make.PSYCOPG, True),
    ("psycopg_pool", "ConnectionPool", Make.PSYCOPG_POOL, False),
    ("psycopg_pool", "AsyncConnectionPool", Make.PSYCOPG_POOL, True),
    ("sqlalchemy.engine", "Engine", Make.ENGINE, False),
    ("sqlalchemy.engine", "Connection", Make.CONNECTION, False),
    ("sqlalchemy.orm", "Session", Make.SESSION, False),
    ("sqlalchemy.orm", "sessionmaker", Make.MAKER, False),
    ("sqlalchemy.orm", "scoped_session", Make.SCOPED, False),
    ("django.db.backends.base.base", "BaseDatabaseWrapper", Make.DJANGO, False),
    ("django.utils.connection", "ConnectionProxy", Make.DJANGO, False),
    ("sqlalchemy.ext.asyncio", "AsyncEngine", Make.ENGINE, True),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", Make.CONNECTION, True),
    ("sqlalchemy.ext.asyncio", "AsyncSession", Make.SESSION, True),
    ("sqlalchemy.ext.asyncio", "async_sessionmaker", Make.MAKER, True),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", Make.SCOPED, True),
)
_VOLATILE = frozenset(
    {"redis", "valkey", "coredis", "pymemcache", "pylibmc", "memcache", "aiomcache", "glide", "fakeredis"}
)


def recognise(handle: object) -> Recognised | None:
    """What `handle` is, or None if it is nothing that a guard can use."""
    for module, name, make, waits in _KINDS:
        loaded = sys.modules.get(module)
        kind = getattr(loaded, name, None) if loaded is not None else None
        if isinstance(kind, type) and isinstance(handle, kind):
            # Django's caches are behind the same kind of proxy.
            if name == "ConnectionProxy" and not _of_databases(handle):
                return None
            return Recognised(make, waits)
    return None


def _of_databases(proxy: Any) -> bool:
    loaded = sys.modules.get("django.db.utils")
    return loaded is not None and isinstance(proxy._connections, loaded.ConnectionHandler)  # noqa: SLF001 - it has no other name


def is_volatile_client(handle: object) -> bool:
    """Whether `handle` is the client of a server that keeps things in memory."""
    return any(kind.__module__.partition(".")[0] in _VOLATILE for kind in type(handle).__mro__)


def kind_of(handle: object) -> str:
    """The handle's type for a message; never its repr, which may hold a password."""
    return f"{type(handle).__module__}.{type(handle).__qualname__}"


def unscoped(handle: Any, make: Make) -> Any:
    """The session that a scoped session stands for here and now."""
    return handle() if make is Make.SCOPED else handle
