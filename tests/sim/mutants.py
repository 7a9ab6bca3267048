"""Planted bugs: each is one rule of a shipped flow (or of a store) turned off. The search must find every one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from claimant._flows.breaker import Breaker, after
from claimant._flows.once import once
from claimant._flows.run import run
from claimant._model.durations import margin_ms
from claimant._model.guarding import BeginOwned, Close, Commit, Effect, Execute, Open, Statement
from claimant._model.holding import Cleanup, Tenure
from claimant._model.ops import (
    Create,
    Gate,
    Hand,
    Held,
    HostEpoch,
    NewToken,
    Now,
    Release,
    Released,
    Renewed,
    Repair,
    StoreAbsent,
    StoreUnknown,
)
from claimant._model.outcome import Answer, AnswerKind
from claimant._model.record import replaced
from claimant._model.records import Began, Begin, Finish, LedgerNow, SlotClosed, SlotState
from claimant.sim import Flows
from claimant.sim.store import SimStore
from tests.sim.broken_keepers import (
    absent_is_lost,
    deadline_moves_before_the_renewal,
    hangs_are_renewed,
    kept,
    loss_is_not_told,
    loss_is_overlooked,
    probe_is_lost,
    renewal_creates,
    renewal_has_no_end,
    renewal_is_trusted_from_its_reply,
)
from tests.sim.broken_stores import (
    DeniesItself,
    ForgetsTheLifetime,
    OutOfMemory,
    ReadsThenWrites,
    ReleasesWithoutLooking,
    RenewalCreates,
)
from tests.sim.rewiring import rewired

# -- the claim ---------------------------------------------------------------------------------------------------


def token_per_worker(plan, body, **how):
    gate = [False]

    def edit(request):
        reply = yield request
        if isinstance(request, Gate):
            gate[0] = True
        elif isinstance(request, NewToken) and gate[0]:
            gate[0] = False
            return plan.label.encode().hex().ljust(32, "0")
        return reply

    return rewired(run(plan, body, **how), edit)


def trust_from_the_reply(plan, body, **how):
    def edit(request):
        if isinstance(request, Hand) and isinstance(request.item, Tenure):
            now = yield Now()
            request.item.trust_until_ms = now + request.item.lifetime_ms - margin_ms(request.item.lifetime_ms)
        return (yield request)

    return rewired(run(plan, body, **how), edit)


def trust_from_the_resend(plan, body, **how):
    """Trust begins where the create was sent for the last time, though an earlier send may be the one that was carried out."""
    last = [0]

    def edit(request):
        if isinstance(request, Create):
            last[0] = yield Now()
        elif isinstance(request, Hand) and isinstance(request.item, Tenure):
            tenure = request.item
            tenure.trust_until_ms = (
                last[0] + tenure.lifetime_ms - margin_ms(tenure.lifetime_ms) - tenure.early_ms
            )
        return (yield request)

    return rewired(run(plan, body, **how), edit)


def a_second_short_is_forgotten(plan, body, **how):
    """A store that counts whole seconds may end a lifetime a second early, and the trust window does not know."""
    return run(replaced(plan, early_ms=0), body, **how)


def unknown_is_held(plan, body, **how):
    def edit(request):
        reply = yield request
        if isinstance(request, Create) and isinstance(reply, StoreUnknown):
            return Held("c1|ffff|600|somebody", 600)
        return reply

    return rewired(run(plan, body, **how), edit)


def forgets_its_own_doubt(plan, body, **how):
    """What the store answers loses its value on the way: an own claim cannot be recognised any more."""

    def edit(request):
        reply = yield request
        if isinstance(request, Create) and isinstance(reply, Held) and (reply.remaining_ms or 9_999) < 2_000:
            return Held(f"{reply.value} ", reply.remaining_ms)
        return reply

    return rewired(run(plan, body, **how), edit)


def replaces_instead_of_repairing(plan, body, **how):
    def edit(request):
        if isinstance(request, Repair):
            reply = yield Release(request.key, request.value, request.until_ms)
            return Renewed() if isinstance(reply, Released) else reply
        return (yield request)

    return rewired(run(plan, body, **how), edit)


def never_repairs(plan, body, **how):
    def edit(request):
        if isinstance(request, Repair):
            yield Now()
            return StoreAbsent("not asked")
        return (yield request)

    return rewired(run(plan, body, **how), edit)


def cancelled_claim_is_forgotten(plan, body, **how):
    def edit(request):
        if isinstance(request, Hand) and isinstance(request.item, Cleanup):
            return (yield Now())
        return (yield request)

    return rewired(run(plan, body, **how), edit)


def never_releases(plan, body, **how):
    def edit(request):
        if isinstance(request, Release):
            yield Now()
            return Released()
        return (yield request)

    return rewired(run(plan, body, **how), edit)


def insists_on_releasing(plan, body, **how):
    """An unanswered release is sent again at once, at the caller's expense."""

    def edit(request):
        reply = yield request
        if isinstance(request, Release) and isinstance(reply, StoreUnknown):
            again = yield Now()
            reply = yield replaced(request, until_ms=again + 250)
        return reply

    return rewired(run(plan, body, **how), edit)


