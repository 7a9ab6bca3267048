"""What must hold in the live database before anything is guarded in it: that it remembers, and that the tables are there.

Flows of their own, because they are carried out on the caller's connection like the guard itself.
"""

from __future__ import annotations

from claimant._model.dialect import Dialect
from claimant._model.errors import Refused
from claimant._model.guarding import Execute, Reply
from claimant._model.ops import Flow
from claimant._sql.guard_texts import GUARD, REJECTION
from claimant._sql.target import Target, same_database

_SQLITE = """SELECT (SELECT file FROM pragma_database_list WHERE name = 'main'),
    (SELECT journal_mode FROM pragma_journal_mode), (SELECT synchronous FROM pragma_synchronous)"""
_POSTGRES = """SELECT current_database(),
    (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass('claimant_guard')),
    (SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass('claimant_rejection'))"""


def sqlite_remembers(declared: Target) -> Flow[None]:
    """Refuse a database in memory, without a journal, or without syncing; and another file than the declared one.

    These belong to the connection, so they are looked at each time.
    """
    reply: Reply = yield Execute(_SQLITE)
    [(file, journal, synchronous)] = reply.rows
    file, journal = _text(file), _text(journal)
    if not file:
        raise _forgets("this SQLite database is in memory")
    if journal in ("off", "memory"):
        raise _forgets(
            f"PRAGMA journal_mode={journal}: a crash can leave half a transaction. Use WAL or DELETE"
        )
    if int(synchronous) == 0:
        raise _forgets(
            "PRAGMA synchronous=OFF: a crash can undo what was committed. Use NORMAL with WAL, else FULL"
        )
    refuse_other(declared, Target(Dialect.SQLITE, file, f"sqlite:{file}"))


def postgres_remembers() -> Flow[bool]:
    """Refuse unlogged and temporary tables. False: the tables are missing."""
    reply: Reply = yield Execute(_POSTGRES)
    [(_, *persistence)] = reply.rows
    for table, kind in zip((GUARD, REJECTION), persistence, strict=True):
        if kind in ("u", "t"):
            what = "unlogged: a crash empties it" if kind == "u" else "temporary: it ends with its connection"
            raise _forgets(f"the table {table} is {what}. Make it a plain table")
    return None not in persistence


def refuse_other(declared: Target, given: Target) -> None:
    """Raise `Refused` (CLM044) where the handle is certainly of another database than the guard was declared for."""
    if not same_database(declared, given):
        raise Refused(
            "CLM044",
            f"the guard was declared for {declared.address}, and the handle is of {given.address}: a guard row in another "
            "database does not commit with the effect. Pass a handle of the declared database, or declare this one",
        )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _forgets(what: str) -> Refused:
    return Refused(
        "CLM041", f"{what}. A guard must survive a crash, or the second attempt is let through after it"
    )
