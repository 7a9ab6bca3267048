"""What people ask of the ledger: queries for `status` and for what an outage cost, and the rows they become.

Read-only, and each within one snapshot: a run that ends between two statements would be neither at work nor ended.
`jobs` reads running totals; `runs`, `skips` and `tallies` read history, so they may take a while.
"""

# ruff: noqa: S608 - the texts are joined from constants of this package; every value is a parameter
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from claimant._model.records import AnswerRow
from claimant._model.rows import JobRow, RunRow, SkipRow, TallyRow
from claimant.ledger.pages import DUPLICATE, Sql
from claimant.ledger.schema import VERSION, column
from claimant.ledger.text import clean

KEYS_SHOWN = 200
"""Keys of one job that `jobs` returns at most: those that started or skipped last. Totals of all keys: `tallies`."""

Query: TypeAlias = Callable[[Sql], Sequence[Sequence[Any]]]

_ABOUT = "(CAST(? AS TEXT) IS NULL OR j.namespace = ?) AND (CAST(? AS TEXT) IS NULL OR j.job = ?)"

_JOBS = f"""
SELECT j.id, j.job, j.key, j.stake, j.guarded, j.runs, j.failed, j.last_started, j.last_success, j.last_kind,
  j.last_reason, j.skips_in_row, j.last_skip, j.last_skip_holder, j.last_skip_reason, j.duplicates, j.without_claim,
  j.stall_bound_ms, j.last_slot, j.lifetime_ms, j.max_run_ms, j.last_ended, j.skips_since, j.skips, j.overlapped,
  j.last_run, claimant_now(), j.namespace{{added}}
FROM (
  SELECT j.*, row_number() OVER (PARTITION BY j.namespace, j.job ORDER BY
    CASE WHEN coalesce(j.last_skip, 0) > coalesce(j.last_started, 0) THEN j.last_skip ELSE j.last_started END DESC) AS place
  FROM claimant_jobs j WHERE {_ABOUT}
) j
WHERE j.place <= {KEYS_SHOWN} ORDER BY j.job, j.namespace, j.key"""

# No ORDER BY: it would make SQLite walk all runs by time, rather than the few that have no end.
_OPEN = f"""
SELECT r.id, r.job, r.started, r.holder, r.max_run_ms FROM claimant_runs r JOIN claimant_jobs j ON j.id = r.job
WHERE r.ended IS NULL AND {_ABOUT}"""

_TALLIES = f"""
SELECT j.job, r.stake, a.hole, r.claim, a.joined, count(*), sum(CASE WHEN a.n = 0 THEN r.wasted_ms ELSE 0 END),
  j.namespace
FROM claimant_answers a JOIN claimant_runs r ON r.id = a.run JOIN claimant_jobs j ON j.id = r.job
WHERE a.kind = '{DUPLICATE}' AND {_ABOUT}
GROUP BY j.namespace, j.job, r.stake, a.hole, r.claim, a.joined
ORDER BY j.job, j.namespace, r.stake, a.hole, r.claim, a.joined"""

_RUNS = f"""
SELECT r.id, r.run_id, j.job, j.key, r.slot_text, r.attempt, r.stake, r.guarded, r.holder, r.claim_at_start, r.started,
  r.ended, r.kind, r.claim, r.reason, r.took_ms, r.wasted_ms, r.overlapping, r.lifetime_ms, r.max_run_ms, r.renewals,
  r.worst_gap_ms{{added}}
FROM claimant_runs r JOIN claimant_jobs j ON j.id = r.job
WHERE r.started >= ? AND {_ABOUT} ORDER BY r.started, r.run_id"""

_JOB_ADDED = ("guard", "mode", "schedule", "would_skip", "would_reject", "forced")
_RUN_ADDED = ("mode", "forced", "would")

_RUN_FIELDS = [field.name for field in fields(RunRow) if field.name != "answers"]

# CROSS JOIN fixes the order for SQLite: from the period's runs to their answers, not from all answers ever given.
_ANSWERS = f"""
SELECT a.run, a.operation, a.kind, a.hole, a.joined, a.lease_checked
FROM claimant_runs r CROSS JOIN claimant_jobs j CROSS JOIN claimant_answers a
WHERE j.id = r.job AND a.run = r.id AND r.started >= ? AND {_ABOUT} ORDER BY a.run, a.n"""

_SKIPS = f"""
SELECT j.job, j.key, s.kind, s.count, s.first, s.last, s.holder, s.remaining_ms, s.slot, s.reason, s.skipped_by
FROM claimant_skips s JOIN claimant_jobs j ON j.id = s.job
WHERE s.last >= ? AND {_ABOUT} ORDER BY s.first, j.job, j.key, s.kind"""

_KNOWN = "SELECT DISTINCT j.namespace, j.job FROM claimant_jobs j ORDER BY j.namespace, j.job"


