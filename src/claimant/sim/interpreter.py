"""The third interpreter: what each request of a flow means in the simulated world."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from claimant._model import guarding, records
from claimant._model.holding import Cleanup, Probe, Tenure
from claimant._model.ops import (
    Call,
    Create,
    Emit,
    Gate,
    Hand,
    HostEpoch,
    Inbox,
    Jitter,
    NewToken,
    Now,
    Peek,
    Release,
    Renew,
    Repair,
    Report,
    SleepUntil,
    Tell,
)
from claimant.sim.schedule import EPOCH_MS

if TYPE_CHECKING:
    from claimant.sim.process import Task

WAIT: Any = object()
"""The answer comes later."""


def _now(task: Task, _: Now) -> int:
    process = task.process
    return process.world.now + process.host.offset_ms


def _host_epoch(task: Task, _: HostEpoch) -> int:
    process = task.process
    task.process.world.count("slot by the host's clock")
    return (
        EPOCH_MS
        + process.site.schedule.phase_ms
        + process.world.now
        + process.host.wall_error_ms(process.world.now)
    )


def _sleep(task: Task, request: SleepUntil) -> Any:
    process = task.process
    task.wait(request)
    world = process.world
    world.at(max(world.now, request.at_ms - process.host.offset_ms), task.deliver, task.wait_id, None)
    _maybe_cancel(task)
    return WAIT


def _maybe_cancel(task: Task) -> None:
    process = task.process
    likely = process.cancels
    if likely and task.attempt is not None:
        world = process.world
        if world.now < process.site.schedule.calm_ms and world.chance() < likely:
            world.at(world.now + world.below(250), task.cancel, task.wait_id)


def _token(task: Task, _: NewToken) -> str:
    checks = task.process.site.checks
    checks.tokens += 1
    return f"{checks.tokens:032x}"


def _jitter(task: Task, request: Jitter) -> int:
    return task.process.world.below(request.limit + 1)


def _emit(task: Task, request: Emit) -> None:
    world = task.process.world
    world.count(request.event.kind)
    if request.event.kind == "guard.uncounted" and task.attempt is not None:
        task.attempt.uncounted = True
    world.note(task.who, request.event.kind, request.event.text)


def _call(task: Task, request: Call) -> Any:
    task.process.site.checks.body_starts(task)
    result = request.work()
    if isinstance(result, Generator):
        task.stack.append(result)
        return None
    return result


def _gate(task: Task, _: Gate) -> bool:
    process = task.process
    is_open = not process.breaker.open
    process.site.checks.gate(task, is_open=is_open)
    return is_open


def _report(task: Task, request: Report) -> bool:
    process = task.process
    before = process.breaker
    state = process.breaker = process.site.flows.after(before, request)
    opened = state.open and not before.open
    if opened:
        process.world.count("breaker opened")
        process.world.note(task.who, "breaker opens", request)
    elif before.open and not state.open:
        process.world.count("breaker closed")
        process.world.note(task.who, "breaker closes")
    return opened


def _hand(task: Task, request: Hand) -> None:
    process = task.process
    item = request.item
    process.world.note(
        task.who, f"hands {type(item).__name__}", item.value if isinstance(item, Cleanup | Tenure) else None
    )
    if not isinstance(item, Probe):
        process.site.checks.handed(task, item)
    process.hand(item)


def _inbox(task: Task, request: Inbox) -> Any:
    process = task.process
    process.site.checks.keeping.keeper_rests(process)
    if process.inbox:
        arrived, process.inbox = tuple(process.inbox), []
        return arrived
    task.wait(request)
    if request.until_ms is not None:
        world = process.world
        world.at(
            max(world.now, request.until_ms - process.host.offset_ms),
            process.deliver_inbox,
            task,
            task.wait_id,
        )
    return WAIT


def _tell(task: Task, request: Tell) -> None:
    process = task.process
    process.world.note(task.who, "tells", request.tenure.state.value)
    process.site.checks.keeping.told(process, request.tenure)
    _emit(task, Emit(request.event))


def _store(task: Task, request: Any) -> Any:
    process = task.process
    task.wait(request)
    process.world.note(task.who, "sends", request)
    process.site.checks.sent(task, request)
    process.site.network.send(task, request)
    _maybe_cancel(task)
    return WAIT


def _ledger(task: Task, request: Any) -> Any:
    process = task.process
    task.wait(request)
    process.world.note(task.who, "asks the ledger", type(request).__name__)
    process.site.checks.recorded(task, request)
    process.site.ledger.send(task, request)
    _maybe_cancel(task)
    return WAIT


def _guard(task: Task, request: Any) -> Any:
    process = task.process
    answer = process.site.guard.ask(task, request, WAIT)
    if answer is WAIT:
        process.world.note(task.who, "asks the guard", request)
        _maybe_cancel(task)
    return answer


HANDLERS: dict[type, Callable[[Any, Any], Any]] = {
    Now: _now,
    HostEpoch: _host_epoch,
    SleepUntil: _sleep,
    NewToken: _token,
    Jitter: _jitter,
    Emit: _emit,
    Call: _call,
    Gate: _gate,
    Report: _report,
    Hand: _hand,
    Inbox: _inbox,
    Tell: _tell,
    Create: _store,
    Release: _store,
    Renew: _store,
    Repair: _store,
    Peek: _store,
    records.LedgerNow: _ledger,
    records.Begin: _ledger,
    records.SlotState: _ledger,
    records.Finish: _ledger,
    records.CloseSlot: _ledger,
    records.Skip: _ledger,
    guarding.Open: _guard,
    guarding.BeginOwned: _guard,
    guarding.Execute: _guard,
    guarding.Savepoint: _guard,
    guarding.ReleaseSavepoint: _guard,
    guarding.RollbackTo: _guard,
    guarding.Effect: _guard,
    guarding.Commit: _guard,
    guarding.Rollback: _guard,
    guarding.Close: _guard,
    guarding.InTransaction: _guard,
    guarding.Classify: _guard,
}
