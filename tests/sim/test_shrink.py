"""A failing schedule becomes one that a person reads, and still fails for the same reason."""

from __future__ import annotations

import pytest

from claimant.sim import Flows, Report, run, search
from claimant.sim.schedule import Schedule
from claimant.sim.shrink import shrunk, size
from claimant.sim.telling import told
from tests.sim.mutants import MUTANTS


@pytest.mark.parametrize("name", ["no guard", "renewal creates", "store denies itself", "loss is not told"])
def test_a_failing_schedule_is_made_small(name: str) -> None:
    """The same invariant, fewer parts, and a story that names what was broken."""
    mutant = MUTANTS[name]

    def again(schedule: Schedule) -> Report:
        return run(schedule.seed, schedule=schedule, flows=mutant.flows, store=mutant.store)

    failed = search(range(10_000), flows=mutant.flows, store=mutant.store).failed[0]
    small = shrunk(failed, again)
    assert small.violations[0].invariant == failed.violations[0].invariant
    assert size(small)[0] <= size(failed)[0] * 2 // 3
    assert f"VIOLATED {small.violations[0].invariant}" in told(small)


def test_what_cannot_be_made_smaller_stays_as_it_is() -> None:
    """No candidate offends the same invariant: the report itself is given back."""
    failed = search(range(2_500), flows=MUTANTS["no guard"].flows).failed[0]
    assert shrunk(failed, lambda schedule: run(schedule.seed, schedule=schedule, flows=Flows())) is failed


def test_a_story_can_be_read_by_a_person() -> None:
    """Workers, starts and claims by short names; requests and answers as sentences; no value as the store keeps it."""
    text = told(run(17))
    assert "worker 0.0, start 1" in text
    assert "asks the store to create claim 1 of worker 0.0 for" in text
    assert "<- granted" in text
    assert "c1|" not in text
    assert "Tenure(" not in text
    assert "nothing was violated" in text
