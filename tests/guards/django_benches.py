"""Django's connections as benches for the suite, and its settings, which a process may configure once."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg

from claimant.testing.guard_bench import Bench, Caller
from tests.guards.benches import PostgresBench, SqliteBench

_SETUP = threading.Lock()
"""Settings may be configured once, and the suite's threads all ask for them."""


def _settings_dict(engine: str, **options: Any) -> dict[str, Any]:
    given = {"HOST": "", "PORT": "", "USER": "", "PASSWORD": "", "OPTIONS": {}} | options
    fixed = {
        "ATOMIC_REQUESTS": False,
        "AUTOCOMMIT": True,
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": False,
        "TIME_ZONE": None,
        "TEST": {"CHARSET": None, "COLLATION": None, "MIGRATE": True, "MIRROR": None, "NAME": None},
    }
    return {"ENGINE": engine, **given, **fixed}


def django_settings() -> Any:
    """Django's settings, configured once for the process."""
    import django
    from django.conf import settings

    with _SETUP:
        if not settings.configured:
            settings.configure(DATABASES={}, USE_TZ=True, INSTALLED_APPS=[], LOGGING_CONFIG=None)
            django.setup()
    return settings


def named_in_settings(settings_dict: dict[str, Any], alias: str = "default") -> str:
    """The guard's URL of a database that Django's settings name from now on."""
    django_settings().DATABASES[alias] = settings_dict
    return f"django:{alias}"


def django_error(name: str) -> type[BaseException]:
    """One of the errors of django.db.transaction."""
    from django.db import transaction

    return getattr(transaction, name)


@contextmanager
def django_connection(settings_dict: dict[str, Any]) -> Iterator[Any]:
    """This thread's `connections["default"]`, on a database of the test's own."""
    from django.db import connections
    from django.db.utils import load_backend

    django_settings()
    wrapper = load_backend(settings_dict["ENGINE"]).DatabaseWrapper(settings_dict, "default")
    connections["default"] = wrapper
    try:
        yield wrapper
    finally:
        wrapper.in_atomic_block = False
        wrapper.close()
        del connections["default"]


class _Django:
    """What is the same on either database. The guard is declared with the URL."""

    def settings_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[Any]:
        with django_connection(self.settings_dict()) as wrapper:
            yield wrapper

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[Caller]:
        from django.db import transaction

        with django_connection(self.settings_dict()) as wrapper:
            block = transaction.atomic()
            block.__enter__()

            async def commit() -> None:
                block.__exit__(None, None, None)

            async def rollback() -> None:
                if wrapper.in_atomic_block:
                    block.__exit__(KeyError, KeyError(), None)

            yield Caller(wrapper, commit, rollback)

    async def execute(self, tx: Any, sql: str) -> Any:
        with tx.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else None

    async def commit(self, tx: Any) -> None:
        await self.execute(tx, "COMMIT")


class DjangoSqlite(_Django, SqliteBench):
    """django.db.connection on SQLite."""

    def settings_dict(self) -> dict[str, Any]:
        return _settings_dict("django.db.backends.sqlite3", NAME=self.path, OPTIONS={"timeout": 0.1})


class DjangoPostgres(_Django, PostgresBench):
    """django.db.connection on PostgreSQL, by psycopg."""

    def settings_dict(self) -> dict[str, Any]:
        given = psycopg.conninfo.conninfo_to_dict(self.url)
        return _settings_dict(
            "django.db.backends.postgresql",
            NAME=given["dbname"],
            HOST=given["host"],
            PORT=str(given["port"]),
            USER=given["user"],
            PASSWORD=given.get("password", ""),
        )


class DjangoSqliteAlias(DjangoSqlite):
    """connections["default"], a ConnectionProxy's target, on a guard that names the alias; its effect commits by Django's means."""

    forbids_commit = (django_error("TransactionManagementError"),)

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.db = named_in_settings(self.settings_dict())

    async def commit(self, tx: Any) -> None:
        tx.commit()


class DjangoPostgresAlias(DjangoPostgres):
    """The same on PostgreSQL."""

    forbids_commit = DjangoSqliteAlias.forbids_commit

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.db = named_in_settings(self.settings_dict())

    async def commit(self, tx: Any) -> None:
        tx.commit()


SQLITE: dict[str, Callable[[str], Bench]] = {"django": DjangoSqlite, "django-alias": DjangoSqliteAlias}
POSTGRES: dict[str, Callable[[str], Bench]] = {"django": DjangoPostgres, "django-alias": DjangoPostgresAlias}
