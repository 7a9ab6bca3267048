"""`claimant status` of jobs that really ran: what the ledger recorded of modes, guards, schedules and forced runs arrives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from claimant import Claimant, guards
from claimant.cli import main
from claimant.testing.faults import held_by_another

OLD_TABLES = Path(__file__).parent.parent / "ledger" / "schema_1_postgresql.sql"


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    return ["--store", f"sqlite:{tmp_path / 'leases.db'}", "--ledger", f"sqlite:{tmp_path / 'ledger.db'}"]


@pytest.fixture
def run(places: list[str]) -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(main, [*words, *places])


def test_what_observe_mode_let_through_is_shown(run: Callable[..., Result], places: list[str]) -> None:
    """Starts that enforce would have skipped are one line of the short page, a line of the job's own, and in the JSON."""
    with Claimant(places[1], ledger=places[3], mode="observe") as claims:
        scan = claims.job("scan", stake="scan")(lambda run: None)
        scan()
        with held_by_another(claims, "scan"):
            scan()
            scan()
    said = run("status").output.splitlines()
    assert said[0].startswith("scan: ok, last success")
    assert said[1:] == [
        "observe mode, where nothing is stopped:",
        "  scan: would have skipped 2 starts and rejected 0 effects",
    ]
    in_full = run("status", "scan").output
    assert (
        "  observe mode: nothing is stopped; it would have skipped 2 starts and rejected 0 effects" in in_full
    )
    found = json.loads(run("status", "--json").output)
    assert (found["jobs"][0]["mode"], found["jobs"][0]["would_skip"], found["totals"]["would_skip"]) == (
        "observe",
        2,
        2,
    )


def test_guard_schedule_and_forced_runs_are_shown_in_full(
    run: Callable[..., Result], places: list[str]
) -> None:
    """What the caller attests is shown as attested; the short page stays one line per job."""
    with Claimant(places[1], ledger=places[3]) as claims:
        guard: Any = guards.Attested("unique index one_debit")
        pay = claims.job("pay", every="1d", stake="money", guard=guard)(lambda run: None)
        pay()
        pay.at(force=True)()
    assert len(run("status").output.splitlines()) == 1
    in_full = run("status", "pay").output.splitlines()
    assert "  stake money; guarded, as the caller attests: unique index one_debit" in in_full
    assert "  schedule: every 24 h" in in_full
    assert "  1 run forced, of a slot that may have been closed" in in_full
    [job] = json.loads(run("status", "pay", "--json").output)["jobs"]
    assert (job["guard"], job["schedule"], job["forced"]) == (
        "attested: unique index one_debit",
        "every 24 h",
        1,
    )


def test_older_tables_are_a_note(pg_dsn: str, places: list[str]) -> None:
    """While `init` has not been run a job runs all the same, and the status says what is not recorded and what to run."""
    with psycopg.connect(pg_dsn) as connection:
        connection.execute(OLD_TABLES.read_text().encode())
    where = [*places[:2], "--ledger", pg_dsn]
    with Claimant(places[1], ledger=pg_dsn) as claims:
        assert claims.job("scan", stake="scan")(lambda run: "ran")().value == "ran"
    said = CliRunner().invoke(main, ["status", *where]).output.splitlines()
    assert said[0].startswith("scan: ok")
    [note] = said[1:]
    assert note.startswith("note: the ledger's tables have version 1, and this claimant knows 2: ")
    assert "`claimant init --ledger postgresql://" in note
    assert CliRunner().invoke(main, ["init", "--ledger", pg_dsn]).exit_code == 0
    assert len(CliRunner().invoke(main, ["status", *where]).output.splitlines()) == 1
