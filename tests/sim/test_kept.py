"""Schedules in which the simulator once found a defect of ours: they hold now, and fail again where the defect is put back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

import claimant._flows.keep as keeping
from claimant.sim import run
from claimant.sim.draw import draw
from claimant.sim.written import dumped, loaded

KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))


def waits_as_long_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal's deadline looks at what is held when it is sent, and not at what may arrive meanwhile."""
    source = inspect.getsource(keeping._renew_batch)
    line = "newcomer = max(deadline_ms, duties.shortest_ms // 3)"
    assert line in source
    space = dict(vars(keeping))
    exec(source.replace(line, "newcomer = LONGEST_SEND_MS"), space)
    monkeypatch.setattr(keeping, "_renew_batch", space["_renew_batch"])


DEFECTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "a-short-lease-behind-a-long-wait": (waits_as_long_as_ever, "P6"),
}
"""For each file: how to put the defect back, and what is broken then."""


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_failed_once_holds_now(path: Path) -> None:
    """And it is the same schedule that is written there."""
    schedule = loaded(path.read_text())
    report = run(schedule.seed, schedule=schedule)
    assert not report.violations, report.story()
    assert loaded(dumped(schedule)) == schedule


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_failed_once_fails_with_the_defect_put_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept schedule that could not fail any more would keep nothing."""
    put_back, invariant = DEFECTS[path.stem]
    put_back(monkeypatch)
    schedule = loaded(path.read_text())
    assert run(schedule.seed, schedule=schedule).violations[0].invariant == invariant


def test_every_schedule_can_be_written_and_read() -> None:
    """Whatever is drawn comes back the same; what is no schedule is refused."""
    for seed in range(400):
        assert loaded(dumped(draw(seed))) == draw(seed)
    with pytest.raises(ValueError, match="has no weather"):
        loaded('{"seed": 1, "weather": []}')
