"""Invariants of jobs: what an outcome claims must have happened, and every job comes to its end."""

from __future__ import annotations

from traceback import format_exception
from typing import TYPE_CHECKING, Any, TypeVar

from claimant._model.operation import identify
from claimant._model.ops import Held, StoreAbsent, StoreUnknown
from claimant._model.outcome import AnswerKind, Claim, Kind, Outcome
from claimant._model.policy import Absent
from claimant.sim.body import RESULT
from claimant.sim.schedule import Schedule
from claimant.sim.world import World

if TYPE_CHECKING:
    from claimant.sim.attempt import Attempt
    from claimant.sim.database import GuardDatabase
    from claimant.sim.ledger import SimLedger
    from claimant.sim.process import Task

E = TypeVar("E", bound=BaseException)


class Outcomes:
    """What jobs came to."""

    def __init__(self, world: World, schedule: Schedule, ledger: SimLedger) -> None:
        self.world = world
        self.schedule = schedule
        self.ledger = ledger
        self.finished: set[str] = set()
        self.bodies: dict[tuple[str, str], int] = {}
        self.booms: dict[tuple[str, str], int] = {}
        self.answers: list[tuple[Attempt, AnswerKind]] = []

    def body_starts(self, attempt: Attempt) -> None:
        """The user's code is about to run."""
        world, job = self.world, attempt.job
        world.count("body starts")
        if attempt.slot is None:
            return
        key = (job.name, attempt.slot)
        self.bodies[key] = self.bodies.get(key, 0) + 1
        if job.at_most_once and self.bodies[key] > 1 and not self.ledger.forgot:
            world.broken(
                "R17", f"a{attempt.number}: the {self.bodies[key]}th body of {key}, delivered at most once"
            )
        row = self.ledger.slots.get((job.name, job.key, attempt.slot))
        if (
            row is None
            or row.closed is None
            or job.at_most_once
            or attempt.ledger_failed
            or attempt.granted_ms is None
        ):
            return
        if row.closed_ms < attempt.granted_ms:
            world.broken(
                "R10", f"a{attempt.number} runs {attempt.slot}, which was done before its claim was granted"
            )

    def booms_now(self, attempt: Attempt, boom: E) -> E:
        """The body is about to raise."""
        attempt.boom = boom
        key = (attempt.job.name, attempt.slot or "")
        self.booms[key] = self.booms.get(key, 0) + 1
        return boom

    def ended(
        self,
        task: Task,
        attempt: Attempt,
        result: Any,
        error: BaseException | None,
        owner: dict[str, tuple[str, Attempt | None]],
    ) -> None:
        """A start came to its outcome, or its body raised."""
        world, job = self.world, attempt.job
        if error is not None:
            if error is attempt.boom:
                world.count("body raised")
            elif attempt.cancelled and type(error).__name__ == "Cancelled":
                world.count("start cancelled")
            else:
                world.broken("FLOW", f"{task.who} raised:\n{''.join(format_exception(error))}")
            return
        if not isinstance(result, Outcome):
            world.broken("FLOW", f"{task.who} returned {result!r}")
            return
        world.count(f"outcome: {result.kind.value}")
        world.count(f"claim: {result.claim.value}")
        if attempt.boom is not None:
            world.broken("P8", f"{task.who}: the body's own exception was swallowed")
        if attempt.cancelled:
            world.broken("P8", f"{task.who}: a cancellation was swallowed")
        wrong = self._dishonest(attempt, result, owner)
        if wrong:
            world.broken("P5", f"{task.who} says {result.kind.value} ({result.reason}), {wrong}")
        if result.kind in (Kind.RAN, Kind.DONE):
            self.finished.add(job.name)

    def _dishonest(
        self, attempt: Attempt, result: Outcome[Any], owner: dict[str, tuple[str, Attempt | None]]
    ) -> str:
        """Why an outcome cannot be what happened; "" if it can."""
        job, reply = attempt.job, attempt.reply
        ran = attempt.body_ms is not None
        if ran != (
            result.kind in (Kind.RAN, Kind.STOPPED, Kind.UNCOMMITTED) or (result.kind is Kind.UNKNOWN and ran)
        ):
            return f"and its body {'ran' if ran else 'never ran'}"
        if ran:
            return self._dishonest_run(attempt, result)
        if result.claim is not Claim.NONE:
            return f"and speaks of a claim ({result.claim.value})"
        match result.kind:
            case Kind.HELD if not isinstance(reply, Held):
                return f"and the store's last answer was {reply}"
            case Kind.HELD if (
                owner.get(reply.value, ("", None))[1] is attempt and reply.value not in attempt.refused
            ):
                return "and what holds is its own claim, whose answer was lost (R11)"
            case Kind.ABSENT if job.at_most_once and attempt.ledger_failed:
                return ""
            case Kind.ABSENT if job.absent is Absent.PROCEED:
                return "although it is to proceed (F1)"
            case Kind.ABSENT if not (isinstance(reply, StoreAbsent) or attempt.gate_shut):
                return f"and the store's last answer was {reply}"
            case Kind.UNKNOWN if isinstance(reply, Held) and owner.get(reply.value, ("", None))[1] is attempt:
                return ""
            case Kind.UNKNOWN if not isinstance(reply, StoreUnknown | StoreAbsent):
                return f"and the store's last answer was {reply}"
            case Kind.DONE:
                return self._not_done(attempt, result)
            case _:
                return ""

    def _not_done(self, attempt: Attempt, result: Outcome[Any]) -> str:
        job = attempt.job
        row = self.ledger.slots.get((job.name, job.key, result.slot or ""))
        if self.ledger.forgot:
            return ""
        if row is None:
            return "and the ledger knows no such slot"
        if result.completed:
            return "" if row.closed is not None else "and its slot is open"
        return "" if row.failures >= job.attempts else "and its attempts are not used up"

    def _dishonest_run(self, attempt: Attempt, result: Outcome[Any]) -> str:
        if attempt.job.guarded and result.kind is Kind.RAN and not result.answers:
            return "and no guard answered"
        kinds = {answer.kind for answer in result.answers}
        unknown = bool(kinds & {AnswerKind.UNKNOWN, AnswerKind.IN_FLIGHT})
        if unknown != (result.kind is Kind.UNKNOWN):
            return f"and its guard's answers are {result.answers}"
        stopped = attempt.told_to_stop is not None or AnswerKind.REFUSED in kinds
        if stopped != (result.kind is Kind.STOPPED):
            return f"and its body was stopped by {attempt.told_to_stop}, its guard's answers are {result.answers}"
        if result.kind is Kind.RAN and result.result != RESULT:
            return f"and the body's result became {result.result!r}"
        tenure = attempt.tenure
        if (tenure is None) != (result.claim is Claim.ABSENT) and tenure is None:
            return f"and says {result.claim.value} of no claim"
        if result.claim is Claim.KEPT and attempt.shaken:
            return "and forgot that the claim was lost or absent meanwhile"
        for answer in result.answers:
            self.answers.append((attempt, answer.kind))
        return ""

    def final(self, guard: GuardDatabase, slots: dict[str, str]) -> None:
        """After the calm: every job ended, one effect each, and every rejection counted."""
        world = self.world
        for operation, attempts in guard.effects.items():
            if len(attempts) > 1:
                world.broken(
                    "S1", f"{self._called(operation)} took effect {len(attempts)} times, by {attempts}"
                )
            if operation not in guard.rows:
                world.broken("S3", f"{self._called(operation)} took effect and no guard row says so")
        for operation in guard.rows:
            if operation not in guard.effects:
                world.broken(
                    "S3", f"a guard row says that {self._called(operation)} took effect, and it did not"
                )
        if not guard.forgot:
            self._counted(guard)
        for job in self.schedule.jobs:
            if not job.at_most_once:
                self._came_to_its_end(guard, job.name, slots)

    def _counted(self, guard: GuardDatabase) -> None:
        """Every rejected attempt is counted once, and nothing else is."""
        world = self.world
        marks = {(operation, guard.rows[operation][1]) for operation in guard.rows}
        for operation, run_id, cause in guard.rejected:
            if (operation, run_id) in marks and cause != AnswerKind.IN_FLIGHT.value:
                world.broken("A1", f"run {run_id} is counted as rejected ({cause}), and its effect stands")
        for attempt, kind in self.answers:
            if attempt.job.joined:
                continue
            counted = (attempt.operation, attempt.run_id, kind.value) in guard.rejected
            rejected = kind in (AnswerKind.DUPLICATE, AnswerKind.IN_FLIGHT)
            if rejected != counted and not (rejected and attempt.uncounted):
                world.broken("A1", f"a{attempt.number} answered {kind.value}; counted as such: {counted}")
            if kind is AnswerKind.APPLIED and attempt.number not in guard.effects.get(attempt.operation, ()):
                world.broken("S3", f"a{attempt.number} says that it was applied, and it was not")
            if kind is AnswerKind.REFUSED and attempt.number in guard.effects.get(attempt.operation, ()):
                world.broken("S3", f"a{attempt.number} says that nothing happened, and its effect stands")

    def _called(self, operation: bytes) -> str:
        return operation.hex()[:8]

    def _came_to_its_end(self, guard: GuardDatabase, name: str, slots: dict[str, str]) -> None:
        world = self.world
        job = next(job for job in self.schedule.jobs if job.name == name)
        if name not in self.finished:
            world.broken("L1", f"{name} never came to its end although all was calm")
            return
        effect = identify(name, {"key": job.key or "none", "slot": slots.get(name, "no slot")}).key
        gone = job.guarded and effect not in guard.effects
        if gone and guard.forgot:
            # The named condition: a database that forgets what it committed forgets effect and guard row together.
            world.count("guard failover: what was done is gone")
            return
        if job.every_ms is None:
            if gone:
                world.broken("L1", f"{name} ran and its effect never took effect")
            return
        row = self.ledger.slots.get((name, job.key, slots[name]))
        if row is None or (row.closed is None and row.failures < job.attempts):
            world.broken("L1", f"{name}: nobody completed {slots[name]} although all was calm: zero runs")
        elif row.closed is None:
            booms = self.booms.get((name, slots[name]), 0)
            if booms < job.attempts:
                world.broken(
                    "L1", f"{name}: {slots[name]} is given up after {booms} failure(s) of the body: zero runs"
                )
            world.count("slot given up")
        elif gone:
            world.broken("L1", f"{name}: {slots[name]} is done and its effect never took effect")
