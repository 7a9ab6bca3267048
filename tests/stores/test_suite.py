"""The conformance suite, on every store that ships, and through every kind of ready-made client."""

from __future__ import annotations

import asyncio
import uuid
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from claimant._drive.ports import Store
from claimant.stores import open_store
from claimant.stores.memory import MemoryStore
from claimant.stores.sqlite import SqliteStore
from claimant.testing.store_suite import StoreSuite


class Moved:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


class OnMovedClock(StoreSuite):
    """The suite without real time."""

    late_ms = 4

    @pytest.fixture(autouse=True)
    def clock(self) -> Moved:
        self.moved = Moved()
        return self.moved

    def pass_ms(self, ms: int) -> None:
        self.moved.ms += ms

    def clock_ms(self) -> int:
        return self.moved.ms


class TestMemory(OnMovedClock):
    @pytest.fixture
    def store(self, clock: Moved) -> Store:
        return MemoryStore(uuid.uuid4().hex, now_ms=clock)


class TestSqlite(OnMovedClock):
    @pytest.fixture
    def store(self, clock: Moved, tmp_path: Path) -> Store:
        return SqliteStore(str(tmp_path / "leases.db"), now_ms=clock)


class TestSqliteInRealTime(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(f"sqlite:{tmp_path / 'leases.db'}")


class TestValkey(StoreSuite):
    @pytest.fixture
    def store(self, valkey_url: str) -> Store:
        return open_store(valkey_url.replace("redis://", "valkey://"))


class TestRedis7(StoreSuite):
    @pytest.fixture
    def store(self, redis7_url: str) -> Store:
        return open_store(redis7_url)


class TestReadyMade(StoreSuite):
    """Clients of both libraries, sync and async, decoding or not, on Valkey."""

    late_ms = 600

    @pytest.fixture(
        params=["redis", "redis-decoding", "redis-aio", "valkey", "valkey-decoding", "valkey-aio"]
    )
    def store(self, request: pytest.FixtureRequest, valkey_url: str) -> Store:
        library, _, how = request.param.partition("-")
        root = import_module(f"{library}.asyncio" if how == "aio" else library)
        kind: Any = root.Redis if library == "redis" else root.Valkey
        client = kind.from_url(valkey_url, decode_responses=how == "decoding")
        store = open_store(client)
        if how == "aio":
            asyncio.run(client.aclose())
        else:
            client.close()
        return store
