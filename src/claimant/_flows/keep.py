"""The keeper's flow: renewals in batches, loss and absence told apart, clean-up, and the breaker's probe.

It renews what it was handed every third of a lifetime, judged from the time of sending; it never creates a lease
by renewing, never shortens one, and stops at the end of the run. One failed renewal is neither loss nor absence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

from claimant._flows.breaker import PROBE_EVERY_MS, failed
from claimant._model.durations import LONGEST_LIFETIME_MS, in_words, margin_ms
from claimant._model.events import Event, Level
from claimant._model.holding import Cleanup, Probe, State, Tenure
from claimant._model.ops import (
    Create,
    CreateReply,
    Emit,
    Flow,
    Gate,
    Granted,
    Held,
    Inbox,
    Jitter,
    NewToken,
    NotOurs,
    Now,
    Release,
    Released,
    ReleaseReply,
    Renew,
    Renewal,
    Renewed,
    RenewReply,
    Report,
    StoreAbsent,
    StoreUnknown,
    Tell,
)
from claimant._model.value import LeaseValue, holder_of

BATCH = 500
"""Renewals that leave in one pipelined batch: about 7 µs of CPU each, against 139 and more one by one (PERF.md)."""
TOGETHER_MS = 10
"""Renewals due within this of each other leave together."""
LONGEST_SEND_MS = 2_000
"""No store request of the keeper blocks its other duties for longer."""
PROBE_VALUE = "probe"
"""What a probe asks to release: no lease has it. A request that writes, because a store that can only be read is absent."""

Duty: TypeAlias = Tenure | Cleanup | Probe


@dataclass(slots=True)
class Duties:
    """The keeper's heap: what is due when. `seq` keeps equal times in order of arrival."""

    heap: list[tuple[int, int, Duty]] = field(default_factory=list)
    seq: int = 0
    probing: Probe | None = None
    shortest_ms: int = LONGEST_LIFETIME_MS
    """The shortest lifetime that was ever handed over: while a renewal waits, another of that length may arrive."""
    held: dict[Tenure, None] = field(default_factory=dict)
    """What is being renewed: after a fault of its own, the keeper starts again from here."""

    def push(self, at_ms: int, duty: Duty) -> None:
        """Have `duty` done at `at_ms`."""
        self.seq += 1
        heappush(self.heap, (at_ms, self.seq, duty))

    def next_ms(self) -> int | None:
        """When the next duty is due; None if there is none."""
        return self.heap[0][0] if self.heap else None

    def due(self, now_ms: int) -> list[Duty]:
        """Take what is due now or almost now."""
        taken: list[Duty] = []
        while self.heap and self.heap[0][0] <= now_ms + TOGETHER_MS:
            taken.append(heappop(self.heap)[2])
        return taken


def keep(deadline_ms: int, duties: Duties) -> Flow[None]:
    """Serve one process's leases on one store until the inbox says stop. `deadline_ms` is the store's deadline.

    `duties` outlives the flow, so that a keeper that failed can be started again and forgets no lease.
    """
    begun: int = yield Now()
    # Sorted, because a heap with holes in it is no heap.
    duties.heap = sorted(entry for entry in duties.heap if isinstance(entry[2], Cleanup))
    for tenure in duties.held:
        duties.push(begun, tenure)
    if duties.probing is not None:
        # The probe may have ended with the flow that sent it, and only a probe closes the breaker of an idle process.
        duties.push(begun, duties.probing)
    while True:
        arrived: tuple[Duty, ...] | None = yield Inbox(duties.next_ms())
        if arrived is None:
            return
        now: int = yield Now()
        for duty in arrived:
            yield from _take(duties, duty, now)
        tenures: list[Tenure] = []
        rest: list[Cleanup | Probe] = []
        for duty in duties.due(now):
            if isinstance(duty, Tenure):
                tenures.append(duty)
            else:
                rest.append(duty)
        yield from _renew_due(duties, tenures, now, deadline_ms)
        for at, duty in enumerate(rest):
            due = duties.next_ms()
            later: int = yield Now()
            if at and due is not None and due <= later:
                # A renewal is due: what is left to clean waits its turn behind it, however slow the store is.
                for other in rest[at:]:
                    duties.push(later, other)
                break
            if isinstance(duty, Cleanup):
                yield from _clean(duties, duty, deadline_ms)
            else:
                yield from _probe(duties, duty, deadline_ms)


