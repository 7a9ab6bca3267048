"""The shipped flows, searched by chance: nothing they promise breaks, and every branch was there to break it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from claimant.sim import run, search
from claimant.sim.coverage import never_reached

A_FEW = 3_000


def test_a_few_thousand_schedules_break_nothing_and_go_everywhere() -> None:
    """No invariant is violated, and each branch named in `coverage` was taken at least once."""
    found = search(range(A_FEW))
    assert not found.failed, found.failed[0].story()
    assert found.schedules == A_FEW
    assert never_reached(found.counters) == ()
    assert not found.passed, "so few schedules do not meet every fault at every step, and are no pass"


@pytest.mark.parametrize("start", [100_000, 200_000, 300_000])
def test_schedules_far_from_the_first_ones_break_nothing(start: int) -> None:
    """The first seeds are not special: other neighbourhoods hold as well."""
    found = search(range(start, start + 400))
    assert not found.failed, found.failed[0].story()


def test_the_same_seed_is_the_same_schedule() -> None:
    """Two runs of one seed have the same events in the same order, and so the same hash; another seed has others."""
    hashes = [run(seed).event_hash for seed in range(60)]
    assert [run(seed).event_hash for seed in range(60)] == hashes
    assert len(set(hashes)) == len(hashes)


def test_the_same_seed_is_the_same_schedule_in_another_process() -> None:
    """The hash does not depend on Python's hash seed, so a seed that failed elsewhere fails here."""
    code = "from claimant.sim import run; print(*(run(seed).event_hash for seed in range(25)))"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(hashes) == 1
    assert len(hashes.pop().split()) == 25


def test_a_report_can_be_read() -> None:
    """A trace names the time, the flow, and what it asked or learned, one line each."""
    told = run(0).story()
    assert told.startswith("seed 0\n")
    assert "sends" in told
    assert "Create(key='claimant:sim:job0" in told
