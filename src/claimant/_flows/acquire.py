"""Claiming a name: one conditional create, recognised as our own when its reply was lost.

The token is drawn once per acquisition and reused on every re-send, and trust is counted from the first send.
What a cancelled or failed claim may have left in the store is handed to the keeper, by name.
"""

from __future__ import annotations

from typing import TypeAlias

from claimant._flows.breaker import failed
from claimant._model.durations import in_words, margin_ms
from claimant._model.events import Event
from claimant._model.holding import State, Tenure, cleanup_of
from claimant._model.ops import (
    ANSWERED,
    GATE,
    NEW_TOKEN,
    NOW,
    Create,
    CreateReply,
    Emit,
    Flow,
    Granted,
    Hand,
    Held,
    Jitter,
    Renewed,
    RenewReply,
    Repair,
    SleepUntil,
    StoreAbsent,
    StoreUnknown,
)
from claimant._model.policy import Wanted
from claimant._model.record import record
from claimant._model.value import LeaseValue, decode, encoded, holder_of

SLACK_MS = 1_000
"""How much more than its own lifetime a lease may have left before its lifetime counts as broken."""
SENDS = 4
"""How often one acquisition's create is sent at most, within one deadline."""


@record
class Got:
    """Granted."""

    tenure: Tenure


@record
class HeldBy:
    """Somebody else holds, with `value`. `remaining_ms` is None for a key that no lifetime will ever end ("immortal")."""

    holder: str
    remaining_ms: int | None
    value: str = ""


@record
class Missing:
    """No claim, for certain: the store is absent."""

    reason: str


@record
class Unsure:
    """The create may have been applied. Renewing `tenure` finds out; releasing it leaves nothing behind."""

    tenure: Tenure
    reason: str


Claimed: TypeAlias = Got | HeldBy | Missing | Unsure


def tenure_of(wanted: Wanted, token: str, sent_ms: int, state: State = State.KEPT) -> Tenure:
    """The holder's side of an acquisition first sent at `sent_ms`."""
    lifetime_ms = wanted.lifetime_ms
    tenure = Tenure(  # by position: names would cost a dict for each claim
        wanted.name,
        wanted.key,
        encoded(token, lifetime_ms, wanted.label),
        token,
        wanted.label,
        lifetime_ms,
        sent_ms,  # claimed_ms
        sent_ms + lifetime_ms - margin_ms(lifetime_ms) - wanted.early_ms,  # trust_until_ms
        sent_ms + wanted.max_run_ms,  # end_ms
        state,
        wanted.stall_after_ms,
        wanted.early_ms,
    )
    tenure.accepted_ms = sent_ms
    return tenure


def acquire(wanted: Wanted) -> Flow[Claimed]:
    """Claim `wanted` once. Contention, absence and doubt are values; nothing is raised for them."""
    if not (yield GATE):
        return Missing("the store did not answer a moment ago, and is being probed")
    token: str = yield NEW_TOKEN
    first_ms: int = yield NOW
    until_ms = first_ms + wanted.deadline_ms
    tenure = tenure_of(wanted, token, first_ms)
    create = Create(wanted.key, tenure.value, wanted.lifetime_ms, until_ms)
    doubt = ""
    try:
        for send in range(SENDS):
            reply: CreateReply = yield create
            match reply:
                case Granted():
                    yield ANSWERED
                    yield Hand(tenure)
                    return Got(tenure)
                case Held():
                    yield ANSWERED
                    value = decode(reply.value)
                    remaining = reply.remaining_ms
                    if remaining is None or (
                        value is not None and remaining > value.lifetime_ms + SLACK_MS + wanted.late_ms
                    ):
                        remaining = yield from _mended(wanted, reply, value, until_ms)
                    return HeldBy(holder_of(reply.value, value), remaining, reply.value)
                case StoreAbsent(reason) if not doubt:
                    now: int = yield NOW
                    yield from failed(wanted.name, wanted.key, reason, spent=now >= until_ms)
                    return Missing(reason)
                case StoreAbsent(reason) | StoreUnknown(reason):
                    doubt = doubt or reason
            now = yield NOW
            if now >= until_ms or send == SENDS - 1:
                break
            nap: int = yield Jitter(min(5 << send, until_ms - now))
            yield SleepUntil(now + nap)
    except GeneratorExit:
        tenure.released = True  # nobody is left to release it: the keeper must not renew it
        raise
    except BaseException:
        tenure.released = True  # it may have been handed over already, and must not be claimed anew
        yield Hand(cleanup_of(tenure))
        raise
    now = yield NOW
    yield from failed(wanted.name, wanted.key, doubt, spent=now >= until_ms)
    tenure.state = State.UNCONFIRMED
    return Unsure(tenure, doubt)


def _mended(wanted: Wanted, held: Held, value: LeaseValue | None, until_ms: int) -> Flow[int | None]:
    """The holder's remaining time, which is broken: that of one of our values is repaired first, never replaced.

    A backward clock step or a PERSIST makes a healthy claim look immortal until its next renewal; its holder may
    be alive, so the claim is given the lifetime that it was made with, and nothing else.
    """
    left = "no lifetime" if held.remaining_ms is None else f"{in_words(held.remaining_ms)} left"
    if value is None:
        yield Emit(
            Event(
                "lease.immortal",
                wanted.name,
                f"the key {wanted.key} holds {holder_of(held.value)} with {left}; it is not one of our leases and is left "
                "alone. Delete it in the store, if nothing needs it",
                "error",
                {"key": wanted.key},
            )
        )
        return held.remaining_ms
    reply: RenewReply = yield Repair(wanted.key, held.value, value.lifetime_ms, until_ms)
    if not isinstance(reply, Renewed):
        return held.remaining_ms
    yield Emit(
        Event(
            "lease.repaired",
            wanted.name,
            f"the lease of {value.label} had {left}, and was made with {in_words(value.lifetime_ms)}: given that again",
            "warning",
            {"holder": value.label, "lifetime_ms": value.lifetime_ms},
        )
    )
    return value.lifetime_ms
