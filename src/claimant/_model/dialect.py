"""Which databases can guard an effect. Apart from `guarding`, so that declaring a guard stays cheap to import."""

from __future__ import annotations

from enum import StrEnum


class Dialect(StrEnum):
    """The database that a guard lives in."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
