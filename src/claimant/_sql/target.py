"""Which database is meant: from a URL, or from a ready engine or pool. Touches no network and keeps no password apart.

What is said about a database for people never holds a password.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from claimant._model.dialect import Dialect
from claimant._model.errors import Refused
from claimant._sql.handles import ACCEPTED, Make, is_volatile_client, kind_of, recognise

VOLATILE_SCHEMES = frozenset(
    {"redis", "rediss", "valkey", "valkeys", "memcached", "memcache", "memory", "unix"}
)
WHERE = (
    'name the database where the effect becomes durable: "postgresql:///app", "sqlite:PATH", "django:default", or a ready '
    "engine or pool"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A database. `name`: PostgreSQL's database name, SQLite's path; None: it cannot be told. `address`: for people.

    `url` is what connections of our own are opened with, or "". `alias`: of Django's DATABASES, where that names it; which
    database that is, is looked up at each use, because Django's test runner moves it.
    """

    dialect: Dialect
    name: str | None
    address: str
    url: str = field(default="", repr=False)
    alias: str = ""


def target_of(db: object) -> Target:
    """The database that `db` names. Raises `Refused`: CLM040 (nothing that can be used), CLM041 (volatile)."""
    if isinstance(db, (str, os.PathLike)):
        return _of_text(os.fspath(db)) if isinstance(db, str) else _sqlite_file(os.fspath(db))
    found = recognise(db)
    if found is None:
        if is_volatile_client(db):
            raise volatile(kind_of(db))
        raise Refused("CLM040", f"once({kind_of(db)}): {WHERE}")
    if not found.source:
        raise Refused(
            "CLM040",
            f"once({found.make.value}): a declaration outlives any one connection; {WHERE}. The connection itself goes to "
            "run.once(connection, effect)",
        )
    if found.make is Make.PSYCOPG_POOL:
        return of_conninfo(getattr(db, "conninfo", ""))
    return of_engine(engine_of(db, found.make))


def engine_of(db: Any, make: Make) -> Any:
    """The plain engine below a SQLAlchemy handle, or None where a session maker is bound to none."""
    if make is Make.MAKER:
        bind = db.kw.get("bind")
        bind = getattr(bind, "engine", bind)
    else:
        bind = db
    return getattr(bind, "sync_engine", bind)


def of_engine(engine: Any) -> Target:
    """The database of a SQLAlchemy engine (the plain one). Raises `Refused` for other databases and for memory."""
    if engine is None:
        raise Refused("CLM040", f"once(a session maker without bind=): {WHERE}")
    kind = engine.dialect.name
    url = engine.url
    address = url.render_as_string(hide_password=True)
    if kind == Dialect.SQLITE:
        if (
            url.database in (None, "", ":memory:")
            or url.query.get("mode") == "memory"
            or "mode=memory" in str(url.database)
        ):
            raise volatile(address)
        return Target(Dialect.SQLITE, _plain_path(url.database), address)
    if kind == Dialect.POSTGRESQL:
        return Target(Dialect.POSTGRESQL, url.database, address)
    raise not_yet(kind)


def of_conninfo(conninfo: str) -> Target:
    """The database of a libpq connection string, by psycopg's own reading of it."""
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = conninfo_to_dict(conninfo) if conninfo else {}
    except Exception:
        parts = {}
    name, host = parts.get("dbname"), parts.get("host")
    address = f"postgresql://{host or ''}/{name or ''}"
    return Target(Dialect.POSTGRESQL, str(name) if name else None, address)


def _of_text(text: str) -> Target:
    scheme, colon, rest = text.partition(":")
    base = scheme.partition("+")[0].lower()
    if not colon or not base:
        raise Refused("CLM040", f"once({_shown(text)!r}): that is no URL; {WHERE}")
    if base in VOLATILE_SCHEMES:
        raise volatile(f"{base}:")
    if base in ("postgresql", "postgres"):
        return _postgres(text, rest)
    if base == "sqlite":
        return _sqlite(rest)
    if base == "django":
        from claimant._sql.django_alias import of_alias

        return of_alias(rest)
    raise not_yet(base)


