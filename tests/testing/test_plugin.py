"""The pytest plugin in a user's own test run: a guard that no run used fails its test, and nothing else does."""

from __future__ import annotations

import pytest

pytest_plugins = "pytester"

JOBS = """
import sqlite3, asyncio, threading
from contextlib import closing
import pytest
from claimant import Claimant, Run, once

@pytest.fixture
def debit(claims, tmp_path):
    path = tmp_path / "bank.db"
    @claims.job("debit", key=["order"], stake="money", guard=once(f"sqlite:{path}"))
    def debit(run: Run, order: int, use: bool) -> None:
        if use:
            with closing(sqlite3.connect(path)) as conn:
                run.once(conn, lambda tx: None)
    return debit
"""


def outcomes(pytester: pytest.Pytester, text: str, *options: str) -> tuple[dict[str, int], str]:
    pytester.makepyfile(JOBS + text)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)
    return result.parseoutcomes(), result.stdout.str()


def test_an_unused_guard_fails_its_test_and_no_other(pytester: pytest.Pytester) -> None:
    """The message names the job and says what to write; the marker with a reason lets it pass."""
    found, said = outcomes(
        pytester,
        """
def test_uses(debit):
    assert debit(1, use=True).kind == "ran"

def test_forgets(debit):
    assert debit(1, use=False).kind == "ran"

def test_forgets_in_a_thread(debit):
    thread = threading.Thread(target=debit, args=(1, False))
    thread.start()
    thread.join()

@pytest.mark.claimant_unguarded("an order of nothing has no effect")
def test_means_it(debit):
    debit(1, use=False)

def test_fails_anyhow(debit):
    debit(1, use=False)
    assert False, "its own failure"
""",
        "--strict-markers",
    )
    assert found == {"passed": 2, "failed": 3}
    assert "debit: a run ended without using the guard that the job declares" in said
    assert "its own failure" in said


def test_leases_can_be_off_in_a_block(pytester: pytest.Pytester) -> None:
    """`off`: what somebody else holds runs all the same, and a second effect is rejected as ever."""
    found, _ = outcomes(
        pytester,
        """
def test_off(debit, held, off):
    with held("debit", order=1):
        assert debit(1, use=True).kind == "held"
        with off():
            first, second = debit(1, use=True), debit(1, use=True)
        assert debit(1, use=True).kind == "held"
    assert (first.claim, first.answers[0].kind) == ("off", "applied")
    assert (second.claim, second.answers[0].kind) == ("off", "duplicate")
""",
    )
    assert found == {"passed": 1}


def test_the_plugin_costs_a_stranger_nothing(pytester: pytest.Pytester) -> None:
    """In a project that does not use claimant nothing of it is imported but the plugin itself."""
    pytester.makepyfile(
        """
import sys

def test_nothing():
    ours = {name for name in sys.modules if name.split(".")[0] == "claimant"}
    assert "claimant.stores" not in ours
    assert "claimant.testing.harmless" not in ours
"""
    )
    result = pytester.runpytest_subprocess()
    assert result.parseoutcomes() == {"passed": 1}
