"""Leases in this process's memory: for tests, demonstrations and one process. It passes the suite of the real stores.

Two stores of one name are one store. A forked child is another process, and sees another, empty store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from claimant._drive import clock
from claimant._drive.fork import on_fork
from claimant._drive.ports import LeaseRow
from claimant._model.capability import Capabilities
from claimant._model.ops import (
    Create,
    Granted,
    Held,
    NotOurs,
    Peek,
    Release,
    Released,
    Renew,
    Renewed,
    RenewReply,
    Repair,
    StoreReply,
    StoreRequest,
    Vacant,
)

CAPABILITIES = Capabilities(
    name="memory",
    shared=False,
    host_local=True,
    survives_restart=False,
    deadline_clock="this process's clock, which counts suspend",
    resolution_ms=1,
    early_removal=False,
)
SWEEP_EVERY = 256
"""Creates between two clean-ups of leases that have lapsed."""

Rows = dict[str, tuple[str, int]]


class _Table:
    """The leases of one name: value, and when it lapses."""

    def __init__(self) -> None:
        self.forget()
        on_fork(self)

    def forget(self) -> None:
        """Start over, empty."""
        self.lock = threading.Lock()
        self.rows: Rows = {}
        self.creates = 0


_tables: dict[str, _Table] = {}
_making = threading.Lock()


class MemoryStore:
    """The store `memory:NAME` of this process. `now_ms` replaces the clock in tests."""

    capabilities = CAPABILITIES

    def __init__(
        self, name: str = "", *, deadline_ms: int = 250, now_ms: Callable[[], int] = clock.now_ms
    ) -> None:
        with _making:
            self._table = _tables.setdefault(name, _Table())
        self._now_ms = now_ms
        self.deadline_ms = deadline_ms
        self.address = f"memory:{name}"

    def blocking(self) -> MemoryPort:
        """A port for threads."""
        return MemoryPort(self._table, self._now_ms)

    def aio(self) -> MemoryAioPort:
        """A port for asyncio."""
        return MemoryAioPort(self.blocking())


class MemoryPort:
    """The port for threads."""

    capabilities = CAPABILITIES

    def __init__(self, table: _Table, now_ms: Callable[[], int]) -> None:
        self._table = table
        self._now_ms = now_ms

    def call(self, request: StoreRequest) -> StoreReply:
        """Carry out one request. It never waits."""
        with self._table.lock:
            now = self._now_ms()
            match request:
                case Create(key, value, lifetime_ms):
                    return self._create(key, value, lifetime_ms, now)
                case Renew(items):
                    return tuple(self._set(item.key, item.value, item.lifetime_ms, now) for item in items)
                case Repair(key, value, lifetime_ms):
                    return self._set(key, value, lifetime_ms, now)
                case Release(key, value):
                    held = self._live(key, now)
                    if held is None or held[0] != value:
                        return NotOurs()
                    del self._table.rows[key]
                    return Released()
                case Peek(key):
                    held = self._live(key, now)
                    return Vacant() if held is None else Held(held[0], held[1] - now)
        raise TypeError(f"{type(request).__name__} is not a request to a store")

    def _live(self, key: str, now: int) -> tuple[str, int] | None:
        held = self._table.rows.get(key)
        return held if held is not None and held[1] > now else None

    def _create(self, key: str, value: str, lifetime_ms: int, now: int) -> StoreReply:
        held = self._live(key, now)
        if held is not None:
            return Granted(recognised=True) if held[0] == value else Held(held[0], held[1] - now)
        self._table.rows[key] = (value, now + lifetime_ms)
        self._table.creates += 1
        if self._table.creates % SWEEP_EVERY == 0:
            self._table.rows = {key: row for key, row in self._table.rows.items() if row[1] > now}
        return Granted()

    def _set(self, key: str, value: str, lifetime_ms: int, now: int) -> RenewReply:
        held = self._live(key, now)
        if held is None or held[0] != value:
            return NotOurs()
        self._table.rows[key] = (value, now + lifetime_ms)
        return Renewed()

    def scan(self, prefix: str, until_ms: int) -> Iterator[LeaseRow]:  # noqa: ARG002
        """The live leases whose key starts with `prefix`. It never waits, whatever `until_ms` says."""
        with self._table.lock:
            now = self._now_ms()
            rows = [
                LeaseRow(key, value, end - now) for key, (value, end) in self._table.rows.items() if end > now
            ]
        return iter(sorted((row for row in rows if row.key.startswith(prefix)), key=lambda row: row.key))

    def forget(self) -> None:
        """There is no connection; the table forgets by itself."""

    def close(self) -> None:
        """There is no connection; the leases stay."""


class MemoryAioPort:
    """The port for asyncio."""

    capabilities = CAPABILITIES

    def __init__(self, port: MemoryPort) -> None:
        self._port = port

    async def call(self, request: StoreRequest) -> StoreReply:
        """Carry out one request. It never waits."""
        return self._port.call(request)

    def forget(self) -> None:
        """There is no connection."""

    async def aclose(self) -> None:
        """There is no connection; the leases stay."""
