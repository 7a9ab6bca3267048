"""One start of a job, from its slot to its outcome.

The order of a slot: claim, read "done" after the claim, run, mark done durably, release. So no slot is ever run
zero times; one effect per slot is the guard's promise, not this flow's. Nothing here masks the body's own
exception or result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from claimant._flows.acquire import Got, HeldBy, Missing, Unsure, acquire
from claimant._flows.letting import held_text, would_skip
from claimant._flows.release import release
from claimant._flows.wait import acquire_within
from claimant._model import slots
from claimant._model.durations import in_words
from claimant._model.errors import LeaseLost, LedgerAbsent, NotDone, Refused
from claimant._model.events import Event, Level
from claimant._model.holding import Tenure, cleanup_of
from claimant._model.journal import Journal
from claimant._model.ops import Call, Emit, Flow, Hand, HostEpoch, NewToken, Now
from claimant._model.outcome import RETRY_IN_MS, AnswerKind, Claim, Kind, Outcome
from claimant._model.policy import Absent, Held, Mode, Plan
from claimant._model.record import replaced
from claimant._model.records import (
    Began,
    Begin,
    Finish,
    LedgerNow,
    LedgerRequest,
    RunStart,
    Skip,
    SlotClosed,
    SlotState,
)

T = TypeVar("T")


class _Away:
    """The ledger did not answer."""


AWAY = _Away()
WOULD_HOLD, WOULD_BE_DONE = "held", "done"
"""What a start that is let through in observe mode would have been answered."""


def run(
    plan: Plan,
    body: Callable[[Journal], Any],
    *,
    encode: Callable[[Any], str | None],
    decode: Callable[[str | None], Any],
) -> Flow[Outcome[Any]]:
    """Start the job once. `body(journal)` is the user's code; `encode`/`decode` keep its result as JSON text or not at all."""
    slot = plan.slot
    if slot is None and plan.schedule is not None:
        now_epoch = yield from _ledger(plan, LedgerNow())
        if now_epoch is AWAY:
            if plan.at_most_once:
                return (yield from _not_without_ledger(plan, slot))
            now_epoch = yield HostEpoch()
        slot = slots.text(plan.schedule.latest(now_epoch))

    def closed() -> Flow[SlotClosed | None]:
        if slot is None or plan.force:
            return None
        state = yield from _ledger(plan, SlotState(plan.name, plan.key, slot, plan.attempts))
        return state if isinstance(state, SlotClosed) else None

    claimed: Any = None
    tenure: Tenure | None = None
    would = ""
    proceeds = plan.absent is Absent.PROCEED or plan.mode is Mode.OBSERVE
    try:
        if plan.mode is not Mode.OFF:
            claimed = yield from _claim(plan, closed)
        claim, unclaimed = Claim.ABSENT, ""
        match claimed:
            case None:
                claim = Claim.OFF
            case SlotClosed():
                return _done(plan, slot, claimed, decode)
            case HeldBy(holder, remaining) if plan.mode is Mode.OBSERVE:
                claim, would = Claim.OFF, WOULD_HOLD
                yield Emit(would_skip(plan.name, slot, would, held_text(holder, remaining)))
            case HeldBy(holder, remaining):
                # A starter that only looks whether the slot is done holds the claim for a moment: that is no contention.
                done = yield from closed()
                if done is not None:
                    return _done(plan, slot, done, decode)
                return (yield from _skipped(plan, slot, holder, remaining))
            case Got(tenure):
                claim = Claim.KEPT
            case Unsure(tenure, reason):
                if not proceeds:
                    yield Hand(cleanup_of(tenure))
                    return (yield from _store_absent(plan, slot, Kind.UNKNOWN, reason))
                claim, unclaimed = Claim.UNKNOWN, reason
                yield Hand(tenure)
            case Missing(reason):
                if not proceeds:
                    return (yield from _store_absent(plan, slot, Kind.ABSENT, reason))
                unclaimed = reason
        outcome = yield from _claimed(plan, slot, tenure, claim, unclaimed, would, body, encode, decode)
    except GeneratorExit:
        # The caller is gone (its event loop was closed, say): nobody will release this, so the keeper must let it lapse.
        if isinstance(claimed, Got | Unsure):
            claimed.tenure.released = True
        raise
    except BaseException:
        if isinstance(claimed, Got | Unsure):
            yield from release(claimed.tenure, plan.deadline_ms)
        raise
    if tenure is not None:
        # The body has stopped by now: only then is the claim given back.
        yield from release(tenure, plan.deadline_ms)
    return outcome


