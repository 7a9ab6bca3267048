"""`claimant simulate` prints what the simulator found, and its exit code says whether that is a pass."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from claimant.cli import main
from claimant.sim import run, simulate
from claimant.sim.parallel import search_all
from tests.sim.mutants import MUTANTS


def said(*words: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *words])


def test_a_few_schedules_are_no_pass_and_say_why() -> None:
    """Nothing is broken, and what was never reached is named: exit code 1."""
    found = said("--schedules", "50", "--processes", "1")
    assert found.exit_code == 1
    assert "50 schedules" in found.output
    assert "never reached (" in found.output
    assert found.output.endswith("nothing broken, and not a pass: see never reached\n")


def test_the_report_has_each_fault_and_step() -> None:
    """One line for each kind of fault."""
    found = said("--schedules", "50", "--processes", "1", "--report")
    assert "network: reply lost" in found.output
    assert "crash  " in found.output


def test_json_has_the_figures_and_no_other_line() -> None:
    """What the track record is made of."""
    figures = json.loads(said("--schedules", "60", "--seed", "7", "--json", "--processes", "1").output)
    assert (figures["schedules"], figures["seed"], figures["passed"]) == (60, 7, False)
    assert figures["violations"] == []
    assert figures["events"] > 1_000
    assert figures["faults"] > 100


def test_only_the_faults_that_are_asked_for_happen() -> None:
    """`--fault harm` has harm, and nothing else goes wrong."""
    figures = json.loads(said("--fault", "harm", "--schedules", "60", "--processes", "1", "--json").output)
    counters = figures["counters"]
    assert any(name.startswith("harm: ") for name in counters)
    assert not [name for name in counters if name.startswith(("network: ", "crash ", "ledger: ", "failover"))]


def test_a_fault_that_is_none_is_refused_with_the_nearest() -> None:
    """Bad usage is 2."""
    found = said("--fault", "hram")
    assert found.exit_code == 2
    assert "did you mean harm?" in found.output


def test_one_schedule_is_told() -> None:
    """The story, and the hash that every run of this seed has."""
    found = said("--replay", "17")
    assert found.exit_code == 0
    assert "worker 0.0, start 1" in found.output
    assert f"hash {run(17).event_hash}" in found.output
    assert json.loads(said("--replay", "17", "--json").output)["hash"] == run(17).event_hash


def test_a_broken_promise_is_told_small_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariant, a short story, and how to see the whole."""
    monkeypatch.setattr(simulate, "Flows", lambda: MUTANTS["no guard"].flows)
    found = said("--schedules", "200", "--processes", "1")
    assert found.exit_code == 1
    assert "broke a promise" in found.output
    assert "VIOLATED S" in found.output
    assert "claimant simulate --replay" in found.output
    assert found.output.endswith("NOT passed\n")


def test_what_is_found_does_not_depend_on_the_number_of_processes() -> None:
    """The same seeds have the same counters, on one process or on two; progress adds up."""
    done: list[int] = []
    one = search_all(0, 600, processes=1)
    two = search_all(0, 600, processes=2, progress=done.append)
    assert (one.schedules, one.events, dict(one.counters)) == (two.schedules, two.events, dict(two.counters))
    assert sum(done) == 600
