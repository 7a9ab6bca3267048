"""Whether the live database can guard at all, looked at on the caller's own connection before anything is done in it."""

from __future__ import annotations

from claimant._flows.once import missing_tables
from claimant._model.dialect import Dialect
from claimant._model.events import Event
from claimant._model.ops import Emit, Flow
from claimant._sql.constraint import Constraint, in_postgres, in_sqlite
from claimant._sql.live import postgres_remembers, sqlite_remembers
from claimant.guards.once import Once


def fit(guard: Once, place: str, found: list[Constraint | None], job: str) -> Flow[None]:
    """See, on the live database, that it can guard. Once per process and database, but for what a connection sets."""
    if guard.target.dialect is Dialect.SQLITE:
        yield from sqlite_remembers(guard.target)
    if place not in guard.fit:
        if guard.target.dialect is Dialect.POSTGRESQL and not (yield from postgres_remembers()):
            raise missing_tables(job)
        guard.fit[place] = (
            None if guard.constraint is None else (yield from _own(guard, guard.constraint, job))
        )
    found.append(guard.fit[place])


def _own(guard: Once, declared: str, job: str) -> Flow[Constraint]:
    look = in_postgres if guard.target.dialect is Dialect.POSTGRESQL else in_sqlite
    constraint = yield from look(declared)
    if constraint.nullable:
        text = (
            f"constraint={declared!r} covers columns that may be NULL ({constraint.nullable}), and two NULLs do not violate "
            "it: make them NOT NULL"
        )
        yield Emit(Event("guard.nullable", job, text, "warning", {"constraint": declared}))
    return constraint
