"""The user's code, simulated: it takes time, beats, uses the guard, and sometimes raises, hangs or is told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from claimant._model import guarding
from claimant._model.errors import LeaseLost
from claimant._model.guarding import TRAITS
from claimant._model.holding import State, Tenure
from claimant._model.journal import Journal
from claimant._model.operation import identify
from claimant._model.ops import Flow, Now, SleepUntil
from claimant._model.outcome import Answer
from claimant._model.policy import Absent, OnLoss
from claimant._model.records import AnswerRow

if TYPE_CHECKING:
    from claimant.sim.attempt import Attempt

RESULT = "the work's result"
WAIT_MS = 300
"""How long a duplicate waits for the first attempt's transaction."""
LONGEST_MS = 1_500
"""The declared longest effect: idle transactions are ended after it, where the database can."""


class Boom(Exception):
    """What a failing body raises."""


def body(attempt: Attempt, journal: Journal) -> Flow[Any]:
    """One run of a job's work."""
    process, job = attempt.process, attempt.job
    world, outcomes = process.world, process.site.checks.outcomes
    calm = world.now >= process.site.schedule.calm_ms
    likely = 0.0 if calm else job.boom
    for _ in range(world.below(job.beats + 1)):
        now: int = yield Now()
        hangs = job.hang > 0 and not calm and world.chance() < job.hang
        yield SleepUntil(now + (job.hang_ms if hangs else 1 + world.below(job.beat_ms)))
        if hangs:
            world.count("body: hangs")
        now = yield Now()
        beat(attempt, journal, now)
    if likely and world.chance() < likely:
        raise outcomes.booms_now(attempt, Boom())
    if job.guarded:
        if likely and world.chance() < likely:
            attempt.effect_boom = Boom()
        yield from _effect(attempt, journal)
    if likely and world.chance() < likely / 2:
        raise outcomes.booms_now(attempt, Boom())
    return RESULT


def _effect(attempt: Attempt, journal: Journal) -> Flow[None]:
    process, job = attempt.process, attempt.job
    site = process.site
    operation = identify(job.name, {"key": job.key or "none", "slot": journal.slot or "no slot"})
    attempt.operation = operation.key
    attempt.run_id = journal.run_id
    now: int = yield Now()
    tenure = journal.tenure
    hole = "store absent" if tenure is None else tenure.hole(now)
    plan = guarding.Attempt(
        operation=operation,
        run_id=journal.run_id,
        job=job.name,
        stake=job.stake.value,
        hole=hole,
        traits=TRAITS[site.schedule.dialect],
        joined=job.joined,
        reopens=not job.joined,
        wait_ms=WAIT_MS,
        longest_ms=LONGEST_MS,
        verify=_fit,
    )
    try:
        answer: Answer[Any] = yield from (
            _callers_own(attempt, plan) if job.joined else site.flows.guard(plan)
        )
    except Exception as error:
        # The user's own code raised it, or the database did in the user's own code.
        site.checks.outcomes.booms_now(attempt, error)
        raise
    journal.answers.append(answer)
    journal.last[operation.key] = answer
    journal.rows.append(
        AnswerRow(operation.label, answer.kind.value, hole, job.joined, lease_checked(tenure, now))
    )


def _fit() -> Flow[None]:
    return
    yield


def _callers_own(attempt: Attempt, plan: guarding.Attempt) -> Flow[Answer[Any]]:
    """The caller opens and commits; the guard joins."""
    try:
        yield guarding.Open()
        yield guarding.BeginOwned()
        answer: Answer[Any] = yield from attempt.process.site.flows.guard(plan)
        yield guarding.Commit()
    except GeneratorExit:
        raise
    except BaseException:
        try:
            yield guarding.Rollback()
        except Exception:
            attempt.process.world.count("the caller's rollback failed")
        yield guarding.Close(broken=True)
        raise
    yield guarding.Close()
    return answer


def beat(attempt: Attempt, journal: Journal, now_ms: int) -> None:
    """Progress; and the place where a body that lost its claim stops, if its job says so."""
    tenure = journal.tenure
    if tenure is None:
        return
    tenure.beat_ms = now_ms
    plan = journal.plan
    match tenure.state:
        case State.LOST | State.STALLED | State.OVER if plan.on_loss is OnLoss.STOP:
            attempt.told_to_stop = tenure.state
        case State.ABSENT if plan.absent is not Absent.PROCEED:
            attempt.told_to_stop = tenure.state
        case _:
            return
    raise LeaseLost(f"stops: {tenure.state}", cause=tenure.state.value)


def lease_checked(tenure: Tenure | None, now_ms: int) -> str:
    """What the lease said right before the effect. It decides nothing."""
    if tenure is None or tenure.state is State.ABSENT:
        return "absent"
    return "trusted" if tenure.trusted(now_ms) else "not trusted"
