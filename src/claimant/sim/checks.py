"""Invariants of the lease, checked while a schedule runs: whose claim is changed by whom, and who waits how long.

The checker sees everything (true time, the store's keys, all processes) and changes nothing.
"""

from __future__ import annotations

from traceback import format_exception_only
from typing import TYPE_CHECKING, Any

from claimant._flows.acquire import SLACK_MS
from claimant._flows.breaker import PROBE_EVERY_MS
from claimant._flows.keep import PROBE_VALUE
from claimant._model.durations import margin_ms
from claimant._model.holding import Cleanup, State, Tenure
from claimant._model.ops import (
    Create,
    Granted,
    Held,
    NotOurs,
    Release,
    Released,
    Renew,
    Renewed,
    Repair,
    SleepUntil,
    StoreAbsent,
    StoreUnknown,
)
from claimant._model.policy import Absent
from claimant._model.policy import Held as HeldPolicy
from claimant._model.records import Begin, Finish
from claimant._model.value import decode
from claimant.sim.keeping import Keeping
from claimant.sim.outcomes import Outcomes
from claimant.sim.schedule import DEADLINE_MS, LATEST_MS, Schedule
from claimant.sim.store import Entry, SimStore
from claimant.sim.world import World

if TYPE_CHECKING:
    from claimant.sim.attempt import Attempt
    from claimant.sim.broker import Broker
    from claimant.sim.ledger import SimLedger
    from claimant.sim.process import Process, Task

