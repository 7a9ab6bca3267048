"""Planted bugs of the keeper: what it forgets, believes too early, or tells too late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from claimant._flows.keep import Duties, keep
from claimant._model.durations import margin_ms
from claimant._model.holding import Probe, State, Tenure
from claimant._model.ops import (
    Create,
    Granted,
    Hand,
    Inbox,
    NotOurs,
    Now,
    Renew,
    Renewed,
    StoreAbsent,
    StoreUnknown,
    Tell,
)
from tests.sim.rewiring import rewired


def kept(edit_of: Callable[[], Callable[[Any], Any]]) -> Callable[[int, Duties], Any]:
    return lambda deadline_ms, duties: rewired(keep(deadline_ms, duties), edit_of())


def renewal_creates():
    def edit(request):
        reply = yield request
        if not isinstance(request, Renew):
            return reply
        mended = []
        for item, each in zip(request.items, reply, strict=True):
            found = each
            if isinstance(each, NotOurs):
                made = yield Create(item.key, item.value, item.lifetime_ms, request.until_ms)
                found = Renewed() if isinstance(made, Granted) else each
            mended.append(found)
        return tuple(mended)

    return edit


def renewal_is_trusted_from_its_reply():
    """After each batch, what was renewed is trusted for a lifetime from the answer instead of from the sending."""
    held: list[Tenure] = []
    renewed: list[Tenure] = []
    answered = [0]

    def edit(request):
        if renewed and isinstance(request, Inbox):
            for tenure in renewed:
                late = answered[0] + tenure.lifetime_ms - margin_ms(tenure.lifetime_ms)
                tenure.trust_until_ms = max(tenure.trust_until_ms, late)
            renewed.clear()
        reply = yield request
        if isinstance(request, Inbox):
            held.extend(duty for duty in reply or () if isinstance(duty, Tenure))
        elif isinstance(request, Renew):
            answered[0] = yield Now()
            values = {
                item.value
                for item, each in zip(request.items, reply, strict=True)
                if isinstance(each, Renewed)
            }
            renewed.extend(tenure for tenure in held if tenure.value in values)
        return reply

    return edit


def deadline_moves_before_the_renewal():
    """The trust window is moved when the renewal is sent, and not when it has been answered."""
    held: list[Tenure] = []

    def edit(request):
        if isinstance(request, Renew):
            sent = yield Now()
            values = {item.value for item in request.items}
            for tenure in held:
                if tenure.value in values:
                    tenure.trust_until_ms = sent + tenure.lifetime_ms - margin_ms(tenure.lifetime_ms)
        reply = yield request
        if isinstance(request, Inbox):
            held.extend(duty for duty in reply or () if isinstance(duty, Tenure))
        return reply

    return edit


def absent_is_lost():
    def edit(request):
        reply = yield request
        if isinstance(request, Renew):
            return tuple(
                NotOurs() if isinstance(each, StoreUnknown | StoreAbsent) else each for each in reply
            )
        return reply

    return edit


def loss_is_not_told():
    def edit(request):
        if isinstance(request, Tell) and request.tenure.state is State.LOST:
            return (yield Now())
        return (yield request)

    return edit


def loss_is_overlooked():
    def edit(request):
        reply = yield request
        if isinstance(request, Renew):
            return tuple(StoreUnknown("?") if isinstance(each, NotOurs) else each for each in reply)
        return reply

    return edit


def hangs_are_renewed():
    def edit(request):
        reply = yield request
        if isinstance(request, Inbox):
            for duty in reply or ():
                if isinstance(duty, Tenure):
                    duty.stall_after_ms = (
                        None if duty.stall_after_ms is None else duty.stall_after_ms + 60_000
                    )
        return reply

    return edit


def renewal_has_no_end():
    def edit(request):
        reply = yield request
        if isinstance(request, Inbox):
            for duty in reply or ():
                if isinstance(duty, Tenure):
                    duty.end_ms += 3_600_000
        return reply

    return edit


def probe_is_lost():
    def edit(request):
        if isinstance(request, Hand) and isinstance(request.item, Probe):
            return (yield Now())
        return (yield request)

    return edit
