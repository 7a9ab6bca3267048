"""Worker processes: flows are driven here, step by step, and may be frozen or dropped at every yield.

Main flows and the keeper's flow share one process: one breaker, one inbox, one fate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from claimant._flows.breaker import Breaker, after
from claimant._flows.keep import Duties, keep
from claimant._flows.once import once
from claimant._flows.run import run
from claimant._model.guarding import Attempt as GuardAttempt
from claimant._model.guarding import BeginOwned, Close, Commit, Effect, Execute, Open, Rollback
from claimant._model.holding import Tenure
from claimant._model.ops import Flow, Inbox, Now, StoreRequest, StoreUnknown
from claimant._model.outcome import Answer
from claimant.sim.interpreter import HANDLERS, WAIT
from claimant.sim.network import shaped
from claimant.sim.schedule import DEADLINE_MS, Host, Interruption, Schedule, Stroke
from claimant.sim.world import World

if TYPE_CHECKING:
    from claimant.sim.attempt import Attempt
    from claimant.sim.checks import Checks
    from claimant.sim.database import GuardDatabase
    from claimant.sim.ledger import SimLedger
    from claimant.sim.network import Network

NEVER = 1 << 60
UNWATCHED = frozenset({Inbox, type(None), Execute, Commit, Effect, Rollback, Close, Open, BeginOwned})
"""Whose answers no invariant is about."""
RESTART_KEEPER_MS = 100


class PortFault(Exception):
    """What a store port must never raise, and one day does."""


class Cancelled(BaseException):
    """Thrown into a main flow that waits, as a cancelled asyncio task has it."""


@dataclass(frozen=True, slots=True)
class Flows:
    """The decisions under test. Tests put broken ones here."""

    run: Callable[..., Flow[Any]] = run
    keep: Callable[[int, Duties], Flow[None]] = keep
    after: Callable[..., Breaker] = after
    guard: Callable[[GuardAttempt], Flow[Answer[Any]]] = once


@dataclass(slots=True)
class Site:
    """What all processes of a schedule share."""

    world: World
    schedule: Schedule
    network: Network
    ledger: SimLedger
    guard: GuardDatabase
    checks: Checks
    flows: Flows


class Task:
    """One running flow: a stack of generators, because `Call` may start the user's code as one."""

    __slots__ = (
        "attempt",
        "ended",
        "life",
        "process",
        "request",
        "since_frozen_ms",
        "since_ms",
        "stack",
        "wait_id",
        "who",
    )

    def __init__(
        self, process: Process, flow: Generator[Any, Any, Any], who: str, attempt: Attempt | None
    ) -> None:
        self.process = process
        self.life = process.life
        self.stack = [flow]
        self.who = who
        self.attempt = attempt
        self.wait_id = 0
        self.ended = False
        self.request: Any = None
        self.since_ms = 0
        self.since_frozen_ms = 0

    def wait(self, request: Any) -> None:
        """The flow now waits for the answer to `request`."""
        process = self.process
        process.waits += 1
        self.wait_id = process.waits
        self.request = request
        self.since_ms = process.world.now
        self.since_frozen_ms = process.frozen_ms

    def deliver(
        self,
        wait_id: int,
        value: Any,
        error: BaseException | None = None,
        *,
        until_ms: int | None = None,
        request: StoreRequest | None = None,
    ) -> None:
        """An answer arrives; it is dropped if nobody waits for it any more, and kept while the process is frozen."""
        if self.ended or self.wait_id != wait_id:
            return
        process = self.process
        world = process.world
        if process.frozen:
            process.deferred.append(
                lambda: self.deliver(wait_id, value, error, until_ms=until_ms, request=request)
            )
            return
        if request is not None and until_ms is not None and world.now > until_ms and world.chance() < 0.5:
            # After a thaw both are right: to read what has arrived, or to see first that the deadline has passed.
            value = shaped(request, StoreUnknown("the deadline passed while the process was frozen"))
        asked = self.request
        self.wait_id = 0
        self.request = None
        world.trace.append((world.now, self.who, "answer", value if error is None else error))
        if asked.__class__ not in UNWATCHED:
            waited = world.now - self.since_ms - (process.frozen_ms - self.since_frozen_ms)
            process.site.checks.answered(self, asked, value, error, waited)
        self.resume(value, error)

    def cancel(self, wait_id: int) -> None:
        """Throw `Cancelled` in, if the flow still waits there."""
        if self.ended or self.wait_id != wait_id or self.process.frozen:
            return
        self.resume(None, self._cancelled())

    def _cancelled(self) -> Cancelled:
        self.wait_id = 0
        world, attempt = self.process.world, self.attempt
        assert attempt is not None
        attempt.cancelled = True
        where = type(self.request).__name__
        world.count(f"cancel at {where}")
        world.note(self.who, "cancelled at", where)
        return Cancelled()

    def resume(self, value: Any, error: BaseException | None = None) -> None:
        """Drive the flow until it waits, ends, or its process is struck."""
        stack, process, handlers = self.stack, self.process, HANDLERS
        while True:
            try:
                request = stack[-1].send(value) if error is None else stack[-1].throw(error)
            except StopIteration as stop:
                stack.pop()
                value, error = stop.value, None
                if stack:
                    continue
                process.finished(self, value, None)
                return
            except BaseException as raised:
                stack.pop()
                value, error = None, raised
                if stack:
                    continue
                process.finished(self, None, raised)
                return
            error = None
            process.steps += 1
            if process.steps >= process.strike_at and process.aimed in ("", request.__class__.__name__):
                stroke = process.stroke(self, request)
                if stroke is Stroke.CANCEL:
                    HANDLERS[type(request)](self, request)
                    value, error = None, self._cancelled()
                    continue
                if stroke is Stroke.FAULT:
                    value, error = None, PortFault()
                    continue
                if stroke is not None:
                    return
            if request.__class__ is Now:
                value = process.world.now + process.offset_ms
                continue
            value = handlers[request.__class__](self, request)
            if value is WAIT:
                return

    def carry(self, request: Any) -> None:
        """Go on with a request at which the process was frozen."""
        if self.ended:
            return
        value = HANDLERS[type(request)](self, request)
        if value is not WAIT:
            self.resume(value)


