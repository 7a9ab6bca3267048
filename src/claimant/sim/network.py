"""The way from a process to the store and back: what is lost, late, slow or turned away.

Every request is answered by its deadline on the sender's clock, as a store port promises, and with the only
words a port has: applied, certainly not applied, or unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from claimant._model.ops import Create, Renew, Renewed, Repair, StoreAbsent, StoreRequest, StoreUnknown
from claimant.sim.schedule import LATEST_MS, Mode, Schedule, Window
from claimant.sim.store import SimStore
from claimant.sim.world import World

if TYPE_CHECKING:
    from claimant.sim.checks import Checks
    from claimant.sim.process import Task

FATES = ("lost", "reply lost", "reset before", "reset after", "late", "twice", "slow", "turned away")


def window_at(windows: tuple[Window, ...], now_ms: int) -> Window | None:
    """The window that is open now."""
    for window in windows:
        if window.start_ms <= now_ms < window.end_ms:
            return window
    return None


def shaped(request: StoreRequest, reply: StoreAbsent | StoreUnknown) -> Any:
    """One bad answer, in the shape that the request's answer has."""
    return tuple(reply for _ in request.items) if isinstance(request, Renew) else reply


class Network:
    """Carries requests. One per schedule."""

    def __init__(self, world: World, schedule: Schedule, store: SimStore, checks: Checks) -> None:
        self.world = world
        self.schedule = schedule
        self.store = store
        self.checks = checks
        self.requests = 0
        self._fates = dict(schedule.fates)

    def send(self, task: Task, request: Any) -> None:
        """Carry `request` out, some time, perhaps, and answer the task by the deadline."""
        world, process = self.world, task.process
        now = world.now
        until: int = request.until_ms - process.host.offset_ms
        if until <= now:
            self._answer_at(now, task, request, StoreAbsent("no time was left to send it"))
            return
        window = window_at(self.schedule.store_windows, now)
        arrive = now + 1 + world.below(3)
        back = 1 + world.below(3)
        self.requests += 1
        # A connection leads to one node, whoever is the primary by the time that what was sent arrives.
        term = -1 if self.store.is_stale(process.number) else self.store.term
        fate = self._fates.get(self.requests, "") if window is None else ""
        if window is not None:
            world.count(f"store: {window.mode} at {request.__class__.__name__}")
            match window.mode:
                case Mode.REFUSE:
                    self._answer_at(now + 1, task, request, StoreAbsent("connection refused"))
                    return
                case Mode.SILENT:
                    fate = "lost"
                case Mode.FROZEN:
                    arrive = window.end_ms + world.below(5)
                case Mode.SLOW:
                    arrive += world.below(60)
                    back += world.below(60)
        elif (
            self.schedule.network
            and not fate
            and now < self.schedule.calm_ms
            and world.chance() < self.schedule.network
        ):
            fate = FATES[world.below(len(FATES))]
        if fate:
            if window is None:
                world.count(f"network: {fate} at {request.__class__.__name__}")
            match fate:
                case "lost":
                    self._answer_at(until, task, request, StoreUnknown("no answer"))
                    return
                case "turned away":
                    self._answer_at(arrive + back, task, request, StoreAbsent("the server turned it away"))
                    return
                case "reset before":
                    self._answer_at(arrive, task, request, StoreUnknown("connection reset"))
                    return
                case "reset after":
                    world.at(arrive, self._land, task, request, process.life, None, term)
                    self._answer_at(arrive + back, task, request, StoreUnknown("connection reset"))
                    return
                case "reply lost":
                    world.at(arrive, self._land, task, request, process.life, None, term)
                    self._answer_at(until, task, request, StoreUnknown("no answer"))
                    return
                case "twice":
                    world.at(
                        arrive + 1 + world.below(LATEST_MS),
                        self._land,
                        task,
                        request,
                        process.life,
                        None,
                        term,
                    )
                case "late":
                    arrive = until + 1 + world.below(LATEST_MS)
                case _:
                    longest = until - now
                    if world.chance() < 0.5:
                        # Applied at once and answered at the last moment: the worst case for who trusts from the reply.
                        back = max(back, until - arrive)
                    else:
                        arrive += world.below(longest)
                        back += world.below(max(1, longest - (arrive - now)))
        in_time = arrive + back <= until
        world.at(
            arrive,
            self._land,
            task,
            request,
            process.life,
            (task.wait_id, back, until) if in_time else None,
            term,
        )
        if not in_time:
            self._answer_at(until, task, request, StoreUnknown("no answer"))

    def _answer_at(
        self, when_ms: int, task: Task, request: StoreRequest, reply: StoreAbsent | StoreUnknown
    ) -> None:
        self.world.at(when_ms, task.deliver, task.wait_id, shaped(request, reply))

    def _land(
        self, task: Task, request: Any, life: int, answer: tuple[int, int, int] | None, term: int
    ) -> None:
        """The request reaches the server that it was sent to."""
        world, store = self.world, self.store
        if term != store.term:
            reply = store.carry_out_stale(request)
            world.note(task.who, "lands on the old primary", request)
            if answer is not None:
                wait_id, back, until = answer
                world.at(world.now + back, self._reply, task, request, wait_id, until, reply, world.now)
            return
        before = store.live(request.key) if not isinstance(request, Renew) else None
        there = [store.live(item.key) for item in request.items] if isinstance(request, Renew) else []
        held = [None if entry is None else entry.value for entry in there]
        if isinstance(request, Create | Renew | Repair):
            self.checks.landing(task, request, life)
        reply = store.carry_out(request)
        if isinstance(request, Renew):
            self.checks.renewed(task, request, held, reply)
            for item, each in zip(request.items, reply, strict=True):
                if answer is not None and isinstance(each, Renewed):
                    # Whatever was lost before: from here on the holder has what it believes to have.
                    store.took.pop(item.value, None)
        world.note(task.who, "lands", request)
        self.checks.landed(task, request, before, reply, awaited=answer is not None)
        if answer is not None:
            wait_id, back, until = answer
            world.at(world.now + back, self._reply, task, request, wait_id, until, reply, world.now)

    def _reply(
        self, task: Task, request: StoreRequest, wait_id: int, until: int, reply: Any, landed_ms: int
    ) -> None:
        if self.store.restarted_ms >= landed_ms:
            reply = shaped(request, StoreUnknown("connection reset"))
        task.deliver(wait_id, reply, until_ms=until, request=request)