def _claim(plan: Plan, closed: Callable[[], Flow[SlotClosed | None]]) -> Flow[Any]:
    if plan.mode is Mode.OBSERVE:
        # Nothing is stopped, so nothing is waited for either.
        return (yield from acquire(plan.wanted()))
    wait_ms = {Held.SKIP: 0, Held.WAIT: plan.held_wait_ms, Held.STANDBY: None}[plan.held]
    done = closed if plan.slotted else None
    return (
        yield from acquire_within(plan.wanted(), wait_ms, absent_wait_ms=plan.absent_wait_ms, until_done=done)
    )


def _claimed(
    plan: Plan,
    slot: str | None,
    tenure: Tenure | None,
    claim: Claim,
    unclaimed: str,
    would: str,
    body: Callable[[Journal], Any],
    encode: Callable[[Any], str | None],
    decode: Callable[[str | None], Any],
) -> Flow[Outcome[Any]]:
    run_id: str = yield NewToken()
    start = RunStart(
        run_id=run_id,
        job=plan.name,
        key=plan.key,
        slot=slot,
        stake=plan.stake.value,
        claim=claim.value,
        holder=plan.label,
        lifetime_ms=plan.lifetime_ms,
        stall_bound_ms=plan.stall_bound_ms,
        max_run_ms=plan.max_run_ms,
        guarded=plan.guarded,
        guard=plan.guard,
        mode=plan.mode.value,
        forced=plan.force,
        schedule="" if plan.schedule is None else plan.schedule.describe(),
        would=would,
    )
    begin = Begin(start, plan.attempts, close_at_start=plan.at_most_once, force=plan.force)
    begun = yield from _ledger(plan, begin)
    if isinstance(begun, SlotClosed) and plan.mode is Mode.OBSERVE:
        yield Emit(would_skip(plan.name, slot, WOULD_BE_DONE, _closed(slot, begun)))
        start = replaced(start, would=would or WOULD_BE_DONE)
        begun = yield from _ledger(plan, replaced(begin, run=start, force=True))
    match begun:
        case SlotClosed():
            return _done(plan, slot, begun, decode)
        case Began(overlapping=overlapping) if overlapping and not plan.guarded:
            yield Emit(
                Event(
                    "run.overlap",
                    plan.name,
                    f"other runs of this job have no end recorded ({overlapping}): they may still be working, or have crashed; "
                    "nothing guards this job, so the work may be done twice",
                    "warning",
                    {"run_id": run_id, "overlapping": overlapping},
                )
            )
        case _ if begun is AWAY and plan.at_most_once:
            return (yield from _not_without_ledger(plan, slot))
    if claim not in (Claim.KEPT, Claim.OFF):
        yield Emit(
            Event(
                "run.unclaimed",
                plan.name,
                f"runs without a claim ({claim.value}: {unclaimed})",
                "warning",
                {"run_id": run_id, "claim": claim.value, "reason": unclaimed},
            )
        )
    journal = Journal(run_id, slot, tenure, claim, plan, unclaimed)
    started: int = yield Now()
    if tenure is not None:
        tenure.beat_ms = started
    try:
        result = yield Call(lambda: body(journal))
    except GeneratorExit:
        raise
    except BaseException as error:
        outcome = yield from _ended_badly(plan, journal, start, started, error)
        if outcome is None:
            raise
        return outcome
    return (yield from _ended(plan, journal, start, started, result, encode))


