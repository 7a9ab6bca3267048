"""What `status`, `leases` and `init` read and do, for `main` to print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from claimant import guards
from claimant._drive import clock
from claimant._drive.ports import LeaseRow
from claimant._model.durations import in_words
from claimant._model.errors import ClaimantError, Refused
from claimant._model.names import PREFIX, job_key, shown
from claimant._model.records import JobRow
from claimant._model.value import holder_of
from claimant.embedded import default_ledger, default_store
from claimant.evidence import Report, report
from claimant.ledger import init as init_ledger
from claimant.ledger import open_ledger, sql_for
from claimant.stores import open_store

PATIENCE_MS = 3_000
"""How long a command waits for the store, and for the ledger: a person asks, so longer than a job may."""


@dataclass(frozen=True, slots=True)
class Status:
    """What the ledger and the store say, and what could not be asked."""

    report: Report
    notes: tuple[str, ...]
    rejections: tuple[guards.Rejection, ...]
    name: str | None

    @property
    def jobs(self) -> tuple[Any, ...]:
        """The jobs found."""
        return self.report.jobs

    def lines(self) -> list[str]:
        """For a terminal."""
        lines = self.report.lines(explain=self.name is not None)
        if not self.jobs:
            what = "no job" if self.name is None else f"no job named {shown(self.name)}"
            lines.append(f"{what} has started or skipped here")
        lines += [
            f"guard: {shown(row.job)} ({row.stake}): rejected as {row.cause}: {row.count}, {row.hole or 'cause not known'}"
            for row in self.rejections
        ]
        return lines + [f"note: {shown(note, 500)}" for note in self.notes]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        counted = [
            {"job": row.job, "stake": row.stake, "cause": row.cause, "hole": row.hole, "count": row.count}
            for row in self.rejections
        ]
        return {**self.report.as_dict(), "rejections": counted, "notes": list(self.notes)}


def read_status(
    store: str | None, ledger: str | None, namespace: str | None, name: str | None, guard: str | None
) -> Status:
    """Read the ledger, and the store if it answers: a status is worth most while it does not.

    `namespace`: None for all. Raises `LedgerAbsent`, after `?deadline=` or three seconds.
    """
    book = open_ledger(_there("ledger", ledger, default_ledger), deadline_ms=PATIENCE_MS)
    try:
        seen = book.survey(name, namespace=namespace)
    finally:
        book.close()
    notes: list[str] = []
    rows: dict[str, LeaseRow] | None = None
    try:
        rows = {row.key: row for row in _scan(store, namespace)}
    except ClaimantError as error:
        notes.append(f"the lease store was not asked: {error}")

    def lease_of(job: JobRow) -> LeaseRow | None:
        return None if rows is None else rows.get(job_key(job.namespace, job.job, job.key))

    judged = report(
        seen.jobs,
        seen.tallies,
        seen.now,
        lease_of=lease_of,
        asked=rows is not None,
        namespaced=namespace is None,
    )
    if not seen.jobs and seen.known:
        notes.append(_elsewhere(seen.known, namespace, name))
    counted = () if guard is None else tuple(guards.rejections(guard, name))
    return Status(judged, tuple(notes), counted, name)


def _elsewhere(known: tuple[tuple[str, str], ...], namespace: str | None, name: str | None) -> str:
    """What there is instead of what was asked for."""
    near = [] if name is None else get_close_matches(name, sorted({job for _, job in known}), n=3)
    if near:
        return f"is one of these meant? {', '.join(shown(each) for each in near)}"
    spaces = sorted({space for space, _ in known})
    if namespace is not None and namespace not in spaces:
        return f"the ledger has these namespaces: {', '.join(shown(each) or '(none)' for each in spaces)}"
    return f"the ledger has {len(known)} other jobs"


@dataclass(frozen=True, slots=True)
class Shown:
    """One claim, for people."""

    name: str
    holder: str
    remaining_ms: int | None

    def line(self) -> str:
        """One line."""
        left = "no end (immortal)" if self.remaining_ms is None else f"{in_words(self.remaining_ms)} left"
        return f"{self.name}: held by {self.holder}, {left}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"name": self.name, "holder": self.holder, "remaining_ms": self.remaining_ms}


def read_leases(store: str | None, namespace: str | None) -> list[Shown]:
    """The claims of a namespace, or of all (None), by name."""
    found = [
        Shown(_name(row.key, namespaced=namespace is None), holder_of(row.value), row.remaining_ms)
        for row in _scan(store, namespace)
    ]
    return sorted(found, key=lambda each: each.name)


def _name(key: str, *, namespaced: bool) -> str:
    space, *pieces = map(unquote, key.split(":")[1:])
    name = ": ".join(pieces)
    return shown(f"{space}/{name}" if namespaced and space else name)


def _scan(store: str | None, namespace: str | None) -> list[LeaseRow]:
    opened = open_store(_there("store", store, default_store))
    port = opened.blocking()
    prefix = f"{PREFIX}:" if namespace is None else job_key(namespace, "")
    try:
        return list(port.scan(prefix, clock.now_ms() + PATIENCE_MS))
    finally:
        port.close()


def _there(what: str, url: str | None, default: Callable[[], str]) -> str:
    """The URL to read from. A file that does not exist is refused: reading must not make one of a mistyped path."""
    named = url or default()
    scheme, _, rest = named.partition(":")
    path = Path(rest.partition("?")[0]).expanduser()
    if scheme == "sqlite" and not path.exists():
        whose = "" if url else f" (this host's embedded {what}; name another with --{what} URL)"
        raise Refused("CLM073", f"there is no {what} at {path}{whose}: nothing has started with it yet")
    return named


def initialise(ledger: str | None, guard: str | None, *, show_sql: bool) -> list[str]:
    """Make tables, or show the statements. Says what was done."""
    if ledger is None and guard is None:
        raise Refused("CLM072", "init makes tables: say where, with --ledger URL, --guard URL, or both")
    said: list[str] = []
    if ledger is not None:
        said.append(sql_for(ledger) if show_sql else f"ledger tables are in {init_ledger(ledger)}")
    if guard is not None:
        declared = guards.once(guard)
        said.append(
            guards.schema_sql(declared.dialect) if show_sql else f"guard tables are in {guards.init(guard)}"
        )
    return said
