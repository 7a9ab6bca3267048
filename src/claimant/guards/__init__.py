"""Floor 2: guards, where the second attempt at an operation is rejected: durably, at the effect. They never import a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from claimant.guards.once import Attested, Context, Once, Said, once, once_aio, once_blocking

if TYPE_CHECKING:
    from claimant.guards.tables import Rejection, init, rejections, schema_sql

__all__ = [
    "Attested",
    "Context",
    "Once",
    "Rejection",
    "Said",
    "init",
    "once",
    "once_aio",
    "once_blocking",
    "rejections",
    "schema_sql",
]


def __getattr__(name: str) -> Any:
    """What only operators use is imported when it is used: declaring a guard stays cheap."""
    if name in ("Rejection", "init", "rejections", "schema_sql"):
        from claimant.guards import tables

        return getattr(tables, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
