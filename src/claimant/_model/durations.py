"""Durations: seconds, `timedelta` or text at the face; whole milliseconds inside, always rounded up.

Rounding up is the rule because rounding down has made 0.9 s into 0, and some stores read 0 as "for ever".
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from claimant._model.errors import Refused

SHORTEST_LIFETIME_MS = 600
"""Renewal runs every lifetime/3; under 600 ms that is faster than a loaded machine schedules threads."""
LONGEST_LIFETIME_MS = 30 * 86_400_000
"""30 days: the longest relative lifetime that every supported store can express (memcached's limit)."""
LONGEST_MS = 100 * 365 * 86_400_000
"""A hundred years: beyond it dates and databases run out of numbers."""

Duration = float | int | str | timedelta
"""Seconds as a number, a `timedelta`, or text such as "250ms", "30s", "2m", "1h", "1d"."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_HOW = 'write seconds as a number, a timedelta, or text with a unit: "250ms", "30s", "2m", "1h", "1d"'


def duration_ms(value: object, what: str, *, name: str = "") -> int:
    """The duration in whole milliseconds, rounded up. `what` names the parameter in the refusal.

    Raises `Refused` (CLM010) for None, zero, negative, NaN, infinite, boolean or unreadable values.
    """
    if isinstance(value, timedelta):
        exact = value / timedelta(milliseconds=1)
    elif isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is None:
            raise Refused("CLM010", f"{what}={value!r} is not a duration; {_HOW}", name=name)
        exact = float(match[1]) * _UNITS_MS[match[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        exact = float(value) * 1_000
    else:
        raise Refused("CLM010", f"{what}={value!r} is not a duration; {_HOW}", name=name)
    if not math.isfinite(exact) or exact <= 0:
        raise Refused("CLM010", f"{what}={value!r} must be a positive, finite duration; {_HOW}", name=name)
    if exact > LONGEST_MS:
        raise Refused("CLM010", f"{what}={value!r} is longer than a hundred years; {_HOW}", name=name)
    return math.ceil(round(exact, 6))


def lifetime_ms(value: object, *, name: str = "", shortest_ms: int = SHORTEST_LIFETIME_MS) -> int:
    """A lease's lifetime in milliseconds, within what can be renewed three times and what a store can keep.

    Raises `Refused`: CLM010 (not a duration), CLM011 (too short), CLM012 (too long). There is no way to ask
    for a lease without an end.
    """
    if value is None:
        raise Refused(
            "CLM010", 'lifetime=None: every lease ends. Leave it out (30s) or name one, e.g. "30s"', name=name
        )
    lifetime = duration_ms(value, "lifetime", name=name)
    if lifetime < shortest_ms:
        raise Refused(
            "CLM011",
            f"lifetime={value!r} is shorter than {shortest_ms} ms, and cannot be renewed three times before it "
            f'ends. Use at least {shortest_ms} ms; "30s" suits most jobs, since it is renewed while they run',
            name=name,
        )
    if lifetime > LONGEST_LIFETIME_MS:
        raise Refused(
            "CLM012",
            f"lifetime={value!r} is longer than 30 days: after a crash nobody would work for that long. Keep the "
            'lifetime short, e.g. "30s": it is renewed while the job runs. A long job needs max_run=, not this',
            name=name,
        )
    return lifetime


def margin_ms(lifetime: int) -> int:
    """What the holder subtracts from its trust window: 2 % of the lifetime, and at least 200 ms."""
    return max(lifetime // 50, 200)


def in_words(milliseconds: float) -> str:
    """A duration for people: "250 ms", "4.2 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"."""
    ms = max(0, round(milliseconds))
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1_000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
