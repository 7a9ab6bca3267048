"""Durations and lifetimes: rounded up, never endless, never silently something else."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimant._model.durations import LONGEST_LIFETIME_MS, duration_ms, in_words, lifetime_ms, margin_ms
from claimant._model.errors import Refused


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1_000),
        (1.9, 1_900),
        (0.0004, 1),
        ("250ms", 250),
        ("30s", 30_000),
        (" 2 m ", 120_000),
        ("1.5h", 5_400_000),
        ("1d", 86_400_000),
        (timedelta(seconds=2, microseconds=1), 2_001),
    ],
)
def test_a_duration_is_whole_milliseconds_rounded_up(value: object, expected: int) -> None:
    """Every accepted form comes out in milliseconds, and a part of one counts as a whole one."""
    assert duration_ms(value, "max_run") == expected


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        0.0,
        math.nan,
        math.inf,
        -math.inf,
        None,
        True,
        "",
        "30",
        "30 parsecs",
        "-5s",
        "1e3s",
        "NaN s",
        [],
        timedelta(0),
        b"30s",
    ],
)
def test_what_is_no_positive_finite_duration_is_refused_and_taught(value: object) -> None:
    """Zero, negative, endless, missing and unreadable durations are refused, and the message shows the forms that work."""
    with pytest.raises(Refused, match=r"CLM010.*\"30s\"") as refused:
        duration_ms(value, "max_run", name="job")
    assert refused.value.name == "job"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0, "CLM010"),
        (-1, "CLM010"),
        (math.nan, "CLM010"),
        (None, "CLM010"),
        ("30 parsecs", "CLM010"),
        (0.0004, "CLM011"),
        (0.599, "CLM011"),
        ("10000d", "CLM012"),
        (timedelta(days=3650), "CLM012"),
        (10 * 365 * 86_400, "CLM012"),
    ],
)
def test_no_lifetime_is_endless_too_short_to_renew_or_longer_than_a_store_can_keep(
    value: object, code: str
) -> None:
    """Each unusable lifetime is refused under its own code."""
    with pytest.raises(Refused, match=code):
        lifetime_ms(value)


@given(st.floats(min_value=0.6, max_value=LONGEST_LIFETIME_MS / 1000))
def test_a_lifetime_is_never_shorter_than_asked_for_nor_a_millisecond_longer(seconds: float) -> None:
    """Rounding goes up, by less than a millisecond (and a nanosecond of float noise)."""
    granted = lifetime_ms(seconds)
    assert seconds * 1000 - 1e-5 <= granted < seconds * 1000 + 1


@given(st.one_of(st.floats(), st.integers(), st.text(), st.none(), st.booleans(), st.timedeltas()))
def test_whatever_is_passed_gives_a_bounded_lifetime_or_a_refusal(value: object) -> None:
    """No input makes an immortal lease, and none makes anything but a refusal."""
    try:
        granted = lifetime_ms(value)
    except Refused:
        return
    assert 600 <= granted <= LONGEST_LIFETIME_MS


def test_the_margin_is_two_percent_and_at_least_200_ms() -> None:
    """Rule 12 of the face: max(2 % of lifetime, 200 ms)."""
    assert [margin_ms(ms) for ms in (600, 10_000, 30_000, 3_600_000)] == [200, 200, 600, 72_000]


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (4_200, "4.2 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_spans_read_well(ms: int, words: str) -> None:
    """A span is shown in the two largest units that matter."""
    assert in_words(ms) == words
