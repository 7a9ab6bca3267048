"""What `once(db)` accepts, refuses, and says of it."""

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg_pool
import pytest
import redis
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from claimant._model.errors import Refused
from claimant._sql.target import target_of
from claimant.guards import once, schema_sql
from claimant.guards.tables import init, rejections
from tests.guards.attempts import attempt, attempt_aio

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "db",
    [
        *(
            "redis://localhost",
            "rediss://h",
            "valkey://h/0",
            "redis+sentinel://h",
            "memcached://h",
            "memory:",
            "memory://",
        ),
        *(
            "sqlite::memory:",
            "sqlite:",
            "sqlite://",
            "sqlite:///",
            "sqlite:///:memory:",
            "sqlite+aiosqlite://",
        ),
        *("sqlite:file:x?mode=memory", "sqlite:///file:x?mode=memory&uri=true"),
        redis.Redis(),
        sa.create_engine("sqlite://"),
        sa.create_engine("sqlite:///:memory:"),
        sa.create_engine("sqlite:///file:x?mode=memory&uri=true", poolclass=sa.StaticPool),
        sa_aio.create_async_engine("sqlite+aiosqlite://"),
        orm.sessionmaker(sa.create_engine("sqlite://")),
    ],
)
def test_volatile_guard_is_refused_when_declared(db: Any) -> None:
    """Nothing that forgets may guard, whether named by URL or handed over."""
    with pytest.raises(Refused, match="CLM041"):
        once(db)


@pytest.mark.parametrize(
    "db",
    ["", "app.db", "mysql://h/app", "etcd://h", "django:nowhere", "postgresql:app", 7, None, object(), "://"],
)
def test_what_cannot_guard_is_refused_with_what_can(db: Any) -> None:
    """The refusal names what to write instead."""
    with pytest.raises(Refused, match=r"CLM040.*postgresql:///app"):
        once(db)


def test_connection_is_no_declaration(tmp_path: Path) -> None:
    """A declaration outlives any one connection, so a connection is refused there."""
    with closing(sqlite3.connect(tmp_path / "app.db")) as conn, pytest.raises(Refused, match="CLM040"):
        once(conn)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:{SECRET}@db.example/shop",
        f"postgresql+psycopg://app:{SECRET}@db.example:5433/shop?sslmode=require",
        f"postgres://app:{SECRET}@a.example,b.example:5433/shop?deadline=1s",
        f"postgresql://db.example/shop?user=app&password={SECRET}",
    ],
)
def test_password_is_never_shown(url: str) -> None:
    """Neither `describe()` nor `repr()` holds the password; both name the database."""
    guard = once(url)
    assert guard.dialect == "postgresql"
    for text in (guard.describe(), repr(guard), repr(guard.target)):
        assert SECRET not in text
        assert "example" in text
        assert "/shop" in text


def test_password_with_raw_slash_is_refused_and_not_shown() -> None:
    """A password that breaks its URL does not turn up as the database's name."""
    with pytest.raises(Refused) as caught:
        once(f"postgresql://app:{SECRET}/x@db.example/shop")
    assert SECRET not in str(caught.value)


def test_password_of_an_engine_or_pool_is_never_shown() -> None:
    """The same for ready handles."""
    engine = sa.create_engine(f"postgresql+psycopg://app:{SECRET}@db.example/shop")
    pool = psycopg_pool.ConnectionPool(f"postgresql://app:{SECRET}@db.example/shop", open=False)
    for db in (engine, orm.sessionmaker(engine), pool):
        guard = once(db)
        assert SECRET not in guard.describe() + repr(guard) + repr(guard.target)
        assert guard.describe().endswith("/shop")


@pytest.mark.parametrize("spelling", ["sqlite:{}", "sqlite:///{}", "sqlite+pysqlite:///{}"])
def test_sqlite_urls_name_the_same_file(tmp_path: Path, spelling: str) -> None:
    """Our spelling and SQLAlchemy's lead to one file."""
    path = tmp_path / "app.db"
    assert once(spelling.format(path)).target.name == str(path)
    assert once(path).target.name == str(path)


