"""One line per job, fit for three in the morning: what it does or why it does not, who holds it, since when.

Skipping is never shown as success: a job whose every start says "somebody else holds it" has stopped, however
happily its processes exit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from claimant._drive.ports import LeaseRow
from claimant._model.durations import in_words
from claimant._model.names import shown
from claimant._model.rows import JobRow, TallyRow
from claimant._model.value import decode, holder_of
from claimant.ledger.reading import KEYS_SHOWN


class State(StrEnum):
    """How a job stands."""

    RUNNING = "running"
    OK = "ok"
    """The last run ended in success."""
    SKIPPING = "skipping"
    """Starts are refused because somebody else holds the claim, and no run that we know of explains it."""
    FAILED = "failed"
    STOPPED = "stopped"
    """The last run was stopped, or an operation of its was refused."""
    UNKNOWN = "unknown"
    """Whether the last run's effect happened is not known."""
    UNCOMMITTED = "uncommitted"
    UNFINISHED = "unfinished"
    """The last run started and never ended: it crashed, or it was cut off from the ledger."""
    NEVER = "never ran"


_BY_KIND = {
    "ran": State.OK,
    "failed": State.FAILED,
    "stopped": State.STOPPED,
    "unknown": State.UNKNOWN,
    "uncommitted": State.UNCOMMITTED,
}


def state_of(job: JobRow, lease: LeaseRow | None, now: int, *, asked: bool = True) -> State:
    """How `job` stands at `now` (epoch ms on the ledger's clock).

    `lease` is its lease as the store shows it, None if there is none. `asked`: the store did answer; where it did
    not, a missing lease says nothing.
    """
    if job.running_since is not None:
        # Longer than a lifetime at work, and no lease: it runs without a claim, or it has crashed.
        gone = asked and lease is None and now - job.running_since > job.lifetime_ms
        return State.UNFINISHED if gone else State.RUNNING
    if _is_skipping(job, lease):
        return State.SKIPPING
    if job.runs == 0:
        return State.NEVER
    # A start of which no end was ever told is not a run that ended in doubt.
    if not job.last_kind or (job.unfinished_since is not None and job.unfinished_since == job.last_started):
        return State.UNFINISHED
    return _BY_KIND.get(job.last_kind, State.UNKNOWN)


def _is_skipping(job: JobRow, lease: LeaseRow | None) -> bool:
    """Whether the last skips have no run that explains them.

    A skip within a lifetime after a run's end may be owed to that run's own lease, unless there is a lease still.
    """
    if not job.skips_in_row or job.last_skip is None:
        return False
    explained_until = max(job.last_ended or 0, job.last_started or 0)
    return job.last_skip > explained_until + (0 if lease is not None else job.lifetime_ms)


def one_line(
    job: JobRow, lease: LeaseRow | None, now: int, *, asked: bool = True, namespaced: bool = False
) -> str:
    """The job in one line; the arguments are those of `state_of`. `namespaced`: its namespace stands before its name."""
    state = state_of(job, lease, now, asked=asked)
    name = _name(job, namespaced=namespaced, key=job.key)
    match state:
        case State.RUNNING:
            text = f"for {_ago(job.running_since, now)} by {_who(job.running_holder)}{_left(lease)}"
            if job.skips_in_row:
                text += f"; {_times(job.skips_in_row, 'start')} skipped meanwhile"
        case State.SKIPPING:
            since = f" for {_ago(job.skips_since, now)}" if job.skips_since is not None else ""
            cause = _held(job, lease, now, asked=asked)
            text = f"{_times(job.skips_in_row, 'skip')} in a row{since}, {cause}; {_last_success(job, now)}"
        case State.UNFINISHED:
            text = _unfinished(job, lease, now, asked=asked) + f"; {_last_success(job, now)}"
        case State.OK:
            text = f"last success {_ago(job.last_success, now)} ago"
        case State.NEVER:
            text = "no start is recorded"
        case _:
            reason = f": {_first_line(job.last_reason)}" if job.last_reason else ""
            text = f"{_ago(job.last_ended, now)} ago{reason}; {_last_success(job, now)}"
    comma = (
        "" if state in (State.RUNNING, State.FAILED, State.STOPPED, State.UNKNOWN, State.UNCOMMITTED) else ","
    )
    return f"{name}: {state.value}{comma} {text}"


