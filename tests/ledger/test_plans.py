"""A job's start stays as fast with a million runs as with one: every statement of it finds its rows by an index."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from claimant._model.records import Begin, CloseSlot, SlotState
from claimant.ledger import postgres, reading, sqlite
from claimant.ledger.pages import Sql
from claimant.ledger.sqlite import SqliteLedger
from claimant.testing.ledger_rows import SLOT, answer, ended, skipped, started
from tests.ledger.conftest import Open


def every_request() -> Iterator[Any]:
    """Each request, in each of its forms."""
    run, late, failed = started(slot=SLOT), started(slot=SLOT), started(slot="b")
    yield Begin(run, close_at_start=True)
    yield Begin(failed)
    yield SlotState("rebuild-index", "", SLOT)
    yield ended(run, with_start=False, answers=(answer(), answer("applied")))
    yield ended(failed, "failed")
    yield ended(late)
    yield ended(started())
    yield CloseSlot(run.run_id)
    yield skipped()


def test_sqlite_searches_and_never_scans(
    sqlite_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No statement of a start, an end or a skip scans a table of the embedded ledger."""
    seen: list[Sql] = []
    execute = sqlite._execute

    def spy(connection, sql):
        seen.append(sql)
        return execute(connection, sql)

    monkeypatch.setattr(sqlite, "_execute", spy)
    ledger = opened(sqlite_url)
    for request in every_request():
        ledger.call(request)
    ledger.close()
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:"))) as connection:
        connection.create_function("claimant_now", 0, lambda: 0)
        plans = {
            sql.text: [
                row[3]
                for row in connection.execute(
                    "EXPLAIN QUERY PLAN " + sql.text.replace("{lock}", ""), sql.params
                )
            ]
            for sql in seen
        }
    assert len(plans) > 15
    assert sum("SEARCH" in step for plan in plans.values() for step in plan) > 15
    [overlap] = [plan for text, plan in plans.items() if "u.ended IS NULL" in text]
    assert any("claimant_runs_open" in step for step in overlap), "unfinished runs are looked for among all"
    scans = {text: step for text, plan in plans.items() for step in plan if step.startswith("SCAN")}
    assert {
        step for step in scans.values() if step not in ("SCAN o", "SCAN CONSTANT ROW", "SCAN (subquery-3)")
    } == set()


def test_postgresql_searches_and_never_scans(
    pg_url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No statement of a start, an end or a skip needs a sequential scan in PostgreSQL."""
    seen: list[Sql] = []
    rows = postgres._rows

    def spy(connection, before, statements):
        seen.extend(statements)
        return rows(connection, before, statements)

    monkeypatch.setattr(postgres, "_rows", spy)
    ledger = opened(pg_url)
    for request in every_request():
        ledger.call(request)
    plans = {}
    with psycopg.connect(pg_url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        # With scans made dear, one that remains has no index to stand in for it.
        connection.execute("SET enable_seqscan = off")
        for sql in seen:
            if sql.text != "COMMIT":
                plans[sql.text] = "\n".join(
                    str(row[0]) for row in rows(connection, "EXPLAIN ", [Sql(sql.text, sql.params)])
                )
    assert len(plans) > 15
    assert sum("Index" in plan for plan in plans.values()) > 8
    [overlap] = [plan for text, plan in plans.items() if "u.ended IS NULL" in text]
    assert "claimant_runs_open" in overlap, "unfinished runs are looked for among all"
    assert [plan for plan in plans.values() if "Seq Scan" in plan] == []


def test_status_does_not_read_the_history(sqlite_url: str, opened: Open) -> None:
    """`jobs` looks at totals and at runs without an end; `runs` and `tallies` start from the period and the rejections."""
    opened(sqlite_url).call(skipped())
    expected = {
        reading._JOBS: {"SCAN j"},
        reading._OPEN: {"SCAN r USING INDEX claimant_runs_open"},
        reading._TALLIES: {"SCAN a USING INDEX claimant_answers_rejected"},
        reading._RUNS: set(),
        reading._ANSWERS: set(),
    }
    about: tuple[Any, ...] = ("shop", "shop", None, None)
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:"))) as connection:
        connection.create_function("claimant_now", 0, lambda: 0)
        for text, scans in expected.items():
            sql = text.replace("{added}", "")
            params = about if text.count("?") == len(about) else (0, *about)
            plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, params)]
            found = {step for step in plan if step.startswith("SCAN")} - {"SCAN (subquery-2)"}
            assert found <= scans | {"SCAN j", "SCAN (subquery-3)"}, plan
            if text in (reading._RUNS, reading._ANSWERS):
                assert any("claimant_runs_by_time (started>?)" in step for step in plan), plan


def test_skips_of_months_take_a_days_room(tmp_path: Path) -> None:
    """A skip every minute for three days, and a thousand within one, leave 1,440 rows; the latest day is the one that is kept."""
    now = [1_796_000_040_000]
    ledger = SqliteLedger(tmp_path / "l.db", namespace="", deadline_ms=1_000, epoch_ms=lambda: now[0])
    for _ in range(3 * 1_440):
        now[0] += 60_000
        ledger.call(skipped())
    for _ in range(999):
        ledger.call(skipped())
    assert ledger.call(skipped()) == 3 * 1_440 + 1_000
    rows = ledger.skips()
    assert len(rows) == 1_440
    assert min(row.first for row in rows) == now[0] - 1_439 * 60_000
    assert sum(row.count for row in rows) == 1_440 + 1_000
    ledger.close()
