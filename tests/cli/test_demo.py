"""The demo: real processes, real pauses, and figures that are read and not scripted."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import psycopg
import pytest


def perform(*arguments: str) -> str:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "claimant.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert time.monotonic() - began < 60  # alone it takes ten seconds; the tests beside it are not its fault
    return done.stdout


def check(said: str) -> None:
    assert re.search(r"worker B  held: held by \S+, [\d.]+ m?s left", said)
    assert "worker C  done" in said
    assert "ledger    1 run, 1 skip" in said
    # Told of the loss by the store, or by its own clock alone where it acts before the answer is there.
    assert re.search("worker A  wakes and debits too: duplicate, claim (lost|absent)", said)
    assert "Both believed" in said
    assert "debits of order 42: 1; balance 958.00 of 1000.00" in said
    assert "attempts rejected and counted: 1" in said
    assert "12 starts without a claim, 6 duplicate attempts rejected" in said
    assert "second effects: 0; missing: 0; balance 706.00 of 1000.00" in said
    assert re.search(r"worker A  order 4\d\d: ran, claim kept", said)


def test_the_demo_on_the_embedded_default() -> None:
    """Three acts without any server: one run and one skip; one debit of two attempts; an outage and its cost."""
    check(perform())


@pytest.mark.parametrize("flavour", ["valkey_url", "redis7_url"])
def test_the_demo_on_real_servers(flavour: str, pg_dsn: str, request: pytest.FixtureRequest) -> None:
    """The same on Redis or Valkey with PostgreSQL, and nothing of it is left in the wallet's database."""
    for _ in range(2):  # a second performance in the same database is like the first
        check(perform("--store", request.getfixturevalue(flavour), "--ledger", pg_dsn))
    with psycopg.connect(pg_dsn) as conn:
        assert conn.execute("SELECT count(*) FROM claimant_guard").fetchone() == (0,)
        tables = {
            name for (name,) in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        }
    assert not {name for name in tables if "demo" in name}


def test_the_demo_refuses_a_shared_store_with_a_ledger_of_one_host() -> None:
    """Workers on several hosts would each do each slot: said before anything starts."""
    done = subprocess.run(
        [sys.executable, "-m", "claimant.cli", "demo", "--store", "redis://127.0.0.1:1/0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("claimant: CLM050")


def test_the_demo_refuses_a_store_that_it_cannot_take_away() -> None:
    """A store in memory is no other process's, and the demo says so."""
    done = subprocess.run(
        [sys.executable, "-m", "claimant.cli", "demo", "--store", "memory:x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("claimant: CLM071")
