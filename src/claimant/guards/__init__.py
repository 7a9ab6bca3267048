"""Floor 2: guards, where the second attempt at an operation is rejected: durably, at the effect. They never import a store."""

from claimant.guards.once import Context, Once, Said, once, once_aio, once_blocking
from claimant.guards.tables import Rejection, init, rejections, schema_sql

__all__ = [
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
