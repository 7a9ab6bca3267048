"""A broker that delivers at least once: what was not acknowledged in time, or whose acknowledgement was lost, comes again.

Late acknowledgement, as with Celery's `acks_late`: after the job, and only where its outcome says that the work is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from claimant._model.outcome import Kind, Outcome
from claimant.sim.schedule import Schedule, SimJob
from claimant.sim.world import World

if TYPE_CHECKING:
    from claimant.sim.attempt import Attempt
    from claimant.sim.database import GuardDatabase
    from claimant.sim.outcomes import Outcomes

NOT_YET = frozenset({Kind.HELD, Kind.ABSENT, Kind.UNKNOWN, Kind.STOPPED})


class Broker:
    """The messages of a schedule's jobs. `deliver` starts a job on some worker."""

    def __init__(
        self, world: World, schedule: Schedule, guard: GuardDatabase, deliver: Callable[[SimJob], None]
    ) -> None:
        self.world = world
        self.schedule = schedule
        self.guard = guard
        self.deliver = deliver
        self.acked: set[int] = set()
        self.out: set[str] = set()
        """Jobs whose message is with a worker; what else starts them is a second message, which is not watched."""

    def delivered(self, attempt: Attempt) -> None:
        """A worker has a message. It is delivered again if that worker has not acknowledged it in time."""
        if attempt.job.visibility_ms is not None and attempt.job.name not in self.out:
            self.out.add(attempt.job.name)
            self.world.at(self.world.now + attempt.job.visibility_ms, self._overdue, attempt)

    def _overdue(self, attempt: Attempt) -> None:
        self.out.discard(attempt.job.name)
        if attempt.number in self.acked:
            return
        self.acked.add(attempt.number)  # this delivery is over, whatever its worker still does
        self.world.count("broker: delivered again")
        if not attempt.over:
            self.world.count("broker: delivered again while it runs")
        self.deliver(attempt.job)

    def ended(self, attempt: Attempt, result: Any, outcomes: Outcomes) -> None:
        """A start ended: acknowledge its message where the work is done. Where it is not, it comes again in its time."""
        attempt.over = True
        if attempt.job.visibility_ms is None or not isinstance(result, Outcome) or result.kind in NOT_YET:
            return
        self._done(attempt, outcomes)
        world, schedule = self.world, self.schedule
        if schedule.ack_loss and world.now < schedule.calm_ms and world.chance() < schedule.ack_loss:
            world.count("broker: acknowledgement lost")
            return
        self.acked.add(attempt.number)

    def _done(self, attempt: Attempt, outcomes: Outcomes) -> None:
        """B1: no message is acknowledged whose work was not done."""
        job = attempt.job
        if job.guarded:
            done = attempt.operation in self.guard.effects or self.guard.forgot
        else:
            done = job.name in outcomes.finished
        if not done:
            self.world.broken(
                "B1", f"a{attempt.number}'s message is acknowledged, and its work was never done"
            )
