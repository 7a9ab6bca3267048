"""Ledgers for the tests of this folder: each is closed at the test's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from claimant._drive.ports import LedgerPort
from claimant.ledger import init, open_ledger

Open = Callable[..., LedgerPort]


@pytest.fixture
def opened() -> Iterator[Open]:
    """`open_ledger`, with a close at the end."""
    made: list[LedgerPort] = []

    def open_one(target: str, namespace: str = "shop") -> LedgerPort:
        made.append(open_ledger(target, namespace=namespace))
        return made[-1]

    yield open_one
    for ledger in made:
        ledger.close()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A ledger file that is not there yet."""
    return f"sqlite:{tmp_path / 'ledger.db'}"


@pytest.fixture
def pg_url(pg_dsn: str) -> str:
    """An empty ledger in PostgreSQL."""
    init(pg_dsn)
    return pg_dsn


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """A new ledger of each kind in turn."""
    return request.getfixturevalue({"sqlite": "sqlite_url", "postgresql": "pg_url"}[request.param])
