"""A schedule that failed, made as small as it can be while it still fails: what a person reads is a few lines long.

Parts are left out one at a time, and what is left out is not put back: jobs, starts, processes' strokes, windows, harm, chances.
A smaller schedule draws other chances, so each candidate is run, and kept only if the same invariant is offended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from claimant.sim.schedule import Host, Schedule, SimJob
from claimant.sim.simulate import Report

Run = Callable[[Schedule], Report]
MOST_RUNS = 600
"""So many candidates are tried at most."""


def shrunk(report: Report, run: Run) -> Report:
    """The smallest report that was found to offend the invariant that `report` offends first; `report` itself if none is smaller.

    `run` runs a schedule with the same flows and store.
    """
    offended = report.violations[0].invariant
    best, runs = report, 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in candidates(best.schedule):
            if runs >= MOST_RUNS:
                return best
            runs += 1
            tried = run(candidate)
            if tried.violations and tried.violations[0].invariant == offended and size(tried) < size(best):
                best, smaller = tried, True
                break
    return best


def size(report: Report) -> tuple[int, int]:
    """How much there is to read: parts of the schedule, then events."""
    schedule = report.schedule
    parts = sum(len(job.starts) for job in schedule.jobs) + len(schedule.jobs) + len(schedule.processes)
    parts += sum(len(getattr(schedule, name)) for name in _LISTS)
    parts += sum(getattr(schedule, name) != plain for name, plain in _PLAIN.items())
    parts += sum(host != Host() for host in schedule.hosts)
    return parts, report.events


_LISTS = ("store_windows", "ledger_windows", "blows", "failovers", "cuts", "interruptions", "fates")
_PLAIN: dict[str, float | None] = {
    **dict.fromkeys(("network", "ledger_loss", "guard_loss", "cancels", "ack_loss"), 0.0),
    **dict.fromkeys(("lag_ms", "ledger_failover", "guard_failover")),
}
"""What may be left out as a whole, and what it is then."""


def candidates(schedule: Schedule) -> Iterator[Schedule]:
    """Schedules with one thing less, the largest things first."""
    for jobs in _without(schedule.jobs):
        if jobs:
            yield replace(schedule, jobs=jobs)
    for name in _LISTS:
        found: Sequence[Any] = getattr(schedule, name)
        if len(found) > 1:
            yield _with(schedule, name, ())
        for fewer in _without(found):
            yield _with(schedule, name, fewer)
    for name, plain in _PLAIN.items():
        if getattr(schedule, name) != plain:
            yield _with(schedule, name, plain)
    for at, job in enumerate(schedule.jobs):
        for less in _lesser(job):
            yield replace(schedule, jobs=(*schedule.jobs[:at], less, *schedule.jobs[at + 1 :]))
    for at, host in enumerate(schedule.hosts):
        if host != Host():
            yield replace(schedule, hosts=(*schedule.hosts[:at], Host(), *schedule.hosts[at + 1 :]))
    if schedule.node_skews != (0, 0):
        yield replace(schedule, node_skews=(0, 0))
    if len(schedule.processes) > 1:
        yield _one_process_less(schedule)


def _lesser(job: SimJob) -> Iterator[SimJob]:
    for starts in _without(job.starts):
        if starts:
            yield replace(job, starts=starts)
    for name, plain in (
        ("boom", 0.0),
        ("hang", 0.0),
        ("beats", 0),
        ("attempts", 1),
        ("stall_after_ms", None),
        ("visibility_ms", None),
    ):
        if getattr(job, name) != plain:
            change: dict[str, Any] = {name: plain}
            yield replace(job, **change)


def _one_process_less(schedule: Schedule) -> Schedule:
    """Without the last process; its starts go to the first, and its strokes go."""
    last = len(schedule.processes) - 1
    jobs = tuple(
        replace(
            job,
            starts=tuple(sorted((at_ms, 0 if number == last else number) for at_ms, number in job.starts)),
        )
        for job in schedule.jobs
    )
    return replace(
        schedule,
        processes=schedule.processes[:-1],
        jobs=jobs,
        interruptions=tuple(each for each in schedule.interruptions if each.process != last),
        failovers=tuple(
            replace(each, stale=tuple(number for number in each.stale if number != last))
            for each in schedule.failovers
        ),
    )


def _with(schedule: Schedule, name: str, value: Any) -> Schedule:
    change: dict[str, Any] = {name: value}
    return replace(schedule, **change)


def _without(parts: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    for at in range(len(parts)):
        yield (*parts[:at], *parts[at + 1 :])