RECOVERY_MS = 2 * (PROBE_EVERY_MS * 6 // 5) + DEADLINE_MS
"""How soon after the store is back a breaker must be closed (RELIABILITY: 2 x 1.2 x probe + deadline)."""


class Checks:
    """The lease's invariants. `outcomes` has those of jobs."""

    def __init__(self, world: World, schedule: Schedule, store: SimStore, ledger: SimLedger) -> None:
        self.world = world
        self.schedule = schedule
        self.store = store
        self.outcomes = Outcomes(world, schedule, ledger)
        self.keeping = Keeping(world, store)
        self.tokens = 0
        self.owner: dict[str, tuple[str, Attempt | None]] = {}
        self.broken_ms: dict[str, int] = {}
        self.dead: dict[str, int] = {}
        self.landed_ms: dict[str, int] = {}
        self.first_ms: dict[str, int] = {}
        self.broker: Broker | None = None

    # -- what is asked of the store --------------------------------------------------------------------------------

    def sent(self, task: Task, request: Any) -> None:
        """A request leaves its process."""
        match request:
            case Create(key, value):
                self._creating(task, key, value)
            case Release(_, value) if value == PROBE_VALUE:
                self.world.count("probe sent")
            case Release(_, value):
                self._own(task, value, "releases")
                if task.attempt is not None:
                    task.attempt.releasing = True
            case Renew(items):
                task.process.busy_until_ms = request.until_ms - task.process.offset_ms
                for item in items:
                    self._own(task, item.value, "renews")
                self._still_to_be_renewed(task.process, {item.value for item in items})
            case Repair(_, value, lifetime):
                attempt = task.attempt
                if attempt is None or attempt.owes_repair != (value, lifetime):
                    self.world.broken(
                        "L3", f"{task.who} repairs {value!r} to {lifetime} ms, which nothing told it to"
                    )
                else:
                    attempt.owes_repair = None
            case _:
                pass

    def _creating(self, task: Task, key: str, value: str) -> None:
        process, attempt = task.process, task.attempt
        known = self.owner.get(value)
        if known is None:
            self.first_ms[value] = self.world.now
            self.owner[value] = (process.label, attempt)
        elif attempt is None or known != (process.label, attempt):
            self.world.broken(
                "O1", f"{task.who} creates {key} with the token of another acquisition ({value})"
            )
        if attempt is None:
            # A reclaim: only where the store has answered that the lease which it replaces is gone.
            if key not in process.gone.values():
                self.world.broken(
                    "R8", f"{task.who} creates {key} although no answer said that its lease is gone"
                )
            return
        self._repaid(attempt)
        if value not in attempt.values:
            attempt.values.append(value)
        else:
            self.world.count("create sent again")

    def _repaid(self, attempt: Attempt) -> None:
        if attempt.owes_repair is not None:
            self.world.broken(
                "L3", f"a{attempt.number} was refused by a lease without its lifetime and did not repair it"
            )
            attempt.owes_repair = None

    def _still_to_be_renewed(self, process: Process, values: set[str]) -> None:
        """R7: renewal ends with the run, and with its progress."""
        if process.thawed_ms == self.world.now:
            return
        now = self.world.now + process.host.offset_ms - DEADLINE_MS
        for tenure in process.tenures:
            if tenure.value not in values or tenure.ended:
                continue
            end_ms, stall_after_ms = process.limits[id(tenure)]
            if now >= end_ms:
                self.world.broken("R7", f"{tenure.name} is renewed {now - end_ms} ms after its max_run")
            silent = now - tenure.beat_ms if tenure.beat_ms else 0
            if stall_after_ms is not None and silent > stall_after_ms:
                self.world.broken("R7", f"{tenure.name} is renewed, and its last beat was {silent} ms ago")

    def _own(self, task: Task, value: str, verb: str) -> None:
        process = task.process
        label, attempt = self.owner.get(value, ("nobody", None))
        mine = label == process.label and (
            (value in process.handed or attempt is None)
            if task.attempt is None
            else attempt in (None, task.attempt)
        )
        if not mine:
            self.world.broken(
                "O1", f"{task.who} {verb} the claim {value!r} of {label}/{attempt and attempt.number}"
            )

    def landing(self, task: Task, request: Any, life: int) -> None:
        """A request that can create or extend reaches the server."""
        world = self.world
        if isinstance(request, Repair):
            entry = self.store.live(request.key)
            if entry is not None and entry.value == request.value and not self.store.is_broken(entry, 0):
                since = self.broken_ms.get(request.value, -1)
                if since < 0 or world.now > since + DEADLINE_MS + LATEST_MS:
                    world.broken("L3", f"{task.who} repairs the healthy lease {request.value!r}")
            return
        values = [request.value] if isinstance(request, Create) else [item.value for item in request.items]
        for value in values:
            self.landed_ms[value] = world.now
        if task.process.life != life and isinstance(request, Create):
            world.count("create lands after its process died")

    def landed(self, task: Task, request: Any, before: Entry | None, reply: Any, *, awaited: bool) -> None:
        """The server has applied a request; `before` is what it found under the key."""
        world = self.world
        match request, reply:
            case Create(), Granted(recognised=False):
                if not awaited and task.wait_id == 0 and task.request is None:
                    world.count("create landed when nobody waited")
                attempt = task.attempt
                if attempt is not None and request.value in attempt.clean:
                    world.count("create landed after its clean-up")
            case Create(key, value), Granted():
                world.count("granted, recognised")
                if before is None or before.value != value:
                    world.broken("R1", f"{task.who} was granted {key} which held {before}")
            case Create(key), StoreAbsent() if before is not None:
                world.broken(
                    "F1", f"{task.who} is told that the store is absent, and {before.value!r} holds {key}"
                )
            case Create(key), Held(value, remaining):
                if before is not None and self.store.is_broken(before, SLACK_MS):
                    self.broken_ms[value] = world.now
                self._stall_bound(key, value, remaining)
            case Release(key, value), Released():
                if before is None or before.value != value:
                    world.broken(
                        "O1",
                        f"{task.who} releasing {value!r} deleted {before and before.value!r} under {key}",
                    )
            case Repair(key, value), Renewed():
                world.count("repaired")
                entry = self.store.live(key)
                if entry is None or self.store.is_broken(entry, 0):
                    world.broken("L3", f"{key} has no proper lifetime after it was repaired: {entry}")
            case _:
                pass

    def renewed(self, task: Task, request: Renew, held: list[str | None], reply: tuple[Any, ...]) -> None:
        """The server has carried a batch out; `held` is what it found under each key."""
        for item, before, each in zip(request.items, held, reply, strict=True):
            if isinstance(each, Renewed) and before != item.value:
                self.world.broken(
                    "R8", f"{task.who} renews {item.value!r}, and that created or replaced {before!r}"
                )

    def _stall_bound(self, key: str, value: str, remaining: int | None) -> None:
        died = self.dead.get(value)
        known = decode(value)
        if died is None or known is None or value in self.store.stretched or remaining is None:
            return
        bound = max(died, self.landed_ms.get(value, 0)) + known.lifetime_ms + self.store.kind.late_ms
        if self.world.now > bound:
            self.world.broken(
                "L2", f"{key} is still held at {self.world.now} by {value!r}; its holder died at {died}"
            )

    # -- what is answered ------------------------------------------------------------------------------------------

    def gate(self, task: Task, *, is_open: bool) -> None:
        """A flow asks whether it may speak to the store."""
        process, attempt = task.process, task.attempt
        if is_open:
            return
        healthy = max(self.schedule.calm_ms, process.thawed_ms, process.started_ms)
        if self.world.now > healthy + RECOVERY_MS:
            self.world.broken(
                "P7",
                f"{task.who} finds its breaker open {self.world.now - healthy} ms after the store returned",
            )
        if attempt is not None:
            if attempt.body_ms is None:
                attempt.gate_shut = True
            else:
                attempt.release_gate_shut = True
            self.world.count("gate shut")

    def answered(
        self, task: Task, request: Any, reply: Any, error: BaseException | None, waited_ms: int
    ) -> None:
        """A process learns an answer."""
        attempt = task.attempt
        if attempt is None:
            if isinstance(request, Renew | Create | Release):
                self._keeper_answered(task, request, reply)
            return
        if len(task.stack) > 1:
            return
        match request:
            case Create():
                attempt.claim_wait_ms += waited_ms
                self._created(attempt, request, reply)
                self._paid(task, request, reply)
            case Repair() | SleepUntil():
                attempt.claim_wait_ms += waited_ms
            case Release():
                attempt.release_wait_ms += waited_ms
                if isinstance(reply, Released | NotOurs):
                    attempt.clean.add(request.value)
                self._paid(task, request, reply)
            case _ if error is not None:
                attempt.ledger_failed = True

    def _created(self, attempt: Attempt, request: Create, reply: Any) -> None:
        world = self.world
        attempt.reply = reply
        match reply:
            case Granted():
                world.count("granted")
                attempt.granted_ms = world.now
            case Held(value, remaining):
                _, owner = self.owner.get(value, ("", None))
                world.count("held")
                if owner is attempt:
                    world.count("refused by its own earlier claim")
                known = decode(value)
                longest = 0 if known is None else known.lifetime_ms + SLACK_MS + self.store.kind.late_ms
                if remaining is None or (known is not None and remaining > longest):
                    if known is None:
                        world.count("refused by a foreign key")
                    else:
                        attempt.owes_repair = (value, known.lifetime_ms)
                attempt.clean.add(request.value)
                if value != request.value:
                    attempt.refused.add(request.value)
            case StoreAbsent():
                world.count("create: absent")
                if request.value not in attempt.doubted:
                    attempt.clean.add(request.value)
            case StoreUnknown():
                attempt.doubted.add(request.value)
                world.count("create: unknown")
            case _:
                pass

    def _paid(self, task: Task, request: Any, reply: Any) -> None:
        """P7: of one outage a process pays one deadline, times the flows that were under way at once."""
        process, world = task.process, self.world
        if isinstance(reply, StoreUnknown) and world.now >= request.until_ms - process.host.offset_ms:
            process.paid += 1
            if process.paid > 2 * MOST_AT_ONCE:
                world.broken(
                    "P7", f"{task.who} is the {process.paid}th request in a row to pay a whole deadline"
                )
        elif not isinstance(reply, StoreUnknown | StoreAbsent):
            process.paid = 0

    def _keeper_answered(self, task: Task, request: Any, reply: Any) -> None:
        process, world = task.process, self.world
        match request:
            case Renew(items):
                for item, each in zip(request.items, reply, strict=True):
                    if isinstance(each, NotOurs):
                        process.gone[item.value] = item.key
                        world.count("renewal: not ours")
                    elif isinstance(each, Renewed):
                        process.gone.pop(item.value, None)
                        world.count("renewed")
                    else:
                        world.count("renewal: unanswered")
                if any(isinstance(each, Renewed | NotOurs) for each in reply):
                    process.paid = 0
                if len(items) > 1:
                    world.count("renewals in one batch")
            case Create() if isinstance(reply, Granted):
                process.refused_by = ""
                world.count("reclaim granted")
            case Create() if not isinstance(reply, Held):
                process.refused_by = ""
            case Create() if isinstance(reply, Held):
                process.refused_by = reply.value
                # A create that was never answered has landed since: what the store calls held is this process's own.
                if process.gone.pop(reply.value, None) is not None:
                    world.count("gone, and there again")
                    process.gone_before.add(reply.value)
            case Release() if isinstance(reply, Released):
                world.count("clean-up: released")
            case Release() if isinstance(reply, NotOurs):
                world.count("clean-up: nothing there")
            case _:
                pass

    # -- the keeper ------------------------------------------------------------------------------------------------

    def handed(self, task: Task, item: Tenure | Cleanup) -> None:
        """Something comes under the keeper's care."""
        process, attempt = task.process, task.attempt
        self._own_handed(task, item.value)
        process.handed.add(item.value)
        if isinstance(item, Cleanup):
            if attempt is not None:
                attempt.clean.add(item.value)
            return
        if attempt is not None:
            attempt.tenure = item
            self._anchored(task, item)
        self.keeping.takes(process, item)

    def _anchored(self, task: Task, tenure: Tenure) -> None:
        """O2: an earlier send of the create may be the one that was carried out, so trust is counted from the first."""
        first = self.first_ms.get(tenure.value, self.world.now) + task.process.offset_ms
        most = first + tenure.lifetime_ms - margin_ms(tenure.lifetime_ms) - self.store.kind.early_ms
        if tenure.trust_until_ms > most:
            self.world.broken(
                "O2",
                f"{task.who} trusts {tenure.trust_until_ms - most} ms more than a lifetime from its first send",
            )

    def _own_handed(self, task: Task, value: str) -> None:
        label, attempt = self.owner.get(value, (task.process.label, task.attempt))
        if label != task.process.label or attempt not in (None, task.attempt):
            self.world.broken("O1", f"{task.who} hands over the claim {value!r} of {label}")

    def died(self, process: Process) -> None:
        """A process dies with whatever it holds."""
        for key, entry in self.store.entries.items():
            if self.owner.get(entry.value, ("", None))[0] == process.label:
                self.dead[entry.value] = self.world.now
                self.world.count("died holding")
                del key

    # -- jobs ------------------------------------------------------------------------------------------------------

    def recorded(self, task: Task, request: Any) -> None:
        """A request goes to the ledger."""
        attempt = task.attempt
        if attempt is None:
            self.world.broken("FLOW", f"the keeper asks the ledger: {request!r}")
            return
        self._repaid(attempt)
        if isinstance(request, Begin):
            attempt.slot = request.run.slot
        elif isinstance(request, Finish) and attempt.tenure is not None:
            attempt.shaken = attempt.tenure.was_lost or attempt.tenure.was_absent

    def body_starts(self, task: Task) -> None:
        """The user's code is about to run."""
        attempt = task.attempt
        assert attempt is not None
        attempt.body_ms = self.world.now
        self.outcomes.body_starts(attempt)

    def ended(self, task: Task, attempt: Attempt, result: Any, error: BaseException | None) -> None:
        """A main flow ended."""
        self._repaid(attempt)
        self._left_behind(task, attempt)
        self._waited(task, attempt)
        self.outcomes.ended(task, attempt, result, error, self.owner)
        if self.broker is not None:
            self.broker.ended(attempt, result, self.outcomes)

    def _left_behind(self, task: Task, attempt: Attempt) -> None:
        tenure = attempt.tenure
        values = set(attempt.values)
        if tenure is not None:
            if tenure.state is State.LOST:
                values.discard(tenure.value)
            elif tenure.value not in attempt.values and tenure.value not in attempt.clean:
                values.add(tenure.value)
            if tenure.value not in attempt.values:
                # Reclaimed: the first value was answered gone.
                values -= set(attempt.values)
        left = values - attempt.clean
        if left:
            self.world.broken("C02", f"{task.who} ended and left {sorted(left)} to nobody")

    def _waited(self, task: Task, attempt: Attempt) -> None:
        job = attempt.job
        wait = job.held_wait_ms if job.held is HeldPolicy.WAIT else 0
        absent_wait = job.absent_wait_ms if job.absent is Absent.WAIT else 0
        most = DEADLINE_MS + max(wait, absent_wait)
        if job.held is not HeldPolicy.STANDBY and attempt.claim_wait_ms > most:
            self.world.broken(
                "L4", f"{task.who} waited {attempt.claim_wait_ms} ms for its claim; at most {most}"
            )
        if attempt.gate_shut and not attempt.values and not absent_wait and attempt.claim_wait_ms:
            self.world.broken(
                "L4", f"{task.who} waited {attempt.claim_wait_ms} ms although its breaker was open"
            )
        if attempt.release_wait_ms > (0 if attempt.release_gate_shut else DEADLINE_MS):
            self.world.broken("L4", f"{task.who} waited {attempt.release_wait_ms} ms to release")

    def unexpected(self, task: Task, error: BaseException | None) -> None:
        """A flow ended that should not have, or with an error of its own."""
        text = "it returned" if error is None else "".join(format_exception_only(error)).strip()
        self.world.broken("FLOW", f"{task.who}: {text}")


MOST_AT_ONCE = 4
"""Main flows that a schedule runs at once in one process."""