def _name(row: JobRow | TallyRow, *, namespaced: bool, key: str = "") -> str:
    name = f"{row.job}[{key}]" if key else row.job
    return shown(f"{row.namespace}/{name}" if namespaced and row.namespace else name)


def _held(job: JobRow, lease: LeaseRow | None, now: int, *, asked: bool) -> str:
    """Why starts are skipped: what the store says now, else what the last skip was told."""
    if lease is not None:
        return f"held by {_who(holder_of(lease.value))}{_left(lease)}{_renewed(lease)}"
    if not job.last_skip_holder:
        return _first_line(job.last_skip_reason)
    held = f"last held by {_who(job.last_skip_holder)} {_ago(job.last_skip, now)} ago"
    return f"{held}, no lease now" if asked else held


def _renewed(lease: LeaseRow) -> str:
    """When the holder was last heard of, where the store's answer tells it: a lease is renewed to its full lifetime."""
    value = decode(lease.value)
    if value is None or lease.remaining_ms is None or lease.remaining_ms > value.lifetime_ms:
        return ""
    return f", claimed or renewed {in_words(value.lifetime_ms - lease.remaining_ms)} ago"


def _unfinished(job: JobRow, lease: LeaseRow | None, now: int, *, asked: bool) -> str:
    running = job.running_since is not None
    since = job.running_since if running else job.unfinished_since or job.last_started
    who = _who(job.running_holder if running else job.unfinished_holder)
    said = f"started {_ago(since, now)} ago by {who}, no end recorded"
    if lease is not None:
        return f"{said}; the lease is with {_who(holder_of(lease.value))}{_left(lease)}"
    if asked:
        return f"{said}, no lease: it crashed or was cut off; the next start runs it"
    if now - (since or now) > job.stall_bound_ms:
        return f"{said}; its stall bound of {in_words(job.stall_bound_ms)} has passed and nothing has started since"
    return (
        f"{said}; resumes within {in_words(job.lifetime_ms)} of a crash, {in_words(job.stall_bound_ms)} of a hang, "
        "at the next start"
    )


def _first_line(text: str) -> str:
    """A reason for one line: drivers explain themselves in several."""
    return shown(next(filter(None, map(str.strip, text.splitlines())), ""), 200)


def _last_success(job: JobRow, now: int) -> str:
    return (
        "never a success"
        if job.last_success is None
        else f"last real success {_ago(job.last_success, now)} ago"
    )


def _left(lease: LeaseRow | None) -> str:
    if lease is None:
        return ""
    if lease.remaining_ms is None:
        return ", its lease has no end (immortal)"
    return f", lease {in_words(lease.remaining_ms)} left"


def _ago(instant: int | None, now: int) -> str:
    return "an unknown time" if instant is None else in_words(now - instant)


def _who(label: str) -> str:
    return shown(label) or "somebody unnamed"


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


_SHOWN = 20
_WELL = (State.OK, State.RUNNING, State.NEVER)
_WORST_FIRST = (
    State.SKIPPING,
    State.UNFINISHED,
    State.UNKNOWN,
    State.FAILED,
    State.STOPPED,
    State.UNCOMMITTED,
    State.RUNNING,
    State.OK,
    State.NEVER,
)


def _badness(status: JobStatus) -> int:
    return _WORST_FIRST.index(status.state)


def _by_job(judged: Iterable[JobStatus]) -> list[list[JobStatus]]:
    """The rows of each job, the worst job first; equals stay in the order of their names."""
    groups: dict[tuple[str, str], list[JobStatus]] = {}
    for each in judged:
        groups.setdefault((each.job.job, each.job.namespace), []).append(each)
    return sorted(groups.values(), key=lambda group: min(map(_badness, group)))


def _job_line(each: list[JobStatus], *, namespaced: bool) -> str:
    worst = min(each, key=_badness)
    if len(each) == 1:
        return worst.line
    counts = Counter(one.state for one in each)
    # The ledger shows the latest keys of a job (ledger.reading), so a full page is not all of them.
    many = f"the {len(each)} latest keys" if len(each) >= KEYS_SHOWN else f"{len(each)} keys"
    keys = ", ".join(f"{counts[state]} {state.value}" for state in _WORST_FIRST if counts[state])
    if worst.state in _WELL:
        return f"{_name(worst.job, namespaced=namespaced)}: {many}: {keys}"
    return f"{worst.line} ({many}: {keys})"


