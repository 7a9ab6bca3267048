"""The pytest plugin in a user's own test run: a guard that no run used fails its test, and nothing else does."""

from __future__ import annotations

import pytest

pytest_plugins = "pytester"

JOBS = """
import asyncio, logging.config, sqlite3, threading, unittest
from contextlib import closing
import pytest
from claimant import AsyncRun, Claimant, Run, once
from claimant.testing import isolated

@pytest.fixture
def debit(claims, tmp_path):
    path = tmp_path / "bank.db"
    @claims.job("debit", key=["order"], stake="money", guard=once(f"sqlite:{path}"))
    def debit(run: Run, order: int, use: bool) -> None:
        if use:
            with closing(sqlite3.connect(path)) as conn:
                run.once(conn, lambda tx: None)
    return debit

production = Claimant("redis://127.0.0.1:1/0", ledger="postgresql://127.0.0.1:1/none")

@production.job("refund", key=["order"], stake="money", guard=once("sqlite:never.db"))
def refund(run: Run, order: int) -> None: ...

@production.job("refund-later", key=["order"], stake="money", guard=once("sqlite:never.db"))
async def refund_later(run: AsyncRun, order: int) -> None: ...
"""


def outcomes(pytester: pytest.Pytester, text: str, *options: str) -> tuple[dict[str, int], str]:
    pytester.makepyfile(text)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:valkey", *options)
    return result.parseoutcomes(), result.stdout.str()


def test_an_unused_guard_fails_its_test_and_no_other(pytester: pytest.Pytester) -> None:
    """The message names the job and says what to write; the marker with a reason lets it pass."""
    found, said = outcomes(
        pytester,
        JOBS
        + """
def test_passes_because_it_uses(debit):
    assert debit(1, use=True).kind == "ran"

def test_fails_because_it_forgets(debit):
    assert debit(1, use=False).kind == "ran"

def test_fails_in_a_thread(debit):
    thread = threading.Thread(target=debit, args=(1, False))
    thread.start()
    thread.join()

def test_fails_for_a_modules_own_job():
    with isolated(production):
        assert refund(1).kind == "ran"

def test_fails_for_an_async_job():
    with isolated(production):
        assert asyncio.run(refund_later(1)).kind == "ran"

def test_fails_where_the_log_is_off(debit):
    logging.config.dictConfig({"version": 1})
    assert logging.getLogger("claimant").disabled
    debit(1, use=False)

class TestFailsInAClass(unittest.TestCase):
    def test_fails(self):
        with isolated(production):
            refund(1)

@pytest.mark.claimant_unguarded("an order of nothing has no effect")
def test_passes_because_it_means_it(debit):
    debit(1, use=False)

@pytest.mark.claimant_unguarded
def test_fails_without_a_reason(debit):
    debit(1, use=True)

def test_fails_by_itself(debit):
    debit(1, use=False)
    assert False, "its own failure"

def test_passes_after_all_of_them(debit):
    debit(1, use=True)
""",
        "--strict-markers",
        "-rA",
    )
    lines = [line for line in said.splitlines() if line.startswith(("PASSED ", "FAILED "))]
    assert len(lines) == 11
    assert all(("passes" in line) == line.startswith("PASSED") for line in lines), "\\n".join(lines)
    assert found == {"passed": 3, "failed": 8}
    assert "debit: a run ended without using the guard that the job declares" in said
    assert "refund-later: a run ended without using the guard" in said
    assert "run.once(conn, effect)" in said
    assert '@pytest.mark.claimant_unguarded("why") needs its reason' in said
    assert "its own failure" in said


def test_the_first_claimant_of_a_test_run_is_heard_too(pytester: pytest.Pytester) -> None:
    """A test that is the first to import and make one is like any other, and so is one whose module is marked."""
    text = """
import pytest
def test_first(tmp_path):
    from claimant import Claimant, once
    with Claimant("memory:", ledger=f"sqlite:{tmp_path / 'ledger.db'}") as claims:
        claims.job("charge", key=["n"], stake="money", guard=once("sqlite:x"))(lambda run, n: None)(1)
"""
    found, said = outcomes(pytester, text)
    assert found == {"failed": 1}
    assert "charge: a run ended without using the guard" in said
    found, _ = outcomes(
        pytester, text + 'pytestmark = pytest.mark.claimant_unguarded("a module of sketches")'
    )
    assert found == {"passed": 1}


def test_the_fixtures_work_on_a_modules_own_claimant(pytester: pytest.Pytester) -> None:
    """A project's own `claims` takes the place of ours, and `held`, `absent` and `off` follow it."""
    found, _ = outcomes(
        pytester,
        JOBS
        + """
@pytest.fixture
def claims():
    with isolated(production) as claims:
        yield claims

@pytest.mark.claimant_unguarded("what is tested here is the claim")
def test_all(held, absent, off):
    with held("refund", order=1):
        assert refund(1).kind == "held"
        assert refund(2).kind == "ran"
        with off():
            assert refund(1).claim == "off"
        assert refund(1).kind == "held"
    with absent():
        assert refund(1).claim == "absent"
    assert refund(1).claim == "kept"

def test_afterwards_it_is_productions():
    assert production.store.address.startswith("redis:")
""",
    )
    assert found == {"passed": 2}


def test_leases_can_be_off_in_a_block(pytester: pytest.Pytester) -> None:
    """`off`: what somebody else holds runs all the same, and a second effect is rejected as ever."""
    found, _ = outcomes(
        pytester,
        JOBS
        + """
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


def test_the_plugin_costs_a_stranger_nothing_more_than_its_import(pytester: pytest.Pytester) -> None:
    """In a project that does not use claimant, what a whole test run imports of it is what its public names need."""
    found, said = outcomes(
        pytester,
        """
import subprocess, sys

def ours(code):
    code += "; print(*sorted(n for n in sys.modules if n.split('.')[0] == 'claimant'))"
    return subprocess.run([sys.executable, "-c", "import sys" + code], capture_output=True, text=True).stdout.split()

def test_nothing():
    here = {name for name in sys.modules if name.split(".")[0] == "claimant"}
    assert here == {*ours("; import claimant"), "claimant.testing", "claimant.testing.plugin"}
    assert not here & {"claimant._drive.process", "claimant.wiring", "claimant.stores", "claimant.testing.harmless"}
""",
    )
    assert found == {"passed": 1}, said
