"""A holder's side of one acquisition: what it may believe, until when, and why it stopped believing.

Once handed over, a `Tenure` is written by the keeper's flow alone, but for `released` and `beat_ms`, which
are the holder's. Each field has one writer and is replaced whole, so no lock is needed between the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from claimant._model.durations import margin_ms
from claimant._model.outcome import Claim
from claimant._model.record import record


class State(StrEnum):
    """Where a tenure stands."""

    KEPT = "kept"
    UNCONFIRMED = "unknown"
    """The create was sent and never answered; a renewal's answer decides."""
    ABSENT = "absent"
    """The trust window ended without an answer from the store."""
    LOST = "lost"
    """The store answered that the claim is gone, and a new create was refused or not answered."""
    STALLED = "stalled"
    OVER = "over"


ENDED = frozenset({State.LOST, State.STALLED, State.OVER})
"""States that renewal never leaves again. An absent tenure may still be answered."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tenure:
    """One acquisition being held. Times are ms on the holder's clock.

    `claimed_ms`: the first send of the create. `trust_until_ms`: how long the holder may believe. `end_ms`: where
    renewal stops (`max_run`). `worst_gap_ms`: the longest time between two accepted sends.
    """

    name: str
    key: str
    value: str
    token: str
    label: str
    lifetime_ms: int
    claimed_ms: int
    trust_until_ms: int
    end_ms: int
    state: State = State.KEPT
    stall_after_ms: int | None = None
    early_ms: int = 0
    """By how much the store may end a lifetime earlier than asked."""
    beat_ms: int = 0
    """The last beat; 0 until the body has begun, which may wait for the ledger."""
    accepted_ms: int = 0
    sent_ms: int = 0
    """The last renewal that was sent, answered or not: it may have been carried out."""
    renewals: int = 0
    worst_gap_ms: int = 0
    was_lost: bool = False
    was_absent: bool = False
    lapsed: bool = False
    """Whether a whole lifetime had passed since the last accepted send when the loss was learned."""
    reason: str = ""
    released: bool = False

    def accept(self, sent_ms: int) -> None:
        """The store granted a full lifetime to what was sent at `sent_ms`: believe that, less a margin, from the sending on."""
        self.accepted_ms = sent_ms
        self.trust_until_ms = sent_ms + self.lifetime_ms - margin_ms(self.lifetime_ms) - self.early_ms

    def trusted(self, now_ms: int) -> bool:
        """Whether the holder may believe that it holds, now. Believing is not acting: no guard may rest on it."""
        return (
            self.state is State.KEPT and not self.released and now_ms < min(self.trust_until_ms, self.end_ms)
        )

    @property
    def ended(self) -> bool:
        """Whether renewal has nothing to do here any more."""
        return self.released or self.state in ENDED

    def hole(self, now_ms: int) -> str:
        """Through which hole a second attempt can have come, if there is one now."""
        if self.lapsed or now_ms >= self.accepted_ms + self.lifetime_ms:
            return "deadline passed"
        if self.was_lost or self.state is State.LOST:
            return "claim lost"
        if self.state in (State.UNCONFIRMED, State.ABSENT) or self.was_absent:
            return "store absent"
        return "redelivered"

    def stalled(self, now_ms: int) -> bool:
        """Whether the body has shown no progress for `stall_after_ms`."""
        return (
            self.stall_after_ms is not None
            and self.beat_ms > 0
            and now_ms - self.beat_ms > self.stall_after_ms
        )

    def claim(self, now_ms: int) -> Claim:
        """What to write down about the claim so far. A loss stays written down after the name was claimed anew."""
        if self.state in (State.STALLED, State.OVER):
            return Claim(self.state.value)
        if self.was_lost or self.state is State.LOST:
            return Claim.LOST
        if now_ms >= self.end_ms:
            return Claim.OVER
        if self.state is State.UNCONFIRMED:
            return Claim.UNKNOWN
        if self.was_absent or now_ms >= self.trust_until_ms:
            return Claim.ABSENT
        return Claim.KEPT


@record
class Cleanup:
    """A token that may still be in the store and must not stay: released again and again until `until_ms`."""

    name: str
    key: str
    value: str
    until_ms: int


@record
class Probe:
    """The breaker has opened: ask the store now and then whether it is back.

    `key` is that of the lease whose request failed: what the store refuses for it, it must not allow for the probe.
    """

    at_ms: int
    key: str


def cleanup_of(tenure: Tenure, value: str = "") -> Cleanup:
    """The clean-up of a tenure's token, or of the `value` that it had, until the lease would have lapsed by itself."""
    return Cleanup(
        tenure.name,
        tenure.key,
        value or tenure.value,
        max(tenure.accepted_ms, tenure.sent_ms) + tenure.lifetime_ms,
    )