@dataclass(frozen=True, slots=True)
class Survey:
    """What `status` shows, as it was at one instant. `known`: namespace and name of all jobs, if the asked-for are none.

    `version`: of the ledger's tables, where they are older than this library's.
    """

    now: int
    jobs: tuple[JobRow, ...]
    tallies: tuple[TallyRow, ...]
    known: tuple[tuple[str, str], ...] = ()
    version: int = VERSION


def survey(query: Query, namespace: str | None, job: str | None, version: int = VERSION) -> Survey:
    """The jobs and tallies of one namespace, or of all (None), in a ledger of this schema version."""
    found = jobs(query, namespace, job, version)
    counted = tallies(query, namespace, job)
    known = () if found else tuple((row[0], row[1]) for row in query(Sql(_KNOWN)))
    [[now]] = query(Sql("SELECT claimant_now()"))
    return Survey(int(now), tuple(found), tuple(counted), known, version)


def _about(namespace: str | None, job: str | None) -> tuple[str | None, str | None, str | None, str | None]:
    where = None if namespace is None else clean(namespace)
    name = None if job is None else clean(job)
    return where, where, name, name


def _with(text: str, version: int, table: str, alias: str, names: Sequence[str]) -> str:
    """The query with the columns that later versions added."""
    return text.replace("{added}", "".join(f", {column(version, table, alias, name)}" for name in names))


def jobs(query: Query, namespace: str | None, job: str | None, version: int = VERSION) -> list[JobRow]:
    """One row per job and key. A run counts as running while it is its job's last, has not ended and may last."""
    about = _about(namespace, job)
    rows = query(Sql(_with(_JOBS, version, "claimant_jobs", "j", _JOB_ADDED), about))
    open_runs: dict[bytes, list[Sequence[Any]]] = defaultdict(list)
    for each in sorted(query(Sql(_OPEN, about)), key=lambda row: row[2]):
        open_runs[bytes(each[1])].append(each)
    return [_job_row(row, open_runs[bytes(row[0])]) for row in rows]


def _job_row(row: Sequence[Any], unended: list[Sequence[Any]]) -> JobRow:
    last_run, now = row[25], row[26]
    running = [
        each
        for each in unended
        if last_run is not None and bytes(each[0]) == bytes(last_run) and each[2] + each[4] > now
    ]
    gone = [each for each in unended if each not in running]
    return JobRow(
        job=row[1],
        key=row[2],
        stake=row[3],
        guarded=bool(row[4]),
        runs=row[5],
        failed=row[6],
        last_started=row[7],
        last_success=row[8],
        last_kind=row[9],
        last_reason=row[10],
        running_since=running[0][2] if running else None,
        running_holder=running[0][3] if running else "",
        skips_in_row=row[11],
        last_skip=row[12],
        last_skip_holder=row[13],
        last_skip_reason=row[14],
        duplicates=row[15],
        without_claim=row[16],
        unfinished=len(gone),
        stall_bound_ms=row[17],
        last_slot=row[18],
        lifetime_ms=row[19],
        max_run_ms=row[20],
        last_ended=row[21],
        skips_since=row[22],
        skips_total=row[23],
        overlaps=row[24],
        unfinished_since=gone[-1][2] if gone else None,
        unfinished_holder=gone[-1][3] if gone else "",
        namespace=row[27],
        guard=row[28],
        mode=row[29],
        schedule=row[30],
        would_skip=row[31],
        would_reject=row[32],
        forced=row[33],
    )


def tallies(query: Query, namespace: str | None, job: str | None) -> list[TallyRow]:
    """Duplicates by job, stake, hole and claim. A run's wasted work is counted once, with its first answer."""
    return [
        TallyRow(row[0], row[1], row[2], row[3], bool(row[4]), int(row[5]), int(row[6]), row[7])
        for row in query(Sql(_TALLIES, _about(namespace, job)))
    ]


def runs(query: Query, namespace: str, since: int, job: str | None, version: int = VERSION) -> list[RunRow]:
    """The runs of a period with their answers, oldest first."""
    about = _about(namespace, job)
    answers: dict[bytes, list[AnswerRow]] = defaultdict(list)
    for run, operation, kind, hole, joined, checked in query(Sql(_ANSWERS, (since, *about))):
        answers[bytes(run)].append(AnswerRow(operation, kind, hole, bool(joined), checked))
    found = query(Sql(_with(_RUNS, version, "claimant_runs", "r", _RUN_ADDED), (since, *about)))
    return [_run_row(row, tuple(answers[bytes(row[0])])) for row in found]


def _run_row(row: Sequence[Any], answers: tuple[AnswerRow, ...]) -> RunRow:
    values: dict[str, Any] = dict(zip(_RUN_FIELDS, row[1:], strict=True))
    flags: dict[str, Any] = {name: bool(values[name]) for name in ("guarded", "forced")}
    return RunRow(**(values | flags), answers=answers)


def skips(query: Query, namespace: str, since: int, job: str | None) -> list[SkipRow]:
    """The skips of the last day by minute, oldest first."""
    return [SkipRow(*row) for row in query(Sql(_SKIPS, (since, *_about(namespace, job))))]
