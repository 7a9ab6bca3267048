"""What `status`, `leases` and `init` read and do, for `main` to print."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from claimant import guards
from claimant._drive import clock
from claimant._drive.ports import LeaseRow
from claimant._model.durations import in_words
from claimant._model.errors import ClaimantError, LedgerAbsent, Refused
from claimant._model.names import LONGEST_KEY, PREFIX, job_key, shown
from claimant._model.rows import JobRow
from claimant._model.value import holder_of
from claimant.embedded import default_ledger, default_store, in_a_container
from claimant.evidence import Report, report
from claimant.ledger import init as init_ledger
from claimant.ledger import open_ledger
from claimant.ledger.reading import Survey
from claimant.ledger.schema import VERSION
from claimant.stores import open_store

PATIENCE_MS = 3_000
"""How long a command waits for the ledger, and for the store, if the URL has no `?deadline=`: longer than a job may."""
SILENCE_S = 1.0
"""After which a person is told what is being waited for."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Status:
    """What the ledger and the store say, and what could not be asked."""

    report: Report
    notes: tuple[str, ...]
    rejections: tuple[guards.Rejection, ...]
    nothing: str = ""
    """Why there is no job, if there is none."""
    away: str = ""
    """What the ledger's absence looks like; "" where it answered."""
    leases: tuple[Shown, ...] = ()
    """What the store holds: read where the ledger is away, and no more can be said."""
    name: str | None = None

    @property
    def failed(self) -> bool:
        """Whether a script should take notice: the ledger is away, or nothing is known of the job asked for."""
        return bool(self.away) or (self.name is not None and not self.report.jobs)

    def lines(self) -> list[str]:
        """For a terminal."""
        lines = self.report.lines(explain=self.name is not None)
        if self.nothing:
            lines.append(self.nothing)
        lines += [f"lease: {lease.line()}" for lease in self.leases]
        lines += [
            f"guard: {shown(row.job)} ({row.stake}): {_times(row.count, row.cause)} rejected, {row.hole or 'cause not known'}"
            for row in self.rejections
        ]
        return lines + [f"note: {note}" for note in self.notes]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able. `ledger` and `leases` are there only where the ledger did not answer."""
        counted = [
            {"job": row.job, "stake": row.stake, "cause": row.cause, "hole": row.hole, "count": row.count}
            for row in self.rejections
        ]
        found = {**self.report.as_dict(), "rejections": counted, "notes": list(self.notes)}
        if self.away:
            found |= {"ledger": self.away, "leases": [lease.as_dict() for lease in self.leases]}
        return found


def read_status(
    store: str | None,
    ledger: str | None,
    namespace: str | None,
    name: str | None,
    guard: str | None,
    say: Say = lambda _: None,
) -> Status:
    """Read the ledger, and the store if it answers: a status is worth most while it does not.

    `namespace`: None for all. `say` is told what is being waited for. A ledger that does not answer leaves the leases.
    """
    found: Survey | None = None
    away, job = "", name
    book = open_ledger(_there("ledger", ledger, default_ledger), deadline_ms=PATIENCE_MS)
    try:
        with _told(say, f"asking the ledger {book.address} …"):
            found = book.survey(name, namespace=namespace)
            if name is not None and namespace is None and (where := _named(name, found)):
                job = where[1]
                found = book.survey(job, namespace=where[0])
    except LedgerAbsent as error:
        away = shown(_first_line(str(error)), 1_000)
    finally:
        book.close()
    rows: dict[str, LeaseRow] | None = None
    notes = [] if found is None else _older(found, book.address)
    try:
        with _told(say, "asking the lease store …"):
            rows = {row.key: row for row in _scan(store, namespace)}
    except ClaimantError as error:
        notes.append(f"the lease store was not asked: {shown(_first_line(str(error)), 500)}")
    counted = () if guard is None else tuple(guards.rejections(guard, job))
    if found is None:
        held = _shown_all((rows or {}).values(), namespaced=namespace is None)
        return Status(Report(0, (), ()), tuple(notes), counted, "", away, tuple(held), name)

    def lease_of(job: JobRow) -> LeaseRow | None:
        return None if rows is None else rows.get(job_key(job.namespace, job.job, job.key))

    judged = report(
        found.jobs,
        found.tallies,
        found.now,
        lease_of=lease_of,
        asked=rows is not None,
        namespaced=namespace is None,
    )
    nothing = "" if found.jobs else _nothing(found, namespace, name)
    return Status(judged, tuple(notes), counted, nothing, name=name)


def _older(found: Survey, address: str) -> list[str]:
    """What a ledger does not tell whose tables are older than this library."""
    if found.version >= VERSION:
        return []
    said = (
        f"the ledger's tables have version {found.version}, and this claimant knows {VERSION}: what the later one added is not "
        f"recorded until you run `claimant init --ledger {address}`"
    )
    return [said]


def _named(name: str, found: Survey) -> tuple[str, str] | None:
    """Namespace and job of a name as it is shown, "shop/debit", where no job is called so itself."""
    return next((each for each in found.known if f"{each[0]}/{each[1]}" == name), None)


def _nothing(found: Survey, namespace: str | None, name: str | None) -> str:
    """Why there is no job to show, and what there is instead."""
    where = "in this ledger" if namespace is None else f"in the namespace {_space(namespace)} of this ledger"
    what = "no job" if name is None else f"no job named {shown(name)}"
    said = f"{what} has started or skipped {where}"
    here = [(space, job) for space, job in found.known if namespace is None or space == namespace]
    if name is not None and here:
        names = sorted({f"{space}/{job}" if namespace is None and space else job for space, job in here})
        near = difflib.get_close_matches(name, names, 3)
        return f"{said}; did you mean {' or '.join(map(shown, near))}?" if near else said
    spaces = sorted({space for space, _ in found.known})
    return f"{said}; it has jobs in {_spaces(spaces)}" if spaces else said


def _space(namespace: str) -> str:
    return shown(namespace) if namespace else "without a name"


def _spaces(spaces: list[str]) -> str:
    named = ", ".join(shown(space) or "the one without a name" for space in spaces[:20])
    return f"the {'namespace' if len(spaces) == 1 else 'namespaces'} {named}"


@dataclass(frozen=True, slots=True)
class Shown:
    """One claim, for people. A name too long for a key is not whole, and ends with "…"."""

    namespace: str
    name: str
    holder: str
    remaining_ms: int | None
    namespaced: bool = False

    def line(self) -> str:
        """One line."""
        left = "no end (immortal)" if self.remaining_ms is None else f"{in_words(self.remaining_ms)} left"
        named = self.namespace and (self.namespaced or self.name == "…")
        name = f"{shown(self.namespace)}/{self.name}" if named else self.name
        return f"{name}: held by {self.holder}, {left}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "holder": self.holder,
            "remaining_ms": self.remaining_ms,
        }


def read_leases(
    store: str | None, namespace: str | None, say: Say = lambda _: None
) -> tuple[list[Shown], str]:
    """The claims of a namespace, or of all (None), by name; and a sentence where there are none."""
    with _told(say, "asking the lease store …"):
        found = _shown_all(_scan(store, namespace), namespaced=namespace is None)
        if found or namespace is None:
            return found, "no claims"
        others = sorted({_parted(row.key)[0] for row in _scan(store, None)})
    said = f"no claims in the namespace {_space(namespace)}"
    return found, f"{said}; there are claims in {_spaces(others)}" if others else said


def _shown_all(rows: Iterable[LeaseRow], *, namespaced: bool) -> list[Shown]:
    found = []
    for row in rows:
        space, name = _parted(row.key)
        found.append(Shown(space, name, holder_of(row.value), row.remaining_ms, namespaced))
    return sorted(found, key=lambda each: (each.namespace, each.name))


def _parted(key: str) -> tuple[str, str]:
    """Namespace and name of a lease, from its key. A key that was cut ends with a hash (`names.lease_key`)."""
    whole, cut, _ = key.removeprefix(f"{PREFIX}:").partition("*:")
    space, colon, name = whole.partition(":")
    pieces = [unquote(piece) for piece in name.split(":")]
    if not colon:
        # What was cut is the namespace itself.
        return unquote(whole) + ("…" if cut else ""), "…" if cut else ""
    return unquote(space), shown(": ".join(pieces)) + ("…" if cut else "")


def _scan(store: str | None, namespace: str | None) -> list[LeaseRow]:
    named = _there("store", store, default_store)
    opened = open_store(named)
    limited = "deadline" in dict(parse_qsl(named.partition("?")[2]))
    within_ms = opened.deadline_ms if limited else PATIENCE_MS
    prefix = f"{PREFIX}:" if namespace is None else f"{PREFIX}:{quote(namespace, safe='-_.~')}:"
    port = opened.blocking()
    try:
        # A namespace may be longer than a key: then all keys of it are cut at the same place.
        return list(port.scan(prefix[: LONGEST_KEY - 66], clock.now_ms() + within_ms))
    finally:
        port.close()


def _there(what: str, url: str | None, default: Callable[[], str]) -> str:
    """The URL to read from. A file that does not exist is refused: reading must not make one of a mistyped path."""
    if url is None and in_a_container():
        raise Refused(
            "CLM051",
            f"no {what} is named, and this is a container, where the workers' own is not this user's file. Name theirs: "
            f"--{what} URL or CLAIMANT_{what.upper()}, for instance --{what} sqlite:/var/lib/app/"
            + ("ledger.db" if what == "ledger" else "leases.db"),
        )
    named = url or default()
    scheme, _, rest = named.partition(":")
    path = Path(rest.partition("?")[0]).expanduser()
    if scheme == "sqlite" and not path.exists():
        whose = "" if url else f" (this host's embedded {what}; name another with --{what} URL)"
        raise Refused("CLM073", f"there is no {what} at {path}{whose}: nothing has started with it yet")
    return named


@contextmanager
def _told(say: Say, what: str) -> Iterator[None]:
    """Say what is waited for, once it takes long: silence looks like a hang."""
    timer = threading.Timer(SILENCE_S, say, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _times(count: int, what: str) -> str:
    ending = "" if count == 1 else "es" if what.endswith("ch") else "s"
    return f"{count} {what}{ending}"


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def initialise(ledger: str | None, guard: str | None, *, show_sql: bool) -> list[str]:
    """Make tables, or show the statements. Says what was done."""
    if ledger is None and guard is None:
        raise Refused("CLM072", "init makes tables: say where, with --ledger URL, --guard URL, or both")
    if show_sql:
        from claimant.cli.init_sql import script

        return script(ledger, guard)
    said: list[str] = []
    if ledger is not None:
        said.append(f"ledger tables are in {init_ledger(ledger)}")
    if guard is not None:
        said.append(f"guard tables are in {guards.init(guard)}")
    return said