def _ended(
    plan: Plan,
    journal: Journal,
    start: RunStart,
    started: int,
    result: Any,
    encode: Callable[[Any], str | None],
) -> Flow[Outcome[Any]]:
    kind, reason = _verdict(journal)
    if _unused(journal):
        yield Emit(
            Event(
                "guard.unused",
                plan.name,
                "the run ended without using the guard that the job declares: nothing kept its effect from happening twice",
                "warning",
                {"run_id": journal.run_id},
            )
        )
    kept = encode(result) if kind in (Kind.RAN, Kind.UNCOMMITTED) else None
    claim = yield from _finish(
        plan, journal, start, started, kind.value, reason, close=kind is Kind.RAN, result=kept
    )
    retry_in = RETRY_IN_MS / 1000 if kind in (Kind.UNKNOWN, Kind.STOPPED) else None
    return Outcome(
        kind,
        claim,
        plan.name,
        reason,
        result,
        journal.slot,
        journal.run_id,
        retry_in,
        tuple(journal.answers),
        completed=kind is Kind.RAN,
    )


def _unused(journal: Journal) -> bool:
    """Whether the run has a guard to use and did not use it. An attested one is used out of our sight."""
    return journal.plan.guarded and not journal.plan.attested and not journal.answers


def _verdict(journal: Journal) -> tuple[Kind, str]:
    """What the guards' last word makes of a body that returned."""
    last = journal.last.values()
    for answer in last:
        if answer.kind in (AnswerKind.MISMATCH, AnswerKind.REFUSED):
            return Kind.STOPPED, f"{answer.operation}: {answer.kind.value}: {answer.reason}"
    for answer in last:
        if answer.kind in (AnswerKind.IN_FLIGHT, AnswerKind.UNKNOWN):
            return Kind.UNKNOWN, f"{answer.operation}: {answer.kind.value}: {answer.reason}"
    if any(still_open() for still_open in journal.still_open):
        return Kind.UNCOMMITTED, "the caller's transaction with the effect is still open"
    duplicates = sum(answer.kind is AnswerKind.DUPLICATE for answer in journal.answers)
    notes = (
        f"duplicate attempts rejected by the guard: {duplicates}" if duplicates else "",
        "the declared guard was not used" if _unused(journal) else "",
        f"without a claim: {journal.unclaimed}" if journal.unclaimed else "",
    )
    return Kind.RAN, "; ".join(note for note in notes if note)


def _ended_badly(
    plan: Plan, journal: Journal, start: RunStart, started: int, error: BaseException
) -> Flow[Outcome[Any] | None]:
    """Record a body that raised. The outcome where a loss or a guard's answer ended it; None where its exception goes on."""
    ending = _ending(journal, error)
    if ending is not None:
        kind, text = ending
        claim = yield from _finish(plan, journal, start, started, kind.value, text, close=False)
        return Outcome(
            kind,
            claim,
            plan.name,
            text,
            slot=journal.slot,
            run_id=journal.run_id,
            retry_in=RETRY_IN_MS / 1000,
            answers=tuple(journal.answers),
        )
    reason = _in_words(error)
    # A cancellation or an exit says nothing about the work: like a crash, it uses up no attempt of the slot.
    recorded = "failed" if isinstance(error, Exception) else Kind.STOPPED.value
    yield from _finish(plan, journal, start, started, recorded, reason, close=False)
    return None


