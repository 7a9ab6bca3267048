"""What each request to the ledger means: written once, as steps of SQL, for both databases.

Each request is a generator: it yields statements whose rows it needs, under a lock on its job's row, and returns
its reply with the writes that make it so. It knows no connection, no clock but the database's, and no dialect.
"""

# ruff: noqa: S608 - the texts are joined from constants of this package; every value is a parameter
from __future__ import annotations

from collections.abc import Generator, Sequence

from claimant._model.record import record
from claimant._model.records import (
    Began,
    Begin,
    CloseSlot,
    Finish,
    LedgerRequest,
    RunStart,
    Skip,
    SlotState,
)
from claimant.ledger.pages import (
    CLAIMED,
    DUPLICATE,
    FAILED,
    JOB,
    SLOT,
    SUCCESS,
    UNCOMMITTED,
    WOULD_REJECT,
    JobFacts,
    Page,
    Row,
    SlotFacts,
    Sql,
    Steps,
    ids_of,
    insert,
    locked,
    optional_bytes,
    same,
    slot_facts,
    update,
)
from claimant.ledger.schema import MINUTES_KEPT, VERSION
from claimant.ledger.text import clean, digest, short

_AT_MOST_ONCE = "and not recorded as completed; delivery is at most once, so it is not tried again"


@record
class Late(LedgerRequest):
    """A request that waits in memory since `at_ms` on the holder's clock: the ledger was absent. It may take `within_ms` now.

    `last`: the process is ending, so the ledger is asked even if it let a deadline pass a moment ago.
    """

    request: LedgerRequest
    at_ms: int
    within_ms: int
    last: bool = False


def is_durable(request: LedgerRequest) -> bool:
    """Whether a power cut after the reply must not undo it: what closes a slot, or counts towards closing it.

    A begin or a skip that is forgotten costs a line of evidence; a forgotten "done" costs a second run.
    """
    match request:
        case Late(inner):
            return is_durable(inner)
        case Begin(close_at_start=durable) | Finish(close_slot=True as durable):
            return durable
        case Finish(kind=kind, start=start):
            return kind == FAILED and (start is None or start.slot is not None)
        case CloseSlot():
            return True
        case _:
            return False


def is_repeatable(request: LedgerRequest) -> bool:
    """Whether carrying it out twice is the same as once."""
    return not isinstance(request.request if isinstance(request, Late) else request, Skip)


def is_last(request: LedgerRequest) -> bool:
    """Whether there will be no other chance to write it."""
    return isinstance(request, Late) and request.last


def steps(namespace: str, request: LedgerRequest, now_ms: int, *, version: int = VERSION) -> Steps:
    """The steps of one request in one namespace of a ledger of this schema version. `now_ms`: the holder's clock, for what waited."""
    age_ms = 0
    if isinstance(request, Late):
        age_ms = max(now_ms - request.at_ms, 0)
        request = request.request
    match request:
        case Begin():
            return _begin(namespace, request, version)
        case Finish():
            return _finish(namespace, request, age_ms, version)
        case CloseSlot(run_id):
            return _close_slot(namespace, run_id, age_ms, version)
        case Skip():
            return _skip(namespace, request, age_ms)
        case SlotState():
            return _slot_state(namespace, request)
        case _:
            raise TypeError(f"not a request to the ledger: {request!r}")


# -- begin ---------------------------------------------------------------------------------------------------------


def _begin(namespace: str, request: Begin, version: int) -> Steps:
    start = request.run
    run, job_id, slot_id = ids_of(namespace, start)
    job = yield from locked(namespace, start.job, start.key, job_id)
    [row] = yield Sql(
        "SELECT claimant_now(),"
        " (SELECT count(*) FROM claimant_runs u WHERE u.job = ? AND u.ended IS NULL AND u.id <> ?"
        "  AND u.started + u.max_run_ms > claimant_now()),"
        " (SELECT attempt FROM claimant_runs r WHERE r.id = ?),"
        f" {SLOT} FROM (SELECT 1 AS one) o LEFT JOIN claimant_slots s ON s.id = ?",
        (job_id, run, run, slot_id),
    )
    now, overlapping, again = row[:3]
    if again is not None:
        # The reply to this very request was lost; it was carried out.
        return Page(Began(again, overlapping))
    slot = slot_facts(row[3:])
    if slot is not None and start.slot is not None and not request.force:
        closed = slot.verdict(start.slot, request.attempts)
        if closed is not None:
            return Page(closed)
    attempt = 1 if slot is None else slot.attempts + 1
    writes = [_insert_run(version, run, job_id, slot_id, start, attempt, now, overlapping)]
    if slot_id is not None:
        writes.append(_slot_started(slot_id, job_id, start, run, now))
        if request.close_at_start:
            writes.append(
                # A forced start of a slot that is done leaves it done.
                Sql(
                    "UPDATE claimant_slots SET closed = ?, closed_by = ?, reason = ? WHERE id = ? AND completed = 0",
                    (
                        now,
                        clean(start.run_id),
                        short(f"started once by {start.holder}, {_AT_MOST_ONCE}"),
                        slot_id,
                    ),
                )
            )
    last = max(now, job.last_started or 0)
    writes.append(_job_started(version, job_id, start, run, last, overlapping, in_order=True))
    return Page(Began(attempt, overlapping), writes)


