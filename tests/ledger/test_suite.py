"""The shipped suite on every ledger, bare and behind the spool."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from claimant._drive.ports import LedgerPort
from claimant.ledger import Spooled
from claimant.testing.ledger_suite import LedgerSuite
from tests.ledger.conftest import Open


class TestSqlite(LedgerSuite):
    @pytest.fixture
    def open_one(self, opened: Open, sqlite_url: str) -> Callable[[str], LedgerPort]:
        return lambda namespace: opened(sqlite_url, namespace)


class TestPostgres(LedgerSuite):
    @pytest.fixture
    def open_one(self, opened: Open, pg_url: str) -> Callable[[str], LedgerPort]:
        return lambda namespace: opened(f"{pg_url}?deadline=15s", namespace)  # the machine may be busy


class TestSpooled(LedgerSuite):
    @pytest.fixture
    def open_one(self, opened: Open, sqlite_url: str) -> Callable[[str], LedgerPort]:
        return lambda namespace: Spooled(opened(sqlite_url, namespace))
