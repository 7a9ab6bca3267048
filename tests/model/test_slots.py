"""Slots are UTC instants that everybody computes alike: of a period, of a cron expression, or named by a trigger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from claimant import Refused, zones
from claimant._model import slots
from claimant._model.cron import Cron, checked_cron
from claimant._model.slots import Every
from claimant.zones import cron_in_zone, host_zone

BERLIN = "Europe/Berlin"
SECOND = timedelta(seconds=1)


def cron(expression: str, zone: str = BERLIN) -> Cron:
    return cron_in_zone(expression, zone, "job")


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def utc(text: str) -> int:
    return ms(datetime.fromisoformat(text))


EXPRESSIONS = st.sampled_from(
    [
        "* * * * *",
        "*/7 * * * *",
        "0 * * * *",
        "30 2 * * *",
        "15 1,2,3 * * *",
        "0 0 * * 0",
        "30 */3 * * *",
        "0 12 1 * *",
        "0 9-17 * * 1-5",
        "0 0 L * *",
        "0 0 29 2 *",
    ]
)
MOMENTS = st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1))


@given(expression=EXPRESSIONS, moment=MOMENTS, zone=st.sampled_from([BERLIN, "UTC", "America/New_York"]))
@example("30 2 * * *", datetime(2026, 3, 29, 1, 2), BERLIN)
@example("30 2 * * *", datetime(2026, 10, 25, 1, 31), BERLIN)
@example("15 1,2,3 * * *", datetime(2026, 10, 25, 1, 16), BERLIN)
def test_the_latest_slot_is_the_last_of_all_that_came_before(
    expression: str, moment: datetime, zone: str
) -> None:
    """However far back one starts to count, the slot of a moment is the same: no later occasion was passed over."""
    schedule = cron(expression, zone)
    now = ms(moment.replace(tzinfo=UTC))
    slot = schedule.latest(now)
    assert slot <= now + slots.LONGEST_EARLY_MS
    far = (
        ms((moment - timedelta(days=3_100)).replace(tzinfo=UTC))
        if "29 2" in expression
        else now - 45 * 86_400_000
    )
    if expression in ("0 12 1 * *", "0 0 L * *"):
        far = now - 90 * 86_400_000
    before = _until(schedule, far, now)
    assert slot == (max(before) if slot <= now else schedule.following(max(before)))
    assert schedule.following(slot) > slot
    assert schedule.latest(slot) == slot


def _until(schedule: Cron, far: int, now: int) -> list[int]:
    found: list[int] = []
    for slot in schedule._from(slots._EPOCH + timedelta(milliseconds=far)):
        if slot > now:
            return found
        found.append(slot)
    raise AssertionError


@pytest.mark.parametrize(
    ("now", "slot"),
    [
        ("2026-03-28T12:00:00+01:00", "2026-03-28T01:30:00Z"),
        ("2026-03-29T01:59:00+01:00", "2026-03-28T01:30:00Z"),
        (
            "2026-03-29T03:00:00+02:00",
            "2026-03-29T01:00:00Z",
        ),  # half past two was skipped: right after the change
        ("2026-03-30T02:30:00+02:00", "2026-03-30T00:30:00Z"),
        (
            "2026-10-25T02:30:00+02:00",
            "2026-10-25T00:30:00Z",
        ),  # half past two comes twice: once, the first time
        ("2026-10-25T02:45:00+01:00", "2026-10-25T00:30:00Z"),
        ("2026-10-26T02:29:00+01:00", "2026-10-25T00:30:00Z"),
        ("2026-10-26T02:30:00+01:00", "2026-10-26T01:30:00Z"),
    ],
)
def test_both_changes_of_the_clocks_leave_one_slot_a_day(now: str, slot: str) -> None:
    """A nightly job has one slot a night, whether its hour is skipped or comes twice."""
    assert slots.text(cron("30 2 * * *").latest(utc(now))) == slot


@pytest.mark.parametrize(
    ("zone", "around"),
    [
        ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),  # put back by half an hour
        ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),  # put forward by half an hour
        (BERLIN, "2026-03-29T01:00:00Z"),
        (BERLIN, "2026-10-25T01:00:00Z"),
        ("America/New_York", "2026-11-01T06:00:00Z"),
    ],
)
@pytest.mark.parametrize("hours", ["*", "1", "2", "3", "5", "1-3"])
def test_a_star_means_every_time_that_a_clock_in_the_zone_shows_it(
    zone: str, around: str, hours: str
) -> None:
    """Minute by minute through a change of the clocks: the slot is the last such time, and never goes back."""
    schedule = cron(f"*/7 {hours} * * *", zone)
    first, last = {"*": (0, 23), "1-3": (1, 3)}.get(hours) or (int(hours), int(hours))
    change = datetime.fromisoformat(around)
    shown: int | None = None
    for minute in range(-2 * 60, 5 * 60):
        now = change + timedelta(minutes=minute)
        local = now.astimezone(ZoneInfo(zone))
        if local.minute % 7 == 0 and first <= local.hour <= last:
            before, shown = shown or ms(now) - 1, ms(now)
            assert schedule.following(before) == shown, now
        if shown is not None:
            assert schedule.latest(ms(now)) == shown, now


def test_a_star_finds_both_of_a_yearly_hour_that_comes_twice() -> None:
    """Years apart: no change of the clocks between two slots is passed over."""
    schedule = cron("*/30 2 25 10 *")
    found = [utc("2026-10-24T00:00:00Z")]
    for _ in range(5):
        found.append(schedule.following(found[-1]))
    assert [slots.text(slot)[:16] for slot in found[1:]] == [
        *("2026-10-25T00:00", "2026-10-25T00:30", "2026-10-25T01:00", "2026-10-25T01:30", "2027-10-25T00:00"),
    ]


def test_a_slot_may_start_a_little_early() -> None:
    """A tenth of the gap to the slot before, and at most thirty seconds: skewed hosts neither double nor drop one."""
    nightly, minutely = cron("0 3 * * *", "UTC"), cron("* * * * *", "UTC")
    assert slots.text(nightly.latest(utc("2026-05-02T02:59:30Z"))) == "2026-05-02T03:00:00Z"
    assert slots.text(nightly.latest(utc("2026-05-02T02:59:29Z"))) == "2026-05-01T03:00:00Z"
    assert slots.text(minutely.latest(utc("2026-05-02T02:59:54Z"))) == "2026-05-02T03:00:00Z"
    assert slots.text(minutely.latest(utc("2026-05-02T02:59:53Z"))) == "2026-05-02T02:59:00Z"
    assert slots.text(Every(1_000).latest(utc("2026-05-02T02:59:59.900+00:00"))) == "2026-05-02T03:00:00Z"
    assert slots.text(Every(1_000).latest(utc("2026-05-02T02:59:59.899+00:00"))) == "2026-05-02T02:59:59Z"


def test_a_schedule_says_what_it_is() -> None:
    """For people: the period, or the expression with its zone."""
    assert Every(900_000).describe() == "every 15 min"
    assert cron(" 0  3 * *  * ").describe() == "cron 0 3 * * * Europe/Berlin"


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("", BERLIN),
        ("0 3 * *", BERLIN),
        ("* * * * * *", BERLIN),  # seconds
        ("61 * * * *", BERLIN),
        ("0 0 30 2 *", BERLIN),  # never
        ("@daily", BERLIN),
        ("0 3 * * MOO", BERLIN),
        ("0 3 * * *", "Europe/Berlyn"),
        ("0 3 * * *", "/etc/passwd"),
        ("0 3 * * *", "../zoneinfo"),
        ("0 3 * * *", 2),
        (3, BERLIN),
        (None, BERLIN),
    ],
)
def test_what_is_no_schedule_is_refused(expression: Any, zone: Any) -> None:
    """A mistyped expression or zone is refused when the job is declared, with an example of each."""
    with pytest.raises(Refused, match="CLM019") as refused:
        cron_in_zone(expression, zone, "job")
    assert "e.g." in str(refused.value)


def test_a_leap_day_is_found_across_a_century() -> None:
    """The slot of 29 February is found from eight years later, when 2100 has none."""
    schedule = checked_cron("0 0 29 2 *", ZoneInfo("UTC"), "UTC", "job")
    assert slots.text(schedule.latest(utc("2104-02-28T12:00:00Z"))) == "2096-02-29T00:00:00Z"


@pytest.mark.parametrize(
    ("env", "name"),
    [("Europe/Paris", "Europe/Paris"), (":Asia/Tokyo", "Asia/Tokyo"), ("", None)],
)
def test_the_hosts_zone_is_what_the_host_says(
    env: str, name: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TZ first, then what /etc/localtime points to, then /etc/timezone, and UTC where nothing says."""
    monkeypatch.setenv("TZ", env)
    if name is not None:
        assert host_zone() == name
        return
    zone = tmp_path / "zoneinfo" / "Europe" / "Rome"
    zone.parent.mkdir(parents=True)
    zone.write_bytes(b"TZif")
    monkeypatch.setattr(zones, "LOCALTIME", tmp_path / "localtime")
    monkeypatch.setattr(zones, "NAMED", tmp_path / "timezone")
    assert host_zone() == "UTC"
    (tmp_path / "timezone").write_text("Europe/Oslo\n")
    assert host_zone() == "Europe/Oslo"
    (tmp_path / "localtime").symlink_to(zone)
    assert host_zone() == "Europe/Rome"


@pytest.mark.parametrize(
    ("given_as", "identity"),
    [
        ("2026-11-30T21:00:00Z", "2026-11-30T21:00:00Z"),
        ("2026-11-30T22:00:00+01:00", "2026-11-30T21:00:00Z"),
        ("2026-11-30 21:00:00.250+00:00", "2026-11-30T21:00:00.250Z"),
        ("2026-11-30T21:00:00", "2026-11-30T21:00:00"),  # no zone: text, not an instant
        ("2026-11-30", "2026-11-30"),
        (" rebuild-29401234 ", "rebuild-29401234"),
    ],
)
def test_a_named_slot_is_an_instant_or_its_text(given_as: str, identity: str) -> None:
    """The same instant is the same slot however it is written; other text is compared as it is."""
    assert slots.named(given_as, "job") == identity


@pytest.mark.parametrize("slot", ["", "  ", "a\nb", "x" * 201, 7, b"x"])
def test_a_slot_that_names_nothing_is_refused(slot: Any) -> None:
    """An empty, overlong or unprintable slot is refused: it would name no occasion, or all of them."""
    with pytest.raises(Refused, match="CLM039"):
        slots.named(slot, "job")
