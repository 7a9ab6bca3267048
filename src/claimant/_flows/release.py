"""Giving a claim back: only our own, as often as needed, and never at the caller's expense.

A release that found nothing after an unanswered one is a success. What could not be released at once is the
keeper's, until the lease has lapsed by itself.
"""

from __future__ import annotations

from claimant._flows.breaker import failed
from claimant._model.events import Event
from claimant._model.holding import State, Tenure, cleanup_of
from claimant._model.ops import (
    ANSWERED,
    GATE,
    NOW,
    Emit,
    Flow,
    Hand,
    NotOurs,
    Release,
    Released,
    ReleaseReply,
    StoreAbsent,
    StoreUnknown,
)


def release(tenure: Tenure, deadline_ms: int) -> Flow[None]:
    """Release `tenure`; waits at most one deadline, and not at all while the store is absent."""
    if tenure.released:
        return
    tenure.released = True
    before = tenure.state
    if before is State.LOST:
        return
    value = tenure.value  # the keeper replaces it where it claims anew, and then cleans up the new one itself
    if not (yield GATE):
        yield Hand(cleanup_of(tenure, value))
        return
    now: int = yield NOW
    try:
        reply: ReleaseReply = yield Release(tenure.key, value, now + deadline_ms)
    except GeneratorExit:
        raise
    except BaseException:
        yield Hand(cleanup_of(tenure, value))
        raise
    match reply:
        case Released():
            yield ANSWERED
        case NotOurs():
            yield ANSWERED
            if before is State.KEPT:
                yield Emit(
                    Event(
                        "lease.lapsed",
                        tenure.name,
                        "the claim was gone before its holder released it; another worker may have run meanwhile",
                        "warning",
                    )
                )
        case StoreAbsent(reason) | StoreUnknown(reason):
            yield Hand(cleanup_of(tenure, value))
            later: int = yield NOW
            yield from failed(tenure.name, tenure.key, reason, spent=later >= now + deadline_ms)


def leave_to_keeper(tenure: Tenure) -> Flow[None]:
    """Release `tenure` without waiting for the store at all: the keeper does it, within moments if the store answers."""
    if tenure.released:
        return
    tenure.released = True
    if tenure.state is not State.LOST:
        yield Hand(cleanup_of(tenure))
