"""The ledger: the durable record of runs, skips and rejections, and of what was completed.

It never keeps a lease, and it is never volatile: "the claim is gone" is not "the job is done". Opening one does no
I/O and imports no driver; the first call does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from claimant._model.durations import duration_ms
from claimant.ledger.address import PostgresPlace, place_of
from claimant.ledger.schema import Dialect, schema_sql
from claimant.ledger.spool import Spooled

if TYPE_CHECKING:
    from claimant.ledger.postgres import PostgresLedger
    from claimant.ledger.sqlite import SqliteLedger

__all__ = ["DEADLINE_MS", "Spooled", "init", "open_ledger", "schema_sql", "sql_for"]

DEADLINE_MS = 1_000
"""How long one request may take. A job's start pays it at most once: see `patience`."""
_INIT_MS = 30_000


def open_ledger(
    target: str, *, namespace: str = "", deadline_ms: int = DEADLINE_MS
) -> SqliteLedger | PostgresLedger:
    """The ledger at `target`: `sqlite:PATH` (one host) or `postgresql://…`; no I/O before its first call.

    `?deadline=2s` on the target wins over `deadline_ms`. Rows of two namespaces never meet.

    Raises:
        Refused: a volatile place (CLM081), or one that is not understood (CLM082).

    Example:
        >>> open_ledger("sqlite:/var/lib/app/ledger.db", namespace="shop").address
        'sqlite:/var/lib/app/ledger.db'
    """
    place = place_of(target)
    limit = place.deadline_ms or duration_ms(deadline_ms / 1000, "deadline_ms")
    if isinstance(place, PostgresPlace):
        from claimant.ledger.postgres import PostgresLedger

        return PostgresLedger(place, namespace=namespace, deadline_ms=limit)
    from claimant.ledger.sqlite import SqliteLedger

    return SqliteLedger(place.path, namespace=namespace, deadline_ms=limit)


def init(target: str) -> str:
    """Make the ledger's tables or bring older ones up to date, and return its address. Safe to repeat, and by two at once.

    Raises:
        LedgerAbsent: it did not answer, or does not let us.
        LedgerCorrupt: what is there is not a ledger that this version can read.
    """
    ledger = open_ledger(target, deadline_ms=_INIT_MS)
    try:
        ledger.init(_INIT_MS)
    finally:
        ledger.close()
    return ledger.address


def sql_for(target: str) -> str:
    """The statements that `init(target)` would run; asks no server."""
    dialect: Dialect = "postgresql" if isinstance(place_of(target), PostgresPlace) else "sqlite"
    return schema_sql(dialect)