def policy(*rows: JobRow) -> tuple[str, ...]:
    """What a job's last start declared, and what came of it, all keys together, a line each; () if it never started."""
    started = [row for row in rows if row.stake]
    if not started:
        return ()
    job = max(started, key=lambda row: row.last_started or 0)

    def total(of: Callable[[JobRow], int]) -> int:
        return sum(map(of, rows))

    guarded = {
        True: "guarded: a duplicate is rejected where the effect lands, and counted",
        False: "no guard: the lease makes duplicates rare, nothing rejects them",
    }[job.guarded]
    if job.guard.startswith("attested: "):
        guarded = f"guarded, as the caller attests: {shown(job.guard.removeprefix('attested: '), 200)}"
    elif job.guard:
        guarded += f" ({shown(job.guard, 200)})"
    kept_to = (f"schedule: {shown(job.schedule, 200)}",) if job.schedule else ()
    return (
        f"stake {job.stake}; {guarded}",
        *kept_to,
        (
            f"after a crash another worker may start within {in_words(job.lifetime_ms)}, after a hang within "
            f"{in_words(job.stall_bound_ms)}; a run lasts {in_words(job.max_run_ms)} at most"
        ),
        (
            f"{_times(total(lambda row: row.runs), 'run')}, {total(lambda row: row.failed)} failed, "
            f"{total(lambda row: row.unfinished)} without an end, {total(lambda row: row.without_claim)} without a claim"
        ),
        (
            f"{_times(total(lambda row: row.duplicates), 'duplicate')} rejected, "
            f"{_times(total(lambda row: row.overlaps), 'unguarded overlap')}, "
            f"{_times(total(lambda row: row.skips_total), 'skip')}"
        ),
        *filter(None, (_forced(total(lambda row: row.forced)),)),
        *filter(None, (_observed(rows, job.mode),)),
    )


def _forced(runs: int) -> str:
    """Runs that an operator asked for, whatever their slot said; "" without any."""
    return f"{_times(runs, 'run')} forced, of a slot that may have been closed" if runs else ""


def _observed(rows: Iterable[JobRow], mode: str) -> str:
    """What was let through in observe mode; "" where nothing was, and nothing is observed now."""
    would = _would(rows)
    match mode:
        case "observe":
            return f"observe mode: nothing is stopped; it {would or 'would have stopped nothing so far'}"
        case "off":
            return "leases are off"
        case _:
            return f"in observe mode it {would}" if would else ""


def _would(rows: Iterable[JobRow]) -> str:
    rows = list(rows)
    skips, effects = sum(row.would_skip for row in rows), sum(row.would_reject for row in rows)
    if not skips and not effects:
        return ""
    return f"would have skipped {_times(skips, 'start')} and rejected {_times(effects, 'effect')}"


_UNCLAIMED = "without a claim: "
"""What a run's reason says before why it had no claim."""


def _unclaimed(each: list[JobStatus], *, namespaced: bool) -> str | None:
    """How many runs of a job had no claim, and why the last of them had none, where its end still says it."""
    count = sum(one.job.without_claim for one in each)
    if not count:
        return None
    rows = sorted((one.job for one in each), key=lambda row: row.last_started or 0, reverse=True)
    reasons = (row.last_reason.partition(_UNCLAIMED)[2] for row in rows)
    reason = _first_line(next(filter(None, reasons), ""))
    return f"{_name(rows[0], namespaced=namespaced)}: {count}" + (f", the last: {reason}" if reason else "")


def _watched(each: list[JobStatus], *, namespaced: bool) -> str | None:
    """What a job in observe mode would have stopped."""
    rows = [one.job for one in each]
    if max(rows, key=lambda row: row.last_started or 0).mode != "observe":
        return None
    return f"{_name(rows[0], namespaced=namespaced)}: {_would(rows) or 'would have stopped nothing so far'}"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job and key, judged."""

    job: JobRow
    state: State
    line: str
    lease: LeaseRow | None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; instants are epoch ms on the ledger's clock."""
        lease = None
        if self.lease is not None:
            lease = {"holder": holder_of(self.lease.value), "remaining_ms": self.lease.remaining_ms}
        return {"state": self.state.value, "line": self.line, "lease": lease, **asdict(self.job)}


