"""Statements, and the rows that the book's decisions are made from.

Nothing here decides what a request means; see `book`.
"""

# ruff: noqa: S608 - the texts are joined from constants of this package; every value is a parameter
from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from claimant._model.record import record
from claimant._model.records import LedgerReply, RunStart, SlotClosed
from claimant.ledger.schema import has
from claimant.ledger.text import clean, digest

SUCCESS = "ran"
FAILED = "failed"
UNCOMMITTED = "uncommitted"
CLAIMED = ("kept", "off")
"""Claims at the start of a run that is not counted as one without a claim: "off" has none on purpose."""
WOULD_REJECT = "would_reject"
DUPLICATE = "duplicate"


class Sql(NamedTuple):
    """One statement. `?` stands for a parameter, `claimant_now()` for the ledger's clock, `{lock}` for a row lock."""

    text: str
    params: tuple[Any, ...] = ()


class Page(NamedTuple):
    """What a request came to: its reply, and what to write before it may be given."""

    reply: LedgerReply
    writes: Sequence[Sql] = ()


def insert(version: int, table: str, values: Mapping[str, Any]) -> Sql:
    """A new row. What a ledger of this version has no column for is left out."""
    known = {column: value for column, value in values.items() if has(version, table, column)}
    marks = ", ".join("?" * len(known))
    return Sql(f"INSERT INTO {table} ({', '.join(known)}) VALUES ({marks})", tuple(known.values()))


def update(
    version: int,
    table: str,
    row: bytes,
    *,
    add: Mapping[str, int],
    put: Mapping[str, Any],
    and_also: Sql | None = None,
) -> Sql:
    """One row, its totals raised by `add`. What a ledger of this version has no column for is left out."""
    added = {column: value for column, value in add.items() if has(version, table, column)}
    known = {column: value for column, value in put.items() if has(version, table, column)}
    changes = [*(f"{column} = {column} + ?" for column in added), *(f"{column} = ?" for column in known)]
    params = [*added.values(), *known.values()]
    if and_also is not None:
        changes.append(and_also.text)
        params += and_also.params
    return Sql(f"UPDATE {table} SET {', '.join(changes)} WHERE id = ?", (*params, row))


Row: TypeAlias = Sequence[Any]
Steps: TypeAlias = Generator[Sql, Sequence[Row], Page]


@record
class JobFacts:
    """What of a job's row decides; locked until the transaction ends."""

    last_run: bytes | None
    last_started: int | None
    last_ended: int | None
    last_skip: int | None
    skips: int
    skips_in_row: int
    skips_since: int | None


@record
class SlotFacts:
    """A slot's row; `closed` is None while it is open."""

    attempts: int
    failed: int
    last_run: bytes | None
    last_started: int | None
    closed: int | None
    closed_by: str
    completed: bool
    result: str | None
    reason: str

    def verdict(self, slot: str, attempts: int) -> SlotClosed | None:
        """Whether the slot needs no run, where `attempts` failed runs are allowed."""
        if self.closed is not None:
            reason = "" if self.completed else self.reason
            return SlotClosed(self.closed_by, self.completed, self.result if self.completed else None, reason)
        if self.failed >= attempts:
            used = f"slot {slot}: {self.failed} of {attempts} attempts used up by failures; the last: {self.reason}"
            return SlotClosed(self.closed_by, completed=False, reason=used)
        return None


JOB = "SELECT last_run, last_started, last_ended, last_skip, skips, skips_in_row, skips_since FROM claimant_jobs WHERE id = ?{lock}"
SLOT = (
    "s.attempts, s.failed, s.last_run, s.last_started, s.closed, s.closed_by, s.completed, s.result, s.reason"
)


def locked(namespace: str, job: str, key: str, job_id: bytes) -> Generator[Sql, Sequence[Row], JobFacts]:
    """The job's row, made if it is missing. Whoever comes next for this job and key waits here and sees our writes."""
    rows = yield Sql(JOB, (job_id,))
    if not rows:
        yield Sql(
            "INSERT INTO claimant_jobs (id, namespace, job, key) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
            (job_id, clean(namespace), clean(job), clean(key)),
        )
        rows = yield Sql(JOB, (job_id,))
    return JobFacts(*rows[0])


def slot_facts(row: Row) -> SlotFacts | None:
    """The facts in the columns of `SLOT`; None where there is no such row."""
    if row[0] is None:
        return None
    attempts, failed, last_run, last_started, closed, closed_by, completed, result, reason = row
    return SlotFacts(
        attempts, failed, last_run, last_started, closed, closed_by, bool(completed), result, reason
    )


def ids_of(namespace: str, start: RunStart) -> tuple[bytes, bytes, bytes | None]:
    """The keys of a run's row, its job's and its slot's."""
    job_id = digest(namespace, start.job, start.key)
    slot_id = None if start.slot is None else digest(namespace, start.job, start.key, start.slot)
    return digest(namespace, start.run_id), job_id, slot_id


def optional_bytes(value: Any) -> bytes | None:
    """A key as a driver gave it, or None."""
    return None if value is None else bytes(value)


def same(one: Any, other: bytes) -> bool:
    """Whether a key as a driver gave it, or None, is this one."""
    return one is not None and bytes(one) == other
