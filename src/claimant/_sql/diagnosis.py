"""What a driver's error means, read from its codes and never from the end of its message where a code exists.

Knows sqlite3, the PostgreSQL drivers and SQLAlchemy's wrapper by their attributes; imports none of them.
"""

from __future__ import annotations

import re
from typing import Any

from claimant._model.guarding import ConnectionGone, Diagnosis, Trouble

DRIVERS = frozenset(
    {
        "sqlite3",
        "psycopg",
        "psycopg_pool",
        "psycopg2",
        "sqlalchemy",
        "aiosqlite",
        "asyncpg",
        "pg8000",
        "django",
    }
)

_SQLSTATES = {
    "23505": Trouble.UNIQUE,
    "40001": Trouble.SERIALIZATION,
    "40P01": Trouble.DEADLOCK,
    "55P03": Trouble.LOCK_TIMEOUT,
    "42P01": Trouble.MISSING_TABLE,
    "25006": Trouble.READ_ONLY,
    "25P02": Trouble.VOID,
}
# https://www.sqlite.org/rescode.html: the primary code is the low byte, extended codes are listed where they matter.
_SQLITE_CODES = {
    517: Trouble.STALE,
    2067: Trouble.UNIQUE,
    1555: Trouble.UNIQUE,
    5: Trouble.LOCK_TIMEOUT,
    6: Trouble.LOCK_TIMEOUT,
    8: Trouble.READ_ONLY,
    10: Trouble.UNSURE,
    13: Trouble.UNSURE,
}
_SECRET = re.compile(r"(?i)(://[^:/@\s]*:)[^@\s]*(@)|(password\s*=\s*)('[^']*'|\S+)")


def diagnose(error: BaseException, *, broken: bool = False) -> Diagnosis:
    """`error`, classified. `broken`: the connection that the guard uses is known to be dead."""
    raw = _raw(error)
    text = one_line(raw)
    ours = isinstance(error, (ConnectionGone, OSError, TimeoutError)) or _is_driver(error) or _is_driver(raw)
    if isinstance(error, ConnectionGone) or (broken and ours):
        return Diagnosis(Trouble.LOST, text=text)
    sqlite_code = getattr(raw, "sqlite_errorcode", None)
    if isinstance(sqlite_code, int):
        return _sqlite(sqlite_code, str(raw), text)
    state = getattr(raw, "sqlstate", None) or getattr(raw, "pgcode", None) or _pg8000(raw)
    trouble = _SQLSTATES.get(state, Trouble.OTHER) if isinstance(state, str) else Trouble.OTHER
    return Diagnosis(trouble, _violated(raw) if trouble is Trouble.UNIQUE else (), ours, text)


def _raw(error: BaseException) -> BaseException:
    """The driver's own error below SQLAlchemy's or Django's."""
    found = getattr(error, "orig", None)
    if found is None and type(error).__module__ == "django.db.utils":
        found = error.__cause__
    return found if isinstance(found, BaseException) else error


def one_line(error: BaseException) -> str:
    """An error for people: its type and first line, passwords taken out."""
    words = " ".join(str(error).split())[:300]
    words = _SECRET.sub(lambda found: f"{found[1] or found[3]}***{found[2] or ''}", words)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _is_driver(error: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] in DRIVERS for kind in type(error).__mro__)


def _sqlite(code: int, message: str, text: str) -> Diagnosis:
    trouble = _SQLITE_CODES.get(code) or _SQLITE_CODES.get(code & 0xFF, Trouble.OTHER)
    if trouble is Trouble.OTHER and code & 0xFF == 1 and message.startswith("no such table: claimant_"):
        trouble = Trouble.MISSING_TABLE
    violated: tuple[str, ...] = ()
    if trouble is Trouble.UNIQUE:
        violated = tuple(message.partition("constraint failed: ")[2].split(", "))
    return Diagnosis(trouble, violated, text=text)


def _violated(raw: Any) -> tuple[str, ...]:
    """Schema, table and constraint of a 23505."""
    details = getattr(raw, "diag", None)
    if details is None:
        cause = raw.__cause__ if getattr(raw.__cause__, "constraint_name", None) else raw
        details = cause
    given = tuple(
        getattr(details, name, None) or "" for name in ("schema_name", "table_name", "constraint_name")
    )
    if not any(given) and raw.args and isinstance(raw.args[0], dict):
        given = tuple(str(raw.args[0].get(letter, "")) for letter in "stn")
    return given


def _pg8000(raw: BaseException) -> str | None:
    first = raw.args[0] if raw.args else None
    return first.get("C") if isinstance(first, dict) else None