@dataclass(frozen=True, slots=True)
class Report:
    """All jobs at one instant, with the attempts that guards rejected. `namespaced`: of several namespaces, and named so."""

    now: int
    jobs: tuple[JobStatus, ...]
    tallies: tuple[TallyRow, ...]
    namespaced: bool = False

    @property
    def duplicates(self) -> int:
        """Rejected attempts, all jobs together."""
        return sum(tally.count for tally in self.tallies)

    @property
    def wasted_ms(self) -> int:
        """Work of runs all of whose attempts were rejected."""
        return sum(tally.wasted_ms for tally in self.tallies)

    def lines(self, *, explain: bool = False) -> list[str]:
        """For a terminal: a line per job, the worst first, then a line per cause of duplicates.

        Of a job with many keys the line is the worst key's, with a count of the others. `explain` adds the job's
        policy and the first keys that are not well.
        """
        lines: list[str] = []
        groups = _by_job(self.jobs)
        for each in groups:
            lines.append(_job_line(each, namespaced=self.namespaced))
            if explain:
                ill = [one.line for one in each if one.state not in _WELL] if len(each) > 1 else []
                lines += [f"  {line}" for line in (*ill[:_SHOWN], *policy(*(one.job for one in each)))]
        if self.tallies:
            lines.append(f"duplicates rejected: {self.duplicates}, {in_words(self.wasted_ms)} of work wasted")
            lines += [f"  {tally_line(tally, namespaced=self.namespaced)}" for tally in self.tallies]
        watched = [line for each in groups if (line := _watched(each, namespaced=self.namespaced))]
        if watched and not explain:
            lines.append("observe mode, where nothing is stopped:")
            lines += [f"  {line}" for line in watched]
        without = [line for each in groups if (line := _unclaimed(each, namespaced=self.namespaced))]
        if without:
            lines.append(f"runs without a claim: {sum(each.job.without_claim for each in self.jobs)}")
            lines += [f"  {line}" for line in without]
        return lines

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        rows = [each.job for each in self.jobs]
        return {
            "now": self.now,
            "jobs": [each.as_dict() for each in self.jobs],
            "duplicates": [asdict(tally) for tally in self.tallies],
            "totals": {
                "runs": sum(row.runs for row in rows),
                "failed": sum(row.failed for row in rows),
                "unfinished": sum(row.unfinished for row in rows),
                "without_claim": sum(row.without_claim for row in rows),
                "overlaps": sum(row.overlaps for row in rows),
                "skips": sum(row.skips_total for row in rows),
                "would_skip": sum(row.would_skip for row in rows),
                "would_reject": sum(row.would_reject for row in rows),
                "forced": sum(row.forced for row in rows),
                "duplicates": self.duplicates,
                "wasted_ms": self.wasted_ms,
            },
        }


def tally_line(tally: TallyRow, *, namespaced: bool = False) -> str:
    """One cause of duplicates in words."""
    joined = ", in transactions that may have rolled back" if tally.joined else ""
    return (
        f"{_name(tally, namespaced=namespaced)} ({tally.stake}): {tally.count}, {tally.hole or 'cause not known'}, claim {tally.claim}{joined}; "
        f"{in_words(tally.wasted_ms)} of work wasted"
    )


def report(
    jobs: Iterable[JobRow],
    tallies: Iterable[TallyRow],
    now: int,
    *,
    lease_of: Callable[[JobRow], LeaseRow | None] = lambda _: None,
    asked: bool = False,
    namespaced: bool = False,
) -> Report:
    """Judge every row. `lease_of` gives a job's lease from the store's rows; `asked`: the store did answer.

    `namespaced`: write each job's namespace before its name.
    """
    judged = []
    for job in jobs:
        lease = lease_of(job)
        state = state_of(job, lease, now, asked=asked)
        line = one_line(job, lease, now, asked=asked, namespaced=namespaced)
        judged.append(JobStatus(job, state, line, lease))
    return Report(now, tuple(judged), tuple(tallies), namespaced)