def _postgres(text: str, rest: str) -> Target:
    from urllib.parse import parse_qs, unquote, urlsplit

    if not rest.startswith("//"):
        raise Refused(
            "CLM040", f"once({_shown(text)!r}): a URL of PostgreSQL begins with postgresql://; {WHERE}"
        )
    parts = urlsplit(f"postgresql:{rest}")
    user, at, hosts = parts.netloc.rpartition("@")
    user = user.partition(":")[0] + at
    options = [option for option in parts.query.split("&") if option and not option.startswith("deadline=")]
    name = unquote(parts.path.lstrip("/"))
    if "@" in name or ("@" in rest and not at):
        # A raw "/" or "?" in the password: what looks like the path is a part of it, and must not be shown.
        raise Refused(
            "CLM040", f"once({_shown(text)!r}): write special characters of the password as %XX; {WHERE}"
        )
    # Not by urlunsplit, which drops the two slashes where no host follows them.
    url = f"postgresql://{parts.netloc}{parts.path}{'?' if options else ''}{'&'.join(options)}"
    known = name or parse_qs(parts.query).get("dbname", [""])[-1]
    return Target(Dialect.POSTGRESQL, known or None, f"postgresql://{user}{hosts}/{name}", url)


def _sqlite(rest: str) -> Target:
    from urllib.parse import unquote

    # sqlite:PATH is ours; sqlite:///relative and sqlite:////absolute are SQLAlchemy's.
    if rest.startswith("//"):
        rest = rest[3:] if rest.startswith("///") else ""
    path, _, query = rest.partition("?")
    path = unquote(path.removeprefix("file:"))
    if not path or path.startswith(":memory:") or "mode=memory" in query:
        raise volatile(f"sqlite:{path}")
    return _sqlite_file(path)


def _sqlite_file(path: str | bytes) -> Target:
    from pathlib import Path  # by a guard that names a file

    path = os.fsdecode(path)
    if not path or path == ":memory:":
        raise volatile(f"sqlite:{path}")
    try:
        path = str(Path(path).expanduser().absolute())
    except RuntimeError:
        raise Refused(
            "CLM040", f"once('sqlite:{path}'): there is no such home folder; write the whole path"
        ) from None
    return Target(Dialect.SQLITE, path, f"sqlite:{path}", path)


def _plain_path(path: str) -> str:
    return path.removeprefix("file:").partition("?")[0] if path.startswith("file:") else path


def same_database(declared: Target, given: Target) -> bool:
    """Whether the two may be one database, as far as that can be told."""
    from pathlib import Path  # by a guard that names a file

    if declared.dialect is not given.dialect:
        return False
    if declared.alias:
        from claimant._sql.django_alias import now

        declared = now(declared)
    if declared.name is None or given.name is None or declared.name == given.name:
        return True
    if declared.dialect is Dialect.POSTGRESQL:
        return False
    try:
        return Path(declared.name).samefile(given.name)
    except OSError:
        return Path(declared.name).resolve() == Path(given.name).resolve()


def not_accepted(handle: object) -> Refused:
    """The refusal of a handle that `run.once` cannot use."""
    if is_volatile_client(handle):
        return volatile(kind_of(handle))
    return Refused(
        "CLM042", f"run.once({kind_of(handle)}, …): the effect needs a handle of its database: {ACCEPTED}"
    )


def volatile(what: str) -> Refused:
    return Refused(
        "CLM041",
        f"{what} forgets: a guard must survive what the effect survives, or a restart lets the second attempt through. "
        "Keep the lease there if you like, and " + WHERE,
    )


def not_yet(kind: str) -> Refused:
    return Refused(
        "CLM040",
        f"once() on {kind}: only SQLite and PostgreSQL can guard an effect in this version; {WHERE}",
    )


def _shown(text: str) -> str:
    """A text that may hold a password, cut down to what cannot."""
    return text.partition(":")[0][:20] + ":…" if ":" in text else "…"
