"""Slots: the occasions of a periodic job, as UTC instants on the ledger's clock.

Two hosts whose clocks differ compute the same slot, because neither uses its own clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

from claimant._model.durations import in_words
from claimant._model.errors import Refused
from claimant._model.record import record

LONGEST_EARLY_MS = 30_000
LONGEST_SLOT = 200
"""Characters of a slot that a trigger names."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Schedule(Protocol):
    """When a job's slots are. Instants are epoch ms."""

    def latest(self, now_epoch_ms: int) -> int:
        """The latest slot not after `now_epoch_ms` and a little: see `early_ms`."""
        ...

    def following(self, slot_epoch_ms: int) -> int:
        """The slot after `slot_epoch_ms`."""
        ...

    def describe(self) -> str:
        """In words, for people."""
        ...


def early_ms(gap_ms: int) -> int:
    """How long before its instant a slot may start: a tenth of the gap to the one before, at most 30 s."""
    return min(gap_ms // 10, LONGEST_EARLY_MS)


@record
class Every:
    """Slots at the multiples of a period since 1970 UTC."""

    period_ms: int

    def latest(self, now_epoch_ms: int) -> int:
        """See `Schedule.latest`."""
        return (now_epoch_ms + early_ms(self.period_ms)) // self.period_ms * self.period_ms

    def following(self, slot_epoch_ms: int) -> int:
        """See `Schedule.following`."""
        return slot_epoch_ms + self.period_ms

    def describe(self) -> str:
        """See `Schedule.describe`."""
        return f"every {in_words(self.period_ms)}"


def text(slot_epoch_ms: int) -> str:
    """The slot's identity: its UTC instant, e.g. "2026-11-30T21:00:00Z", with milliseconds only if it has any."""
    return _instant(_EPOCH + timedelta(milliseconds=slot_epoch_ms))


def _instant(moment: datetime) -> str:
    precision = "milliseconds" if moment.microsecond else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def named(slot: object, name: str) -> str:
    """A slot that a trigger names, as its identity: an instant with a zone becomes the UTC instant, other text stays.

    Raises `Refused` (CLM039) for what is empty, too long or not printable, and for an instant that is none in UTC.
    """
    if not isinstance(slot, str) or not slot.strip() or len(slot) > LONGEST_SLOT or not slot.isprintable():
        raise _refused(
            slot,
            name,
            "must be text that names one occasion, the same for every attempt at it: an instant such as "
            f'"2026-11-30T21:00:00Z", or what the trigger calls it; printable, and at most {LONGEST_SLOT} characters',
        )
    slot = slot.strip()
    try:
        moment = datetime.fromisoformat(slot)
    except ValueError:
        return slot
    try:
        return slot if moment.tzinfo is None else _instant(moment.astimezone(UTC))
    except OverflowError:
        raise _refused(
            slot, name, "is an instant outside of the years 1 to 9999 in UTC; name one in them"
        ) from None


def _refused(slot: object, name: str, why: str) -> Refused:
    return Refused("CLM039", f"{name}: slot={slot!r} {why}", name=name)