def ignores_the_gate(plan, body, **how):
    def edit(request):
        reply = yield request
        return True if isinstance(request, Gate) else reply

    return rewired(run(plan, body, **how), edit)


# -- the slot ----------------------------------------------------------------------------------------------------


def done_is_read_before_the_claim(plan, body, **how):
    """The slot's state is asked for before the claim; what the ledger says after it is not looked at."""
    slot: list[Any] = []

    def edit(request):
        if isinstance(request, Begin):
            reply = yield request
            return Began() if isinstance(reply, SlotClosed) else reply
        if isinstance(request, SlotState):
            slot.append((yield request))
            return slot[-1]
        return (yield request)

    return rewired(run(plan, body, **how), edit)


def cancellation_is_failure(plan, body, **how):
    def edit(request):
        if isinstance(request, Finish) and request.kind == "stopped":
            return (yield replaced(request, kind="failed"))
        return (yield request)

    return rewired(run(plan, body, **how), edit)


def closes_the_slot_anyway(plan, body, **how):
    """A run whose guard did not answer counts as done."""

    def edit(request):
        if isinstance(request, Finish) and request.start is not None and request.start.slot is not None:
            return (yield replaced(request, close_slot=True))
        return (yield request)

    return rewired(run(plan, body, **how), edit)


def slot_is_done_before_the_effect(plan, body, **how):
    def edit(request):
        if isinstance(request, Begin):
            return (yield replaced(request, close_at_start=True))
        return (yield request)

    return rewired(run(plan, body, **how), edit)


def slot_from_the_hosts_clock(plan, body, **how):
    def edit(request):
        if isinstance(request, LedgerNow):
            return (yield HostEpoch())
        return (yield request)

    return rewired(run(plan, body, **how), edit)


# -- the breaker, the guard, the store ---------------------------------------------------------------------------


def never_closes(state: Breaker, report: Any) -> Breaker:
    return state if state.open else after(state, report)


def never_opens(state: Breaker, report: Any) -> Breaker:
    del report
    return state


def no_guard(plan):
    yield Open()
    yield BeginOwned()
    if plan.traits.one_writer:
        yield Execute(Statement.IMMEDIATE)
    result = yield Effect()
    yield Commit()
    yield Close()
    return Answer(AnswerKind.APPLIED, plan.operation.label, result)


def guard_after_effect(plan):
    """The effect commits first; the guard row follows in a transaction of its own."""
    yield from no_guard(plan)
    skipped = [False]

    def edit(request):
        if isinstance(request, Effect) and not skipped[0]:
            skipped[0] = True
            yield Now()
            return None
        return (yield request)

    return (yield from rewired(once(plan), edit))


def duplicates_are_not_counted(plan):
    def edit(request):
        if isinstance(request, Execute) and request.statement is Statement.REJECT:
            return (yield Execute("SELECT 1"))
        return (yield request)

    return rewired(once(plan), edit)


def commit_in_doubt_is_success(plan):
    """An unacknowledged COMMIT is taken for a success."""

    def edit(request):
        try:
            return (yield request)
        except Exception:
            if isinstance(request, Commit):
                return None
            raise

    return rewired(once(plan), edit)


def counted_outside_the_transaction(plan):
    """The rejection is counted afterwards, in a transaction of its own, as far as that works."""
    found: list[Execute] = []

    def edit(request):
        if isinstance(request, Execute) and request.statement is Statement.REJECT:
            found.append(request)
            return (yield Execute("SELECT 1"))
        return (yield request)

    answer = yield from rewired(once(plan), edit)
    if found:
        try:
            yield Open()
            yield BeginOwned()
            if plan.traits.one_writer:
                yield Execute(Statement.IMMEDIATE)
            yield found[0]
            yield Commit()
            yield Close()
        except Exception:
            yield Close(broken=True)
    return answer


