"""Run one schedule, or search many: the shipped flows in a world where everything that may go wrong does.

One integer is one schedule; the same seed gives the same events, and so the same hash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from claimant._flows.acquire import SLACK_MS
from claimant._model import slots
from claimant._model.holding import State
from claimant._model.journal import Journal
from claimant._model.names import lease_key
from claimant._model.policy import Plan
from claimant.sim.attempt import Attempt
from claimant.sim.body import body
from claimant.sim.broker import Broker
from claimant.sim.checks import MOST_AT_ONCE, Checks
from claimant.sim.coverage import empty_cells, faults, never_reached
from claimant.sim.database import GuardDatabase
from claimant.sim.draw import FAULTY_MS, draw
from claimant.sim.ledger import SimLedger
from claimant.sim.network import Network
from claimant.sim.process import Flows, Process, Site
from claimant.sim.schedule import DEADLINE_MS, Schedule, SimJob
from claimant.sim.store import SimStore
from claimant.sim.world import Violation, World, event_hash, story

MOST_EVENTS = 20_000
TRIGGERS = 60
"""So often is a job started again at most; a healthy one needs far fewer."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one schedule came to."""

    seed: int
    events: int
    virtual_ms: int
    steps: tuple[int, ...]
    """Yields of each process's flows."""
    requests: int
    """Store requests that left a process."""
    counters: dict[str, int]
    violations: tuple[Violation, ...]
    schedule: Schedule
    trace: list[tuple[int, str, str, Any]] = field(repr=False)
    """(true ms, who, what, about what), in order."""

    @property
    def event_hash(self) -> str:
        """The same for every run of the same seed and code."""
        return event_hash(self.trace)

    def story(self) -> str:
        """The trace, for people, with what was violated in front."""
        broken = "\n".join(f"{each.invariant} at {each.at_ms} ms: {each.text}" for each in self.violations)
        return f"seed {self.seed}\n{broken}\n\n{self.schedule}\n\n{story(self.trace)}"


