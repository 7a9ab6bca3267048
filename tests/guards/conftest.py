"""A PostgreSQL database with the guard's tables and an application's, shared by the tests of one worker and emptied for each."""

import os
from collections.abc import Iterator

import psycopg
import pytest

from claimant.guards import init
from tests.guards import benches
from tests.support import pg
from tests.support.shared import Shared


@pytest.fixture(scope="session")
def guard_database(postgres: Shared) -> Iterator[str]:
    """Made once: making a database takes longer than a test."""
    url = pg.create_database(postgres.url, f"guards_{os.getpid()}")
    init(url)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(benches.TABLES)
    yield url
    pg.drop_database(url)


@pytest.fixture
def guarded(guard_database: str) -> str:
    """The database's URL; its tables are empty."""
    with psycopg.connect(guard_database) as conn:
        for table in ("claimant_guard", "claimant_rejection", "debits", "notes", "receipts"):
            conn.execute(f"DELETE FROM {table}")
    return guard_database