@pytest.mark.parametrize("options", [{"longest": None}, {"longest": 0}, {"longest": "soon"}])
def test_durations_are_checked(options: dict[str, Any]) -> None:
    """`longest` is a positive duration."""
    with pytest.raises(Refused, match="CLM010"):
        once("sqlite:app.db", **options)


@pytest.mark.parametrize("constraint", ["", " ", 7])
def test_constraint_is_a_name(constraint: Any) -> None:
    """`constraint=` is the name of an index or constraint."""
    with pytest.raises(Refused, match="CLM049"):
        once("sqlite:app.db", constraint=constraint)


def test_autocommit_engine_is_refused_when_declared() -> None:
    """An engine on which nothing is ever in a transaction cannot guard."""
    engine = sa.create_engine("postgresql+psycopg://db.example/shop", isolation_level="AUTOCOMMIT")
    for db in (engine, orm.sessionmaker(engine), engine.execution_options(isolation_level="AUTOCOMMIT")):
        with pytest.raises(Refused, match="CLM045"):
            once(db)


@pytest.mark.parametrize("handle", [None, "sqlite:app.db", object(), redis.Redis()])
def test_handle_that_is_no_database_is_refused(handle: Any) -> None:
    """What is given to run.once is a handle of the effect's database; the refusal lists them."""
    with pytest.raises(Refused, match=r"CLM04[12]"):
        attempt(once("sqlite:app.db"), handle)


def test_async_handle_in_a_plain_body_is_refused() -> None:
    """It could not be awaited."""
    with pytest.raises(Refused, match="CLM042"):
        attempt(once("sqlite:app.db"), sa_aio.create_async_engine("sqlite+aiosqlite:///app.db"))


def test_plain_handle_of_postgres_in_an_async_body_is_refused() -> None:
    """A duplicate that waits for the first would stop the loop on which the first runs."""
    engine = sa.create_engine("postgresql+psycopg://db.example/shop")
    with pytest.raises(Refused, match="CLM042"):
        asyncio.run(attempt_aio(once(engine), engine))


def test_effect_is_a_function(tmp_path: Path) -> None:
    """A result in place of the effect is refused: the effect would have happened by then."""
    with closing(sqlite3.connect(tmp_path / "app.db")) as conn, pytest.raises(Refused, match="CLM048"):
        attempt(once(tmp_path / "app.db"), conn, conn.execute("SELECT 1"))  # type: ignore[arg-type]


def test_schema_is_shown_and_made_as_often_as_one_likes(tmp_path: Path) -> None:
    """The schema text makes the tables, again and again; a dialect without one is refused."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.executescript(schema_sql("sqlite"))
    assert init(f"sqlite:{path}") == f"sqlite:{path}"
    assert rejections(f"sqlite:{path}") == []
    assert "BYTEA" in schema_sql("postgresql")
    with pytest.raises(Refused, match="CLM040"):
        schema_sql("mysql")


def test_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the tables of PostgreSQL without psycopg names the extra."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Refused, match=r"pip install 'claimant\[postgres\]'"):
        init("postgresql:///app")


def test_a_file_that_is_not_there_has_rejected_nothing(tmp_path: Path) -> None:
    """Reading rejections makes no file."""
    path = tmp_path / "none.db"
    assert rejections(f"sqlite:{path}") == []
    assert not path.exists()


@pytest.mark.parametrize(
    "url",
    ["postgresql:///app", "postgresql://u:p@h:5/app?sslmode=require", "postgresql:///?host=/tmp&dbname=app"],
)
def test_a_url_is_opened_as_it_was_written(url: str) -> None:
    """The two slashes stay where no host follows them: without them the driver takes it for something else."""
    assert target_of(url).url == url
    assert target_of(url.replace("postgresql:", "postgres:")).url == url
    assert target_of(f"{url}{'&' if '?' in url else '?'}deadline=2s").url == url