SHIPPED = Flows()


@dataclass(frozen=True)
class Mutant:
    """A broken set of flows or a broken store, and the invariants that may be the first to notice."""

    noticed_by: set[str]
    flows: Flows = SHIPPED
    store: type[SimStore] = SimStore


MUTANTS: dict[str, Mutant] = {
    "token per worker": Mutant({"O1", "O2"}, Flows(run=token_per_worker)),
    "trust from the reply": Mutant({"O2"}, Flows(run=trust_from_the_reply)),
    "renewal trusted from its reply": Mutant({"O2"}, Flows(keep=kept(renewal_is_trusted_from_its_reply))),
    "trust from the re-send": Mutant({"O2"}, Flows(run=trust_from_the_resend)),
    "a second short is forgotten": Mutant({"O2"}, Flows(run=a_second_short_is_forgotten)),
    "slot is done before the effect": Mutant({"L1", "R10", "P5"}, Flows(run=slot_is_done_before_the_effect)),
    "slot from the host's clock": Mutant({"R10", "L1"}, Flows(run=slot_from_the_hosts_clock)),
    "deadline moves before the renewal": Mutant(
        {"O2", "P6"}, Flows(keep=kept(deadline_moves_before_the_renewal))
    ),
    "counted outside the transaction": Mutant({"A1"}, Flows(guard=counted_outside_the_transaction)),
    "out of memory is absent": Mutant({"F1"}, store=OutOfMemory),
    "unknown is held": Mutant({"P5", "C02"}, Flows(run=unknown_is_held)),
    "forgets its own doubt": Mutant({"P5", "L3", "C02"}, Flows(run=forgets_its_own_doubt)),
    "replaces instead of repairing": Mutant({"O1", "L3"}, Flows(run=replaces_instead_of_repairing)),
    "never repairs": Mutant({"L3"}, Flows(run=never_repairs)),
    "cancelled claim is forgotten": Mutant({"C02"}, Flows(run=cancelled_claim_is_forgotten)),
    "never releases": Mutant({"C02"}, Flows(run=never_releases)),
    "insists on releasing": Mutant({"L4"}, Flows(run=insists_on_releasing)),
    "ignores the gate": Mutant({"L4", "P7"}, Flows(run=ignores_the_gate)),
    "done is read before the claim": Mutant({"R10", "P5", "R17"}, Flows(run=done_is_read_before_the_claim)),
    "cancellation is failure": Mutant({"L1", "P5"}, Flows(run=cancellation_is_failure)),
    "closes the slot anyway": Mutant({"L1", "P5"}, Flows(run=closes_the_slot_anyway)),
    "renewal creates": Mutant({"O1", "R8"}, Flows(keep=kept(renewal_creates))),
    "absent is lost": Mutant({"P6", "R8"}, Flows(keep=kept(absent_is_lost))),
    "loss is not told": Mutant({"R9"}, Flows(keep=kept(loss_is_not_told))),
    "loss is overlooked": Mutant({"R9"}, Flows(keep=kept(loss_is_overlooked))),
    "hangs are renewed": Mutant({"R7"}, Flows(keep=kept(hangs_are_renewed))),
    "renewal has no end": Mutant({"R7"}, Flows(keep=kept(renewal_has_no_end))),
    "probe is lost": Mutant({"P7"}, Flows(keep=kept(probe_is_lost))),
    "breaker never closes": Mutant({"P7"}, Flows(after=never_closes)),
    "breaker never opens": Mutant({"P7"}, Flows(after=never_opens)),
    "no guard": Mutant({"S1", "S3"}, Flows(guard=no_guard)),
    "guard after effect": Mutant({"S1", "S3"}, Flows(guard=guard_after_effect)),
    "duplicates are not counted": Mutant({"A1"}, Flows(guard=duplicates_are_not_counted)),
    "commit in doubt is success": Mutant({"S3", "A1", "L1", "B1"}, Flows(guard=commit_in_doubt_is_success)),
    "store releases without looking": Mutant({"O1", "O2"}, store=ReleasesWithoutLooking),
    "store forgets the lifetime": Mutant({"L3", "L2"}, store=ForgetsTheLifetime),
    "store reads, then writes": Mutant({"O2"}, store=ReadsThenWrites),
    "store denies itself": Mutant({"P5", "R11"}, store=DeniesItself),
    "store's renewal creates": Mutant({"R8"}, store=RenewalCreates),
}