def _insert_run(
    version: int,
    run: bytes,
    job_id: bytes,
    slot_id: bytes | None,
    start: RunStart,
    attempt: int,
    started: int,
    overlapping: int,
) -> Sql:
    values = {
        "id": run,
        "run_id": clean(start.run_id),
        "job": job_id,
        "slot": slot_id,
        "slot_text": None if start.slot is None else clean(start.slot),
        "attempt": attempt,
        "stake": start.stake,
        "guarded": int(start.guarded),
        "holder": short(start.holder),
        "claim_at_start": start.claim,
        "lifetime_ms": start.lifetime_ms,
        "stall_bound_ms": start.stall_bound_ms,
        "max_run_ms": start.max_run_ms,
        "overlapping": overlapping,
        "started": started,
        "mode": start.mode,
        "forced": int(start.forced),
        "would": start.would,
    }
    return insert(version, "claimant_runs", values)


def _slot_started(slot_id: bytes, job_id: bytes, start: RunStart, run: bytes, started: int) -> Sql:
    return Sql(
        "INSERT INTO claimant_slots (id, job, slot, attempts, last_run, last_started) VALUES (?, ?, ?, 1, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET attempts = claimant_slots.attempts + 1, last_run = excluded.last_run,"
        " last_started = excluded.last_started",
        (slot_id, job_id, clean(start.slot or ""), run, started),
    )


def _job_started(
    version: int,
    job_id: bytes,
    start: RunStart,
    run: bytes,
    started: int,
    overlapping: int,
    *,
    in_order: bool,
) -> Sql:
    """Count a start. `in_order`: nothing later of this job has been recorded yet."""
    counted = {
        "runs": 1,
        "without_claim": int(start.claim not in CLAIMED),
        "overlapped": int(overlapping > 0 and not start.guarded),
        "would_skip": int(start.would != ""),
        "forced": int(start.forced),
    }
    shown = {
        "guard": short(start.guard),
        "mode": start.mode,
        "schedule": short(start.schedule),
        "stake": start.stake,
        "guarded": int(start.guarded),
        "lifetime_ms": start.lifetime_ms,
        "stall_bound_ms": start.stall_bound_ms,
        "max_run_ms": start.max_run_ms,
        "last_run": run,
        "last_slot": None if start.slot is None else clean(start.slot),
        "last_started": started,
        "skips_in_row": 0,
        "skips_since": None,
    }
    return update(version, "claimant_jobs", job_id, add=counted, put=shown if in_order else {})


# -- finish --------------------------------------------------------------------------------------------------------


