"""The search finds what is broken: each planted bug within a bounded number of schedules, by the invariant it offends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from claimant._model.holding import Tenure
from claimant._model.policy import Absent
from claimant.sim import run, search
from claimant.sim.schedule import Mode, Window
from claimant.sim.systematic import small
from tests.sim.mutants import MUTANTS

AT_MOST = 10_000
"""Schedules until a planted bug must have been found. Most need fewer than fifty."""
STARTS = (0, 20_000, 40_000, 60_000, 80_000)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, start: int) -> None:
    """With one rule turned off, some schedule violates the invariant that the rule is there for; with it on, none does."""
    mutant = MUTANTS[name]
    found = search(range(start, start + AT_MOST), flows=mutant.flows, store=mutant.store)
    assert found.failed, f"{name}: not found in {found.schedules} schedules"
    report = found.failed[0]
    assert report.violations[0].invariant in mutant.noticed_by, report.story()
    assert not run(report.seed).violations, "the shipped flows fail in the same schedule"


def test_a_keeper_that_tells_of_absence_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal sent at the end of the trust window, that may take a third of a lifetime, keeps its holder in the dark."""

    def too_patient(tenure: Tenure, sent: int) -> int:
        left = tenure.trust_until_ms - sent
        return min(tenure.lifetime_ms // 3, left) if left > 0 else tenure.lifetime_ms // 3

    def told_in_time(seed: int) -> bool:
        base = small(slot=False, windows=(Window(Mode.SILENT, 300, 5_500),))
        [job] = base.jobs
        patient = replace(job, lifetime_ms=3_000, beats=12, beat_ms=900, absent=Absent.PROCEED)
        report = run(seed, schedule=replace(base, seed=seed, jobs=(patient,), calm_ms=6_000))
        assert all(each.invariant == "P6" for each in report.violations), report.story()
        return not report.violations

    assert all(map(told_in_time, range(60)))
    monkeypatch.setattr("claimant._flows.keep._patience", too_patient)
    assert not all(map(told_in_time, range(60)))