class Process:
    """One worker process, through its lives."""

    def __init__(self, site: Site, number: int, host: Host) -> None:
        self.site = site
        self.world = site.world
        self.number = number
        self.host = host
        self.offset_ms = host.offset_ms
        self.cancels = site.schedule.cancels
        self.life = 0
        self.alive = True
        self.frozen = False
        self.frozen_ms = 0
        self.thawed_ms = 0
        self.started_ms = 0
        self.waits = 0
        self.steps = 0
        strokes = [each for each in site.schedule.interruptions if each.process == number]
        self.strokes = sorted(strokes, key=lambda each: -each.step)
        self.strike_at = self.strokes[-1].step if self.strokes else NEVER
        self.aimed = self.strokes[-1].request if self.strokes else ""
        """What the next stroke aims at; "" is anything."""
        self.deferred: list[Callable[[], None]] = []
        self._begin()

    def _begin(self) -> None:
        self.label = f"p{self.number}.{self.life}"
        self.breaker = Breaker()
        self.tasks: list[Task] = []
        self.keeper: Task | None = None
        self.inbox: list[Any] = []
        self.duties = Duties()
        self.tenures: list[Tenure] = []
        self.known: dict[int, tuple[str, str]] = {}
        self.limits: dict[int, tuple[int, int | None]] = {}
        self.handed: set[str] = set()
        self.gone: dict[str, str] = {}
        self.gone_before: set[str] = set()
        self.refused_by = ""
        self.shortest_ms = NEVER
        self.busy_until_ms = 0
        self.excused: dict[int, int] = {}
        """Tenures of a shorter lifetime than any before, handed over while the keeper waited for an answer: until when it did."""
        self.paid = 0
        self.stopping = False

    # -- flows --------------------------------------------------------------------------------------------------

    def start(self, attempt: Attempt, flow: Flow[Any]) -> None:
        """Start a main flow."""
        task = Task(self, flow, f"{self.label}/a{attempt.number}", attempt)
        self.tasks.append(task)
        task.resume(None)

    def hand(self, item: Any) -> None:
        """Put an item into the keeper's inbox; the keeper starts with the first."""
        self.inbox.append(item)
        keeper = self.keeper
        if keeper is None:
            self._new_keeper()
        elif keeper.wait_id and keeper.request is not None and type(keeper.request).__name__ == "Inbox":
            self.world.at(self.world.now, self.deliver_inbox, keeper, keeper.wait_id)

    def _restart_keeper(self, life: int) -> None:
        if self.life != life:
            return
        if self.frozen:
            self.deferred.append(lambda: self._restart_keeper(life))
            return
        self.world.count("keeper started again")
        self._new_keeper()

    def _new_keeper(self) -> None:
        flow = self.site.flows.keep(DEADLINE_MS, self.duties)
        keeper = self.keeper = Task(self, flow, f"{self.label}/keeper", None)
        keeper.wait(None)
        self.world.at(self.world.now, self._wake_keeper, keeper, keeper.wait_id)

    def _wake_keeper(self, keeper: Task, wait_id: int) -> None:
        keeper.deliver(wait_id, None)

    def deliver_inbox(self, keeper: Task, wait_id: int) -> None:
        """Give the waiting keeper what has arrived, or nothing at its time."""
        if keeper.ended or keeper.wait_id != wait_id:
            return
        if self.frozen:
            self.deferred.append(lambda: self.deliver_inbox(keeper, wait_id))
            return
        arrived, self.inbox = tuple(self.inbox), []
        keeper.deliver(wait_id, arrived)

    def stop_keeper(self) -> None:
        """Tell the keeper to stop; it must end at once."""
        self.stopping = True
        if self.keeper is not None and not self.keeper.ended:
            self.keeper.deliver(self.keeper.wait_id, None)

    def finished(self, task: Task, result: Any, error: BaseException | None) -> None:
        """A flow has ended."""
        task.ended = True
        if task.attempt is None:
            if isinstance(error, PortFault):
                self.gone.clear()
                self.world.at(self.world.now + RESTART_KEEPER_MS, self._restart_keeper, self.life)
            elif error is not None or not self.stopping:
                self.site.checks.unexpected(task, error)
            return
        self.tasks.remove(task)
        self.world.note(task.who, "ended", error if error is not None else result)
        self.site.checks.ended(task, task.attempt, result, error)

    # -- strokes ------------------------------------------------------------------------------------------------

    def stroke(self, task: Task, request: Any) -> Stroke | None:
        """The interruption that is due at this yield; carried out already, but for a cancellation."""
        due = self.strokes[-1]
        if self.world.now >= self.site.schedule.calm_ms:
            self.strike_at = NEVER
            return None
        misses = {
            Stroke.CANCEL: task.attempt is None or not request.waits,
            Stroke.FAULT: task.attempt is not None or not isinstance(request, StoreRequest),
        }
        if misses.get(due.stroke):
            self.strike_at = self.steps + 1
            return None
        self.strokes.pop()
        self.strike_at = max(self.steps + 1, self.strokes[-1].step) if self.strokes else NEVER
        self.aimed = self.strokes[-1].request if self.strokes else ""
        name = type(request).__name__
        if due.stroke is not Stroke.CANCEL:
            self.world.count(f"{due.stroke.value} at {name}")
        self.world.note(task.who, f"{due.stroke.value} at", name)
        match due.stroke:
            case Stroke.CRASH:
                self.crash(due)
            case Stroke.FREEZE:
                self.freeze(due)
                self.deferred.append(lambda: task.carry(request))
            case Stroke.CANCEL | Stroke.FAULT:
                pass
        return due.stroke

    def crash(self, due: Interruption) -> None:
        """Drop everything, clean nothing; a new life begins later."""
        self.site.checks.died(self)
        self.site.guard.died(self._running())
        for task in [*self.tasks, *([self.keeper] if self.keeper is not None else [])]:
            task.ended = True
            for generator in reversed(task.stack):
                try:
                    generator.close()
                except RuntimeError as error:
                    self.site.checks.unexpected(task, error)
        self.alive = False
        self.frozen = False
        self.deferred.clear()
        self.life += 1
        self._begin()
        back = max(self.world.now + 1, min(self.world.now + due.ms, self.site.schedule.calm_ms))
        self.world.at(back, self._restart, self.life)

    def _running(self) -> list[int]:
        return [task.attempt.number for task in self.tasks if task.attempt is not None]

    def _restart(self, life: int) -> None:
        if self.life == life:
            self.alive = True
            self.started_ms = self.world.now
            self.world.note(self.label, "starts again")

    def freeze(self, due: Interruption) -> None:
        """Stop main flows and keeper alike."""
        self.frozen = True
        self.site.guard.frozen(self._running())
        self.world.at(self.world.now + due.ms, self._thaw, self.life, due.ms)

    def _thaw(self, life: int, ms: int) -> None:
        if self.life != life:
            return
        self.frozen = False
        self.frozen_ms += ms
        self.thawed_ms = self.world.now
        self.world.note(self.label, "thaws")
        pending, self.deferred = self.deferred, []
        while pending and not self.frozen and self.life == life:
            pending.pop(0)()
        if self.life == life:
            self.deferred = pending + self.deferred