def _in_words(error: BaseException) -> str:
    """The body's exception for the record; one that cannot be shown must not hide itself behind another."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return f"{type(error).__name__}: (its text cannot be read)"


def _ending(journal: Journal, error: BaseException) -> tuple[Kind, str] | None:
    """What ended the body, if that was a loss, or `run.once(…).value` of an operation whose effect is not known to stand."""
    if isinstance(error, BaseExceptionGroup) and error.split(LeaseLost)[1] is None:
        # A task group wraps what its tasks raise.
        return Kind.STOPPED, "; ".join(str(each) for each in error.exceptions)
    if isinstance(error, LeaseLost):
        return Kind.STOPPED, str(error)
    if isinstance(error, NotDone | Refused) and any(
        answer.operation == error.name for answer in journal.answers
    ):
        kind, reason = _verdict(journal)
        if kind in (Kind.UNKNOWN, Kind.STOPPED):
            return kind, reason
    return None


def _finish(
    plan: Plan,
    journal: Journal,
    start: RunStart,
    started: int,
    kind: str,
    reason: str,
    *,
    close: bool,
    result: str | None = None,
) -> Flow[Claim]:
    ended: int = yield Now()
    tenure = journal.tenure
    claim = journal.claim if tenure is None else tenure.claim(ended)
    # Under a caller's transaction every run ends uncommitted: no news for whoever reads warnings.
    level: Level = "info" if kind in (Kind.RAN, Kind.UNCOMMITTED) else "warning"
    took = ended - started
    yield from _ledger(
        plan,
        Finish(
            run_id=journal.run_id,
            kind=kind,
            claim=claim.value,
            reason=reason,
            took_ms=took,
            close_slot=close and journal.slot is not None,
            result=result,
            answers=tuple(journal.rows),
            renewals=0 if tenure is None else tenure.renewals,
            worst_gap_ms=0 if tenure is None else tenure.worst_gap_ms,
            start=start,
        ),
    )
    yield Emit(
        Event(
            f"run.{kind}",
            plan.name,
            f"{kind} after {in_words(took)}, claim {claim.value}" + (f": {reason}" if reason else ""),
            level,
            {"run_id": journal.run_id, "slot": journal.slot, "claim": claim.value, "took_ms": took},
        )
    )
    return claim


def _ledger(plan: Plan, request: LedgerRequest) -> Flow[Any]:
    """Ask the ledger; AWAY if it did not answer. What to do then is each caller's stated policy."""
    try:
        return (yield request)
    except LedgerAbsent as error:
        # One outage is one line at three in the morning; its other requests are for who looks closer.
        level: Level = "debug" if error.again else "error"
        yield Emit(
            Event(
                "ledger.absent",
                plan.name,
                f"the ledger did not answer ({error}); what it should have recorded is kept until it answers, or this process ends",
                level,
                {"request": type(request).__name__},
            )
        )
        return AWAY


def _closed(slot: str | None, closed: SlotClosed) -> str:
    return closed.reason or f"slot {slot} was done before"


def _done(
    plan: Plan, slot: str | None, closed: SlotClosed, decode: Callable[[str | None], Any]
) -> Outcome[Any]:
    return Outcome(
        Kind.DONE,
        Claim.NONE,
        plan.name,
        _closed(slot, closed),
        decode(closed.result) if closed.completed else None,
        slot,
        closed.run_id,
        completed=closed.completed,
    )


def _skipped(plan: Plan, slot: str | None, holder: str, remaining_ms: int | None) -> Flow[Outcome[Any]]:
    reason = held_text(holder, remaining_ms)
    streak = yield from _ledger(
        plan, Skip(plan.name, plan.key, slot, Kind.HELD.value, holder, remaining_ms, reason, plan.label)
    )
    in_row = streak if isinstance(streak, int) else None
    yield Emit(
        Event(
            "run.held",
            plan.name,
            reason if in_row is None else f"{reason}; skips in a row: {in_row}",
            "info",
            {"holder": holder, "remaining_ms": remaining_ms, "slot": slot, "in_row": in_row},
        )
    )
    retry_ms = RETRY_IN_MS if remaining_ms is None else max(50, min(RETRY_IN_MS, remaining_ms))
    return Outcome(
        Kind.HELD,
        Claim.NONE,
        plan.name,
        reason,
        None,
        slot,
        None,
        retry_ms / 1000,
        details={
            "holder": holder,
            "remaining_ms": remaining_ms,
            "skips_in_row": in_row,
            "immortal": remaining_ms is None,
        },
    )


def _store_absent(plan: Plan, slot: str | None, kind: Kind, reason: str) -> Flow[Outcome[Any]]:
    text = f"the lease store is {kind.value} ({reason}), and absent={plan.absent.value}"
    yield from _ledger(plan, Skip(plan.name, plan.key, slot, kind.value, "", None, text, plan.label))
    yield Emit(Event(f"run.{kind.value}", plan.name, text, "warning", {"slot": slot}))
    return Outcome(kind, Claim.NONE, plan.name, text, None, slot, None, RETRY_IN_MS / 1000)


def _not_without_ledger(plan: Plan, slot: str | None) -> Flow[Outcome[Any]]:
    text = 'the ledger is absent, and delivery="at-most-once" does not run what it cannot record first'
    yield Emit(Event("run.absent", plan.name, text, "warning", {"slot": slot}))
    return Outcome(Kind.ABSENT, Claim.NONE, plan.name, text, None, slot, None, RETRY_IN_MS / 1000)
