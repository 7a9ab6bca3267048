"""A ledger as `_model.records` describes it: atomic, durable, with its own clock, sometimes absent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from claimant._model.errors import LedgerAbsent
from claimant._model.records import (
    Began,
    Begin,
    CloseSlot,
    Finish,
    LedgerNow,
    LedgerRequest,
    RunStart,
    Skip,
    SlotClosed,
    SlotState,
)
from claimant.sim.network import window_at
from claimant.sim.schedule import EPOCH_MS, Schedule
from claimant.sim.world import World

if TYPE_CHECKING:
    from claimant.sim.process import Task

DEADLINE_MS = 500


@dataclass(slots=True)
class RunRow:
    """One run. `kind` is None while it has not ended."""

    start: RunStart
    started_ms: int
    attempt: int
    kind: str | None = None
    claim: str = ""
    duplicates: int = 0


@dataclass(slots=True)
class SlotRow:
    """One slot: how often it was begun and failed, and whether it is closed."""

    begun: int = 0
    failures: int = 0
    last_run: str = ""
    closed: SlotClosed | None = None
    closed_ms: int = 0


class SimLedger:
    """The durable record. One per schedule."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self.world = world
        self.schedule = schedule
        self.runs: dict[str, RunRow] = {}
        self.slots: dict[tuple[str, str, str], SlotRow] = {}
        self.streaks: dict[tuple[str, str], int] = {}
        self.forgot = False
        """Whether it has failed over to a copy that was behind."""
        self._copy: tuple[dict[str, RunRow], dict[tuple[str, str, str], SlotRow]] = ({}, {})

    def epoch(self) -> int:
        """The ledger's clock."""
        return EPOCH_MS + self.schedule.phase_ms + self.world.now

    def keep_copy(self) -> None:
        """What a copy has that is behind from now on."""
        self._copy = (
            {run_id: replace(row) for run_id, row in self.runs.items()},
            {key: replace(row) for key, row in self.slots.items()},
        )

    def fail_over(self) -> None:
        """The copy takes over."""
        self.world.count("ledger failover")
        self.world.note("ledger", "fails over")
        self.forgot = self.forgot or self._copy != (self.runs, self.slots)
        self.world.count("ledger failover: rows lost", int(self._copy != (self.runs, self.slots)))
        self.runs, self.slots = self._copy

    def slot(self, job: str, key: str, slot: str) -> SlotRow:
        """One slot's row."""
        row = self.slots.get((job, key, slot))
        if row is None:
            row = self.slots[(job, key, slot)] = SlotRow()
        return row

    def send(self, task: Task, request: LedgerRequest) -> None:
        """Carry `request` out and answer the task; or `LedgerAbsent`, applied or not."""
        world = self.world
        window = window_at(self.schedule.ledger_windows, world.now)
        if window is not None:
            world.count(f"ledger: away at {request.__class__.__name__}")
            after = 1 if world.chance() < 0.5 else DEADLINE_MS
            world.at(
                world.now + after, task.deliver, task.wait_id, None, LedgerAbsent("no answer", retry_in=1.0)
            )
            return
        arrive = world.now + 1 + world.below(2)
        lost = (
            self.schedule.ledger_loss > 0
            and world.now < self.schedule.calm_ms
            and world.chance() < self.schedule.ledger_loss
        )
        world.at(arrive, self._land, task, task.wait_id, request, lost)

    def _land(self, task: Task, wait_id: int, request: LedgerRequest, lost: bool) -> None:  # noqa: FBT001
        world = self.world
        reply = self.carry_out(request)
        world.note(task.who, "ledger", request)
        if lost:
            world.count(f"ledger: answer lost at {request.__class__.__name__}")
            error = LedgerAbsent("the answer was lost", retry_in=1.0)
            world.at(world.now + DEADLINE_MS, task.deliver, wait_id, None, error)
        else:
            world.at(world.now + 1, task.deliver, wait_id, reply)

    def carry_out(self, request: LedgerRequest) -> Any:
        """Apply one request, in one transaction."""
        match request:
            case LedgerNow():
                return self.epoch()
            case SlotState(job, key, slot, attempts):
                return self._closed(self.slot(job, key, slot), attempts)
            case Begin(start, attempts, close_at_start, force):
                return self._begin(start, attempts, close_at_start=close_at_start, force=force)
            case Finish():
                return self._finish(request)
            case Skip(job, key):
                self.streaks[(job, key)] = self.streaks.get((job, key), 0) + 1
                return self.streaks[(job, key)]
            case CloseSlot(run_id):
                row = self.runs.get(run_id)
                if row is not None:
                    self._close(row, None)
                return None
        raise TypeError(f"no ledger request: {request!r}")

    @staticmethod
    def _closed(row: SlotRow, attempts: int) -> SlotClosed | None:
        if row.closed is not None:
            return row.closed
        if row.failures >= attempts:
            return SlotClosed(row.last_run, completed=False, reason=f"{row.failures} failed attempt(s)")
        return None

    def _begin(
        self, start: RunStart, attempts: int, *, close_at_start: bool, force: bool
    ) -> Began | SlotClosed:
        now = self.world.now
        attempt = 1
        if start.slot is not None:
            slot = self.slot(start.job, start.key, start.slot)
            closed = self._closed(slot, attempts)
            if closed is not None and not force:
                return closed
            slot.begun += 1
            slot.last_run = start.run_id
            attempt = slot.begun
        others = sum(
            row.kind is None
            and row.start.job == start.job
            and row.start.key == start.key
            and now - row.started_ms < row.start.max_run_ms
            for row in self.runs.values()
        )
        self.streaks[(start.job, start.key)] = 0
        row = self.runs[start.run_id] = RunRow(start, now, attempt)
        if close_at_start:
            self._close(row, None)
        return Began(attempt, others)

    def _finish(self, request: Finish) -> None:
        row = self.runs.get(request.run_id)
        if row is None:
            if request.start is None:
                return
            row = self.runs[request.run_id] = RunRow(request.start, self.world.now - request.took_ms, 0)
        row.kind, row.claim = request.kind, request.claim
        row.duplicates = sum(answer.kind == "duplicate" for answer in request.answers)
        if request.close_slot:
            self._close(row, request.result)
        elif request.kind == "failed" and row.start.slot is not None:
            slot = self.slot(row.start.job, row.start.key, row.start.slot)
            # A superseded attempt can write only a success.
            if row.attempt in (0, slot.begun):
                slot.failures += 1

    def _close(self, row: RunRow, result: str | None) -> None:
        if row.start.slot is None:
            return
        slot = self.slot(row.start.job, row.start.key, row.start.slot)
        if slot.closed is None:
            slot.closed = SlotClosed(row.start.run_id, completed=True, result=result)
            slot.closed_ms = self.world.now
