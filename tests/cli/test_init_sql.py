"""`claimant init --sql`: a script for reviewers, which runs as it is printed, explains itself and asks nobody."""

from __future__ import annotations

import contextlib
import re
import socket
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from claimant import Claimant, once
from claimant.cli import main
from claimant.cli.init_sql import ABOUT
from tests.support import pg


def printed(*words: str) -> Result:
    return CliRunner().invoke(main, ["init", "--sql", *words])


def test_the_script_runs_as_printed_with_psql(pg_dsn: str) -> None:
    """psql, stopping at the first error, runs it twice in one transaction each; then a guarded job works."""
    script = printed("--ledger", "postgresql:///elsewhere", "--guard", "postgresql:///elsewhere").output
    psql = pg._installed() / "bin/psql"
    for _ in range(2):
        done = subprocess.run(
            [psql, "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "--single-transaction", "-f", "-", pg_dsn],
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "ERROR" not in done.stderr
    with Claimant("memory:", ledger=pg_dsn) as claims, psycopg.connect(pg_dsn, autocommit=True) as conn:

        @claims.job("debit", key=["order_id"], stake="money", guard=once(pg_dsn))
        def debit(run: Any, order_id: int) -> str:
            return run.once(conn, lambda tx: tx.execute("SELECT 1")).kind

        assert [debit(42).value, debit(42).value] == ["applied", "duplicate"]


def test_the_script_runs_as_printed_on_sqlite(tmp_path: Path) -> None:
    """The whole text is one script for SQLite, twice; then a guarded job works on what it made."""
    file = tmp_path / "app.db"
    script = printed("--ledger", "sqlite:/not/there.db", "--guard", "sqlite:/not/there.db").output
    with contextlib.closing(sqlite3.connect(file)) as conn:
        for _ in range(2):
            conn.executescript(script)
    with (
        Claimant("memory:", ledger=f"sqlite:{file}") as claims,
        contextlib.closing(sqlite3.connect(file)) as conn,
    ):

        @claims.job("debit", key=["order_id"], stake="money", guard=once(f"sqlite:{file}"))
        def debit(run: Any, order_id: int) -> str:
            return run.once(conn, lambda tx: tx.execute("SELECT 1")).kind

        assert [debit(42).value, debit(42).value] == ["applied", "duplicate"]


@pytest.mark.parametrize("url", ["postgresql://app:hunter2@192.0.2.1/app", "sqlite:/not/there.db"])
def test_every_table_says_what_it_is_for_and_how_it_grows(url: str) -> None:
    """Above each CREATE TABLE stand its purpose and its growth; nothing is explained that is not made."""
    said = printed("--ledger", url, "--guard", url)
    lines = said.output.splitlines()
    made = {
        match[1]: at
        for at, line in enumerate(lines)
        if (match := re.match(r"CREATE TABLE IF NOT EXISTS (\w+)", line))
    }
    assert set(made) == set(ABOUT)
    for at in made.values():
        assert lines[at - 1].startswith("-- ")
        assert lines[at - 2].startswith("-- ")
    assert (
        sum(
            "The workers need SELECT, INSERT and UPDATE" in line.replace("-- ", "")
            for line in " ".join(lines).split("CREATE")
        )
        == 2
    )
    assert max(map(len, lines)) <= 120
    assert "hunter2" not in said.output


def test_the_script_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No connection is opened, no file is made, and no driver is needed."""

    def never(*words: Any, **more: Any) -> Any:
        raise AssertionError("--sql connected")

    monkeypatch.setattr(socket, "socket", never)
    monkeypatch.setattr(sqlite3, "connect", never)
    monkeypatch.setattr(psycopg, "connect", never)
    monkeypatch.setattr(psycopg.Connection, "connect", never)
    for url in (f"sqlite:{tmp_path / 'x.db'}", "postgresql://192.0.2.1/app"):
        assert printed("--ledger", url, "--guard", url).exit_code == 0
    assert not list(tmp_path.iterdir())


def test_two_kinds_of_database_are_two_scripts(tmp_path: Path) -> None:
    """A ledger in SQLite and a guard in PostgreSQL: one script would fit neither, and the refusal says what to do."""
    said = printed("--ledger", "sqlite:x.db", "--guard", "postgresql:///app")
    assert (said.exit_code, said.stdout) == (1, "")
    assert "one after the other" in said.stderr