def _take(duties: Duties, duty: Duty, now: int) -> Flow[None]:
    match duty:
        case Tenure(released=True):
            return
        case Tenure():
            duties.held[duty] = None
            duties.shortest_ms = min(duties.shortest_ms, duty.lifetime_ms)
            duties.push((yield from _next_renewal(duty, now)), duty)
        case Cleanup():
            duties.push(now, duty)
        case Probe(at_ms) if duties.probing is None:
            duties.probing = duty
            duties.push(at_ms, duty)


def _next_renewal(tenure: Tenure, now: int) -> Flow[int]:
    """A third of a lifetime after the last accepted send, up to a tenth of that earlier, and never after the run's end."""
    third = tenure.lifetime_ms // 3
    early: int = yield Jitter(third // 10)
    return min(max(tenure.accepted_ms + third - early, now), tenure.end_ms)


def _renew_due(duties: Duties, tenures: list[Tenure], now: int, deadline_ms: int) -> Flow[None]:
    alive: list[Tenure] = []
    for tenure in tenures:
        if tenure.ended:
            duties.held.pop(tenure, None)
        elif now >= tenure.end_ms:
            text = f"the run passed max_run ({in_words(tenure.end_ms - tenure.claimed_ms)}): its lease is not renewed any more"
            yield from _end(duties, tenure, State.OVER, "lease.over", text)
        elif tenure.stalled(now):
            text = (
                f"no beat for {in_words(now - tenure.beat_ms)}: the lease is not renewed any more and lapses"
            )
            yield from _end(duties, tenure, State.STALLED, "lease.stalled", text)
        else:
            alive.append(tenure)
    alive.sort(key=lambda tenure: tenure.trust_until_ms)
    for start in range(0, len(alive), BATCH):
        yield from _renew_batch(duties, alive[start : start + BATCH], deadline_ms)


def _renew_batch(duties: Duties, batch: list[Tenure], deadline_ms: int) -> Flow[None]:
    sent: int = yield Now()
    # Over all that is held, not this batch alone: while this one waits, no other holder can be told anything. Nor can one that
    # arrives meanwhile, whose whole lifetime may be shorter than this wait.
    newcomer = max(deadline_ms, duties.shortest_ms // 3)
    until = sent + min(
        [LONGEST_SEND_MS, newcomer, *(_patience(tenure, sent) for tenure in duties.held if not tenure.ended)]
    )
    for tenure in batch:
        tenure.sent_ms = sent
    items = tuple(Renewal(tenure.key, tenure.value, tenure.lifetime_ms) for tenure in batch)
    replies: tuple[RenewReply, ...] = yield Renew(items, until)
    now: int = yield Now()
    reasons = [reply.reason for reply in replies if isinstance(reply, StoreAbsent | StoreUnknown)]
    if len(reasons) < len(replies):
        yield Report(ok=True)
    else:
        yield from failed(batch[0].name, batch[0].key, reasons[0], spent=now >= until)
    for tenure, reply in zip(batch, replies, strict=True):
        if tenure.released:
            duties.held.pop(tenure, None)
            continue
        match reply:
            case Renewed():
                yield from _accepted(tenure, sent)
            case NotOurs():
                yield from _gone(duties, tenure, deadline_ms)
            case StoreAbsent(reason) | StoreUnknown(reason):
                yield from _unanswered(tenure, now, reason)
        if not tenure.ended:
            due = yield from _next_renewal(tenure, now)
            duties.push(due if isinstance(reply, Renewed) else (yield from _retry(tenure, now)), tenure)


def _patience(tenure: Tenure, sent: int) -> int:
    """How long a renewal sent now may take: at most into its margin, so that absence is told before the lifetime ends."""
    third = tenure.lifetime_ms // 3
    if tenure.state is State.ABSENT:
        return third
    return min(third, max(tenure.trust_until_ms - sent, 0) + margin_ms(tenure.lifetime_ms) // 2)


def _retry(tenure: Tenure, now: int) -> Flow[int]:
    """After no answer: soon again, and exactly at the end of the trust window, so that absence is told in time."""
    ninth = max(tenure.lifetime_ms // 9, 1)
    early: int = yield Jitter(ninth // 4)
    soon = now + ninth - early
    if tenure.state is not State.ABSENT and tenure.trust_until_ms > now:
        soon = min(soon, tenure.trust_until_ms)
    return min(soon, max(tenure.end_ms, now + 1))


def _accepted(tenure: Tenure, sent: int) -> Flow[None]:
    before = tenure.state
    tenure.worst_gap_ms = max(tenure.worst_gap_ms, sent - tenure.accepted_ms)
    tenure.accept(sent)
    tenure.renewals += 1
    if before is not State.KEPT:
        tenure.state = State.KEPT
        yield from _told(tenure, "lease.confirmed", "the store answered: the claim is ours", "info")


def _gone(duties: Duties, tenure: Tenure, deadline_ms: int) -> Flow[None]:
    """The store answered that the claim is gone: one new conditional create with a new token, and its answer decides."""
    sent: int = yield Now()
    if tenure.state is State.KEPT:
        tenure.was_lost = True
    tenure.lapsed = tenure.lapsed or sent >= tenure.accepted_ms + tenure.lifetime_ms
    token: str = yield NewToken()
    value = LeaseValue(token, tenure.lifetime_ms, tenure.label).encode()
    reply = yield from _create_again(tenure, value, sent, deadline_ms)
    if isinstance(reply, Granted) and not tenure.released:
        # Written before `released` is read again: a release on another thread then sees the new value, or is seen here.
        tenure.value, tenure.token = value, token
        if not tenure.released:
            tenure.state = State.KEPT
            yield from _accepted(tenure, sent)
            text = "the claim was gone and free, and was claimed anew"
            yield from _told(tenure, "lease.reclaimed", text, "warning")
            return
    if isinstance(reply, Granted | StoreUnknown):
        duties.push(sent, Cleanup(tenure.name, tenure.key, value, sent + tenure.lifetime_ms))
    if tenure.released:
        return
    match reply:
        case Held(other) if other == tenure.value:
            # Our create that was never answered has landed since: what holds is our own, and the next renewal says so.
            return
        case Held(other):
            text = f"the claim is gone; {holder_of(other)} holds it now"
        case StoreAbsent(reason) | StoreUnknown(reason):
            text = f"the claim is gone, and a new one was not answered ({reason})"
        case _:
            text = "the claim is gone"
    tenure.was_lost = True
    yield from _end(duties, tenure, State.LOST, "lease.lost", text)


def _create_again(tenure: Tenure, value: str, sent: int, deadline_ms: int) -> Flow[CreateReply]:
    """One conditional create, behind the breaker: a store that fell silent just now costs one deadline, not one per lease."""
    if not (yield Gate()):
        return StoreAbsent("the store did not answer a moment ago")
    reply: CreateReply = yield Create(tenure.key, value, tenure.lifetime_ms, sent + deadline_ms)
    match reply:
        case StoreAbsent(reason) | StoreUnknown(reason):
            now: int = yield Now()
            yield from failed(tenure.name, tenure.key, reason, spent=now >= sent + deadline_ms)
        case _:
            yield Report(ok=True)
    return reply


def _unanswered(tenure: Tenure, now: int, reason: str) -> Flow[None]:
    if now < tenure.trust_until_ms or tenure.state is State.ABSENT:
        return
    tenure.state = State.ABSENT
    tenure.was_absent = True
    tenure.reason = reason
    yield from _told(
        tenure, "lease.absent", f"the store has not answered for the whole trust window ({reason})", "error"
    )


def _end(duties: Duties, tenure: Tenure, state: State, kind: str, text: str) -> Flow[None]:
    duties.held.pop(tenure, None)
    tenure.state = state
    tenure.reason = text
    yield from _told(tenure, kind, text, "error")


def _told(tenure: Tenure, kind: str, text: str, level: Level) -> Flow[None]:
    yield Tell(
        tenure, Event(kind, tenure.name, text, level, {"state": tenure.state.value, "key": tenure.key})
    )


def _clean(duties: Duties, duty: Cleanup, deadline_ms: int) -> Flow[None]:
    now: int = yield Now()
    if now >= duty.until_ms:
        return
    if not (yield Gate()):
        duties.push(now + PROBE_EVERY_MS, duty)
        return
    reply: ReleaseReply = yield Release(duty.key, duty.value, now + deadline_ms)
    later: int = yield Now()
    match reply:
        case Released() | NotOurs():
            yield Report(ok=True)
        case StoreAbsent(reason) | StoreUnknown(reason):
            yield from failed(duty.name, duty.key, reason, spent=later >= now + deadline_ms)
            duties.push(later + PROBE_EVERY_MS, duty)


def _probe(duties: Duties, duty: Probe, deadline_ms: int) -> Flow[None]:
    now: int = yield Now()
    if (yield Gate()):
        duties.probing = None
        return
    reply: ReleaseReply = yield Release(duty.key, PROBE_VALUE, now + deadline_ms)
    if isinstance(reply, StoreAbsent | StoreUnknown):
        early: int = yield Jitter(PROBE_EVERY_MS // 5)
        later: int = yield Now()
        duties.push(later + PROBE_EVERY_MS - early, duty)
        return
    duties.probing = None
    yield Report(ok=True)
    yield Emit(Event("store.returned", "", "the lease store answers again; jobs claim again", "warning"))
