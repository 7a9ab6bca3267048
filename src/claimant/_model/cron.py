"""Slots of a cron expression in a time zone.

The expression is cronsim's business, with the rules of Debian's cron for both changes of the clocks: a time of day
that is skipped runs right after the change, one that comes twice runs once. Previous slots are derived forward, from
a start before them, so that the slot of an occasion is the same whoever computes it, and when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo

from claimant._model.errors import Refused
from claimant._model.slots import early_ms

FIELDS = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_BACK = tuple(
    timedelta(minutes=minutes) for minutes in (5, 120, 2 * 1_440, 40 * 1_440, 400 * 1_440, 3_000 * 1_440)
)
"""How far before now to start; the last is more than the eight years between two leap days about a century's end."""


@dataclass(frozen=True, slots=True)
class Cron:
    """Slots at the occasions of `expression` in `zone`, whose name is `zone_name`."""

    expression: str
    zone_name: str
    zone: tzinfo = field(compare=False, repr=False)

    def latest(self, now_epoch_ms: int) -> int:
        """See `Schedule.latest`. "A little" is a tenth of the gap between the slots around now, at most 30 s."""
        for back in _BACK:
            before: int | None = None
            for slot in self._from(_moment(now_epoch_ms) - back):
                if slot > now_epoch_ms:
                    if before is None:
                        break
                    return slot if slot - now_epoch_ms <= early_ms(slot - before) else before
                before = slot
        raise ValueError(
            f"{self.expression!r} has no occasion in the eight years before {_moment(now_epoch_ms)}"
        )

    def following(self, slot_epoch_ms: int) -> int:
        """See `Schedule.following`."""
        return next(slot for slot in self._from(_moment(slot_epoch_ms)) if slot > slot_epoch_ms)

    def describe(self) -> str:
        """See `Schedule.describe`."""
        return f"cron {self.expression} {self.zone_name}"

    def _from(self, moment: datetime) -> Iterator[int]:
        """The slots after `moment`; the first may lie before it, where the zone's clocks were just put back."""
        from cronsim import CronSim

        minutes, hours, *_ = self.expression.split()
        if self.zone is not UTC and (minutes.startswith("*") or hours.startswith("*")):
            yield from self._shown(moment)
            return
        for found in CronSim(self.expression, moment.astimezone(self.zone)):
            yield (found.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)

    def _shown(self, moment: datetime) -> Iterator[int]:
        """The instants after `moment` at which a clock in the zone shows such a time: what a star means to Debian's cron.

        From one change of the clocks to the next, because cronsim's steps of an hour leave part of one out where clocks
        change by half an hour.
        """
        from cronsim import CronSim

        offset, seen = self._offset(moment), moment
        while True:
            for shown in CronSim(self.expression, (seen + offset).replace(tzinfo=UTC)):
                found = shown - offset
                change = self._change(seen, found, offset)
                if change is not None:
                    offset, seen = self._offset(change), change - _SECOND
                    break
                seen = found
                yield (found - _EPOCH) // timedelta(milliseconds=1)
            else:
                return

    def _change(self, after: datetime, until: datetime, offset: timedelta) -> datetime | None:
        """The first second after `after`, up to `until`, that has another offset than `offset`. No two changes in a day."""
        low = after.replace(microsecond=0)
        while low < until:
            high = min(low + _DAY, until)
            if self._offset(high) != offset:
                while high - low > _SECOND:
                    middle = low + (high - low) // (2 * _SECOND) * _SECOND
                    low, high = (middle, high) if self._offset(middle) == offset else (low, middle)
                return high
            low = high
        return None

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self.zone).utcoffset() or timedelta()


def _moment(epoch_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=epoch_ms)


def checked_cron(expression: object, zone: tzinfo, zone_name: str, name: str) -> Cron:
    """A schedule from an expression of five fields. Raises `Refused` (CLM019)."""
    from cronsim import CronSim, CronSimError

    wrong = ""
    if not isinstance(expression, str) or len(expression.split()) != FIELDS:
        wrong = "it needs the five fields minute, hour, day of month, month and day of week"
    else:
        try:
            if next(CronSim(expression, _EPOCH.astimezone(zone)), None) is None:
                wrong = "it never comes"
        except CronSimError as error:
            wrong = str(error).lower()
    if wrong:
        raise Refused(
            "CLM019",
            f'{name}: cron={expression!r} is not understood ({wrong}). Write e.g. cron="0 3 * * *" for three at night; for a '
            'period under a minute use every="10s"',
            name=name,
        )
    assert isinstance(expression, str)
    return Cron(" ".join(expression.split()), zone_name, zone)