@dataclass(frozen=True, slots=True)
class Search:
    """What many schedules came to. `failed` holds the reports of those that violated something."""

    schedules: int
    events: int
    virtual_ms: int
    counters: dict[str, int]
    failed: tuple[Report, ...]

    @property
    def never_reached(self) -> tuple[str, ...]:
        """Branches that the search should have taken and did not, and faults that it met at no step where they can be."""
        return (*never_reached(self.counters), *empty_cells(self.counters))

    @property
    def passed(self) -> bool:
        """No violation, and nothing that was never reached: a clean run that did not go everywhere proves nothing."""
        return not self.failed and not self.never_reached

    def __add__(self, other: Search) -> Search:
        """Both together."""
        counters = dict(self.counters)
        for branch, times in other.counters.items():
            counters[branch] = counters.get(branch, 0) + times
        return Search(
            self.schedules + other.schedules,
            self.events + other.events,
            self.virtual_ms + other.virtual_ms,
            counters,
            self.failed + other.failed,
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-able figures: what the track record is made of."""
        count = self.counters.get
        return {
            "schedules": self.schedules,
            "events": self.events,
            "faults": faults(self.counters),
            "virtual_hours": round(self.virtual_ms / 3_600_000, 1),
            "starts": sum(times for name, times in self.counters.items() if name.startswith("outcome: ")),
            "bodies": count("body starts", 0),
            "two_holder_moments": sum(
                times for name, times in self.counters.items() if name.startswith("two trusted")
            ),
            "duplicates_rejected": count("guard.duplicate", 0),
            "runs_without_claim": count("run.unclaimed", 0),
            "violations": [
                {"seed": report.seed, "invariant": each.invariant, "at_ms": each.at_ms, "text": each.text}
                for report in self.failed
                for each in report.violations
            ],
            "never_reached": list(self.never_reached),
            "passed": self.passed,
            "counters": dict(sorted(self.counters.items())),
        }


def run(
    seed: int,
    *,
    flows: Flows | None = None,
    schedule: Schedule | None = None,
    store: type[SimStore] = SimStore,
    only: Collection[str] = (),
) -> Report:
    """Run the schedule of `seed`, or `schedule`. `only`: these kinds of fault. `flows` and `store` are for planted bugs."""
    return Simulation(draw(seed, only) if schedule is None else schedule, flows or Flows(), store).run()


def search(
    seeds: Iterable[int],
    *,
    flows: Flows | None = None,
    store: type[SimStore] = SimStore,
    only: Collection[str] = (),
    stop_after: int = 1,
) -> Search:
    """Run the schedules of `seeds`, until `stop_after` of them have violated something. The rest is as in `run`."""
    counters: dict[str, int] = {}
    failed: list[Report] = []
    schedules = events = virtual = 0
    for seed in seeds:
        report = run(seed, flows=flows, store=store, only=only)
        schedules += 1
        events += report.events
        virtual += report.virtual_ms
        for branch, times in report.counters.items():
            counters[branch] = counters.get(branch, 0) + times
        if report.violations:
            failed.append(report)
            if len(failed) >= stop_after:
                break
    return Search(schedules, events, virtual, counters, tuple(failed))


class Simulation:
    """One schedule, wired up."""

    def __init__(self, schedule: Schedule, flows: Flows, store: type[SimStore]) -> None:
        world = self.world = World(schedule.seed)
        self.schedule = schedule
        self.store = store(world, schedule)
        self.ledger = SimLedger(world, schedule)
        self.guard = GuardDatabase(world, schedule)
        self.checks = Checks(world, schedule, self.store, self.ledger)
        network = Network(world, schedule, self.store, self.checks)
        self.site = Site(world, schedule, network, self.ledger, self.guard, self.checks, flows)
        self.processes = [
            Process(self.site, number, schedule.hosts[host]) for number, host in enumerate(schedule.processes)
        ]
        self.keys = {
            job.name: lease_key("sim", job.name, (job.key,) if job.key else ()) for job in schedule.jobs
        }
        self.broker = Broker(world, schedule, self.guard, self._deliver)
        self.checks.broker = self.broker
        self.attempts = 0
        self.triggered: dict[str, int] = {}

    def run(self) -> Report:
        """Let it happen, then look at what is left."""
        world = self.world
        for job in self.schedule.jobs:
            for at_ms, process in job.starts:
                world.at(at_ms, self._start, job, process)
            world.at(job.starts[-1][0] + job.again_ms, self._trigger, job)
        for blow in self.schedule.blows:
            if blow.age_ms:
                world.at(max(0, blow.at_ms - blow.age_ms), self.store.keep_snapshot)
            world.at(blow.at_ms, self.store.suffer, blow, tuple(self.keys.values()))
        for forgetting, forgetful in (
            (self.schedule.ledger_failover, self.ledger),
            (self.schedule.guard_failover, self.guard),
        ):
            if forgetting is not None:
                world.at(max(0, forgetting.at_ms - forgetting.lost_ms), forgetful.keep_copy)
                world.at(forgetting.at_ms, forgetful.fail_over)
        for failover in self.schedule.failovers:
            world.at(failover.at_ms, self.store.fail_over, failover)
        world.at(self.schedule.calm_ms, self.store.tidy_foreign)
        if world.run(most_events=MOST_EVENTS):
            self._final()
        else:
            world.broken("L1", f"no rest after {world.events} events")
        return Report(
            self.schedule.seed,
            world.events,
            world.now,
            tuple(process.steps for process in self.processes),
            self.site.network.requests,
            world.counters,
            tuple(world.violations),
            self.schedule,
            world.trace,
        )

    def _trigger(self, job: SimJob) -> None:
        """A schedule tick or a redelivery: until the job is done, and for ever if it never is."""
        world = self.world
        if job.name in self.checks.outcomes.finished and not self._more_to_come(job):
            return
        times = self.triggered[job.name] = self.triggered.get(job.name, 0) + 1
        if times > TRIGGERS:
            return
        self._start(job, world.below(len(self.processes)))
        world.at(world.now + job.again_ms, self._trigger, job)

    def _deliver(self, job: SimJob) -> None:
        self._start(job, self.world.below(len(self.processes)))

    def _more_to_come(self, job: SimJob) -> bool:
        """Whether a slot is still to begin or to be done although an earlier one was, or a key needs somebody to mend it."""
        entry = self.store.live(self.keys[job.name])
        if entry is not None and self.store.is_broken(entry, SLACK_MS):
            return True
        troubled = self.schedule.blows or self.schedule.failovers or self.schedule.ledger_failover
        if troubled and self.world.now < self.schedule.calm_ms:
            return True
        if job.every_ms is None:
            return False
        next_slot_ms = job.every_ms - slots.early_ms(job.every_ms) - self.schedule.phase_ms
        if self.world.now < next_slot_ms < FAULTY_MS:
            return True
        row = self.ledger.slots.get((job.name, job.key, self._slot(job)))
        return row is None or (row.closed is None and row.failures < job.attempts)

    def _slot(self, job: SimJob) -> str:
        assert job.every_ms is not None
        return slots.text(slots.Every(job.every_ms).latest(self.ledger.epoch()))

    def _start(self, job: SimJob, number: int) -> None:
        process = self.processes[number]
        if not process.alive or process.frozen or len(process.tasks) >= MOST_AT_ONCE:
            return
        self.attempts += 1
        attempt = Attempt(self.attempts, process, job, self.world.now)
        plan = Plan(
            name=job.name,
            lease_key=self.keys[job.name],
            key=job.key,
            label=process.label,
            stake=job.stake,
            guarded=job.guarded,
            lifetime_ms=job.lifetime_ms,
            max_run_ms=job.max_run_ms,
            deadline_ms=DEADLINE_MS,
            on_loss=job.on_loss,
            held=job.held,
            held_wait_ms=job.held_wait_ms,
            absent=job.absent,
            absent_wait_ms=job.absent_wait_ms if job.absent == "wait" else 0,
            schedule=None if job.every_ms is None else slots.Every(job.every_ms),
            stall_after_ms=job.stall_after_ms,
            attempts=job.attempts,
            at_most_once=job.at_most_once,
            early_ms=self.schedule.kind.early_ms,
            late_ms=self.schedule.kind.late_ms,
        )

        def work(journal: Journal) -> Any:
            return body(attempt, journal)

        self.broker.delivered(attempt)
        self.world.note(f"{process.label}/a{attempt.number}", "starts", job.name)
        process.start(attempt, self.site.flows.run(plan, work, encode=_encode, decode=_decode))

    def _final(self) -> None:
        world = self.world
        slots_now = {job.name: self._slot(job) for job in self.schedule.jobs if job.every_ms is not None}
        for process in self.processes:
            process.stop_keeper()
            keeper = process.keeper
            if keeper is not None and not keeper.ended:
                world.broken(
                    "FLOW", f"{keeper.who} does not stop when told to; it waits for {keeper.request}"
                )
            for task in process.tasks:
                world.broken("L1", f"{task.who} never ended; it waits for {task.request}")
        longest = max(job.lifetime_ms for job in self.schedule.jobs) + SLACK_MS + self.schedule.kind.late_ms
        for key in self.keys.values():
            entry = self.store.live(key)
            expires = None if entry is None else self.store.expires_ms(entry)
            if entry is not None and (expires is None or expires > world.now + longest):
                world.broken("L3", f"{key} outlives everybody: {entry}")
        for process in self.processes:
            for tenure in process.tenures:
                if not tenure.ended and tenure.state is not State.ABSENT:
                    world.broken("L1", f"{process.label} still holds {tenure.key} at the end")
        self.checks.outcomes.final(self.guard, slots_now)


def _encode(result: Any) -> str | None:
    return None if result is None else str(result)


def _decode(text: str | None) -> Any:
    return text