def _finish(namespace: str, request: Finish, age_ms: int, version: int) -> Steps:
    start = request.start
    if start is None:
        rows = yield Sql(
            "SELECT job, slot FROM claimant_runs WHERE id = ?", (digest(namespace, request.run_id),)
        )
        if not rows:
            return Page(None)  # nothing is known of its start, so there is nothing to write it to
        run, (job_id, slot_id) = digest(namespace, request.run_id), map(optional_bytes, rows[0])
        assert job_id is not None
        job = JobFacts(*(yield Sql(JOB, (job_id,)))[0])
    else:
        run, job_id, slot_id = ids_of(namespace, start)
        job = yield from locked(namespace, start.job, start.key, job_id)
    [row] = yield Sql(
        f"SELECT claimant_now(), r.started, r.ended, {SLOT} FROM (SELECT 1 AS one) o"
        " LEFT JOIN claimant_runs r ON r.id = ? LEFT JOIN claimant_slots s ON s.id = ?",
        (run, slot_id),
    )
    now, started, ended = row[:3]
    if ended is not None:
        return Page(None)  # it was recorded before, and the reply was lost
    slot = slot_facts(row[3:])
    now -= age_ms
    writes: list[Sql] = []
    is_last = same(job.last_run, run)
    newest = slot is None or same(slot.last_run, run)
    if started is None:
        assert start is not None
        # The ledger was absent at the start. On its clock that was about now, less the time that the run took.
        started = max(now - request.took_ms, 0)
        is_last = started >= (job.last_started or 0)
        newest = slot is None or started >= (slot.last_started or 0)
        in_order = is_last and started >= (job.last_skip or 0)
        writes += _missing_start(
            version, run, job_id, slot_id, slot, start, started, in_order=in_order, newest=newest
        )
    kind = request.kind
    mine = slot is not None and slot.closed_by == request.run_id
    duplicates = sum(answer.kind == DUPLICATE for answer in request.answers)
    wasted = request.took_ms if duplicates and duplicates == len(request.answers) else 0
    writes.append(
        Sql(
            "UPDATE claimant_runs SET ended = ?, kind = ?, claim = ?, reason = ?, took_ms = ?, wasted_ms = ?, result = ?,"
            " renewals = ?, worst_gap_ms = ? WHERE id = ?",
            (
                max(now, started),
                kind,
                request.claim,
                short(request.reason),
                request.took_ms,
                wasted,
                None if request.result is None else clean(request.result),
                request.renewals,
                request.worst_gap_ms,
                run,
            ),
        )
    )
    writes += [
        Sql(
            "INSERT INTO claimant_answers (run, n, operation, kind, hole, joined, lease_checked) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (run, n, short(each.operation), each.kind, each.hole, int(each.joined), each.lease_checked),
        )
        for n, each in enumerate(request.answers)
    ]
    if slot_id is not None and request.close_slot:
        writes.append(_completed(slot_id, request.run_id, request.result, now))
    elif slot_id is not None and kind == FAILED and newest and (slot is None or slot.closed is None or mine):
        # A superseded attempt, or one whose slot another run closed, writes nothing but a success.
        reason = (
            f"failed ({request.reason}), {_AT_MOST_ONCE}" if mine and slot and slot.closed else request.reason
        )
        writes.append(
            Sql(
                "UPDATE claimant_slots SET failed = failed + 1, closed_by = ?, reason = ? WHERE id = ?",
                (clean(request.run_id), short(reason), slot_id),
            )
        )
    writes.append(
        _job_ended(
            version,
            job_id,
            max(now, started),
            kind,
            request.reason,
            duplicates,
            would_reject=sum(answer.kind == WOULD_REJECT for answer in request.answers),
            shown=is_last or kind == SUCCESS,
        )
    )
    return Page(None, writes)


def _missing_start(
    version: int,
    run: bytes,
    job_id: bytes,
    slot_id: bytes | None,
    slot: SlotFacts | None,
    start: RunStart,
    started: int,
    *,
    in_order: bool,
    newest: bool,
) -> list[Sql]:
    attempt = 1 if slot is None else slot.attempts + 1
    writes = [_insert_run(version, run, job_id, slot_id, start, attempt, started, 0)]
    if slot_id is not None and newest:
        writes.append(_slot_started(slot_id, job_id, start, run, started))
    elif slot_id is not None:
        writes.append(Sql("UPDATE claimant_slots SET attempts = attempts + 1 WHERE id = ?", (slot_id,)))
    writes.append(_job_started(version, job_id, start, run, started, 0, in_order=in_order))
    return writes


def _completed(slot_id: bytes, run_id: str, result: str | None, now: int) -> Sql:
    """Close a slot by a success. The first success stays; one that comes after failures, or late, still closes."""
    return Sql(
        "UPDATE claimant_slots SET closed = ?, closed_by = ?, completed = 1, result = ?, reason = '' WHERE id = ? AND completed = 0",
        (now, clean(run_id), None if result is None else clean(result), slot_id),
    )


def _job_ended(
    version: int,
    job_id: bytes,
    ended: int,
    kind: str,
    reason: str,
    duplicates: int,
    *,
    would_reject: int = 0,
    shown: bool,
) -> Sql:
    """Count an end. `shown`: it says how the job stands now; a superseded failure does not."""
    last = Sql(
        "last_ended = CASE WHEN last_ended > ? THEN last_ended ELSE ? END,"
        " last_success = CASE WHEN ? = 0 OR last_success > ? THEN last_success ELSE ? END",
        (ended, ended, int(kind == SUCCESS), ended, ended),
    )
    return update(
        version,
        "claimant_jobs",
        job_id,
        add={"failed": int(kind == FAILED), "duplicates": duplicates, "would_reject": would_reject},
        put={"last_kind": kind, "last_reason": short(reason)} if shown else {},
        and_also=last,
    )


