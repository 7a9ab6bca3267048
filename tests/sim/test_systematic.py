"""Not by chance: every stroke at every yield, every fate for every request, in small schedules."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from claimant.sim.schedule import Schedule, Stroke
from claimant.sim.simulate import Report
from claimant.sim.systematic import bases, fates_everywhere, strokes_everywhere

BASES = list(bases())
NAMES = [
    f"{base.dialect.value}, {'slot' if base.jobs[0].every_ms else 'key'}{', joined' if base.jobs[0].joined else ''}"
    f"{''.join(f', store {window.mode.value}' for window in base.store_windows)}"
    for base in BASES
]


def sound(reports: Iterable[Report]) -> int:
    """How many there were; none may have violated anything."""
    count = 0
    for report in reports:
        assert not report.violations, report.story()
        count += 1
    return count


@pytest.mark.parametrize("base", BASES, ids=NAMES)
@pytest.mark.parametrize(
    ("stroke", "ms"),
    [
        (Stroke.CRASH, 1),
        (Stroke.CRASH, 1_500),
        (Stroke.FREEZE, 300),
        (Stroke.FREEZE, 3_000),
        (Stroke.CANCEL, 0),
        (Stroke.FAULT, 0),
    ],
    ids=str,
)
def test_a_start_survives_every_stroke_at_every_yield(base: Schedule, stroke: Stroke, ms: int) -> None:
    """Killed, frozen, cancelled, or its keeper's port failing, at the first yield, the second, and so on: one effect, one end."""
    assert sound(strokes_everywhere(base, stroke, ms)) >= 20


@pytest.mark.parametrize("base", BASES, ids=NAMES)
def test_a_start_survives_every_fate_of_every_request(base: Schedule) -> None:
    """Each single store request lost, unanswered, reset, late, slow or turned away: one effect, one end, nothing left."""
    assert sound(fates_everywhere(base)) >= 14
