"""A bank on each database in turn."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest

from claimant import guards
from tests.testing.bank import Bank


@pytest.fixture(params=["sqlite", "postgres"])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    """A bank on each database in turn."""
    if request.param == "sqlite":
        path = tmp_path / "bank.db"
        return Bank(f"sqlite:{path}", lambda: sqlite3.connect(path, timeout=20))
    return request.getfixturevalue("pg_bank")


@pytest.fixture
def pg_bank(pg_dsn: str) -> Bank:
    """A bank on PostgreSQL."""
    guards.init(pg_dsn)
    return Bank(pg_dsn, lambda: psycopg.connect(pg_dsn))