# -- the rest ------------------------------------------------------------------------------------------------------


def _close_slot(namespace: str, run_id: str, age_ms: int, version: int) -> Steps:
    run = digest(namespace, run_id)
    rows = yield Sql("SELECT job FROM claimant_runs WHERE id = ?", (run,))
    if not rows:
        return Page(None)
    job_id = rows[0][0]
    job = JobFacts(*(yield Sql(JOB, (job_id,)))[0])
    [row] = yield Sql(
        "SELECT claimant_now(), slot, kind, ended, result FROM claimant_runs WHERE id = ?", (run,)
    )
    now, slot_id, kind, ended, result = row
    now -= age_ms
    writes: list[Sql] = []
    # A body may commit long before it ends, once for each item of a batch: only its end can be the slot's.
    if ended is not None and kind == UNCOMMITTED:
        if slot_id is not None:
            writes.append(_completed(slot_id, run_id, result, now))
        writes.append(Sql("UPDATE claimant_runs SET kind = ? WHERE id = ?", (SUCCESS, run)))
        writes.append(_job_ended(version, job_id, now, SUCCESS, "", 0, shown=same(job.last_run, run)))
    return Page(None, writes)


def _skip(namespace: str, request: Skip, age_ms: int) -> Steps:
    job_id = digest(namespace, request.job, request.key)
    job = yield from locked(namespace, request.job, request.key, job_id)
    [[now]] = yield Sql("SELECT claimant_now()")
    now -= age_ms
    in_row = job.skips_in_row
    writes: list[Sql] = []
    # There was nothing left to do in that slot: such a start is refused, and nothing has stopped.
    idle = yield from _is_done(namespace, request)
    if now >= (job.last_started or 0) and not idle:
        in_row += 1
        writes.append(
            Sql(
                "UPDATE claimant_jobs SET skips = skips + 1, skips_in_row = ?, skips_since = ?, last_skip = ?,"
                " last_skip_holder = ?, last_skip_reason = ? WHERE id = ?",
                (
                    in_row,
                    now if job.skips_since is None else min(job.skips_since, now),
                    max(now, job.last_skip or 0),
                    short(request.holder),
                    short(request.reason),
                    job_id,
                ),
            )
        )
    else:
        writes.append(Sql("UPDATE claimant_jobs SET skips = skips + 1 WHERE id = ?", (job_id,)))
    minute = now // 60_000
    slot = None if request.slot is None else short(request.slot)
    writes.append(
        Sql(
            "INSERT INTO claimant_skips (job, kind, minute, count, first, last, holder, remaining_ms, slot, reason, skipped_by)"
            " VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, kind, minute) DO UPDATE SET"
            # The same minute of another day: that day's count is written over.
            " count = CASE WHEN claimant_skips.first / 60000 = ? THEN claimant_skips.count + 1 ELSE 1 END,"
            " first = CASE WHEN claimant_skips.first / 60000 = ? THEN claimant_skips.first ELSE excluded.first END,"
            " last = excluded.last, holder = excluded.holder, remaining_ms = excluded.remaining_ms, slot = excluded.slot,"
            " reason = excluded.reason, skipped_by = excluded.skipped_by",
            (
                job_id,
                request.kind,
                minute % MINUTES_KEPT,
                now,
                now,
                short(request.holder),
                request.remaining_ms,
                slot,
                short(request.reason),
                short(request.skipped_by),
                minute,
                minute,
            ),
        )
    )
    return Page(in_row, writes)


def _is_done(namespace: str, request: Skip) -> Generator[Sql, Sequence[Row], bool]:
    if request.slot is None:
        return False
    slot_id = digest(namespace, request.job, request.key, request.slot)
    rows = yield Sql("SELECT closed FROM claimant_slots WHERE id = ?", (slot_id,))
    return bool(rows) and rows[0][0] is not None


def _slot_state(namespace: str, request: SlotState) -> Steps:
    slot_id = digest(namespace, request.job, request.key, request.slot)
    rows = yield Sql(f"SELECT {SLOT} FROM claimant_slots s WHERE s.id = ?", (slot_id,))
    slot = slot_facts(rows[0]) if rows else None
    return Page(None if slot is None else slot.verdict(request.slot, request.attempts))
