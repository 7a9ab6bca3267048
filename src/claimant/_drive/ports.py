"""What a store, a ledger and an observer must offer to be driven. Stores ship one of each port they can."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Protocol

from claimant._model.capability import Capabilities
from claimant._model.events import Event
from claimant._model.record import record

if TYPE_CHECKING:
    # Requests and rows are for starts, and not for declarations: together they cost as much as all the rest.
    from claimant._model.ops import StoreReply, StoreRequest
    from claimant._model.records import LedgerReply, LedgerRequest
    from claimant._model.rows import JobRow, RunRow, SkipRow, TallyRow


@record
class LeaseRow:
    """One lease as the store shows it. `remaining_ms` is None for a key without a lifetime."""

    key: str
    value: str
    remaining_ms: int | None


class StorePort(Protocol):
    """A lease store for threads. Safe to call from several threads at once.

    `call` never raises for anything the server or the network did: those are replies. It returns by `until_ms`
    of the request, whatever the server does, give or take the scheduler.
    """

    capabilities: Capabilities

    def call(self, request: StoreRequest) -> StoreReply:
        """Carry out one request of `_model.ops`."""
        ...

    def scan(self, prefix: str, until_ms: int) -> Iterator[LeaseRow]:
        """The leases whose key starts with `prefix`; for people, so it may be slow and need not be a snapshot."""
        ...

    def forget(self) -> None:
        """Drop connections without speaking to the server: we are a forked child."""
        ...

    def close(self) -> None:
        """Close connections. The port may be used again; it then reconnects."""
        ...


class AsyncStorePort(Protocol):
    """The same for asyncio. Cancelling `call` is safe at any await; the connection in use is then dropped."""

    capabilities: Capabilities

    def call(self, request: StoreRequest) -> Awaitable[StoreReply]:
        """Carry out one request of `_model.ops`."""
        ...

    def forget(self) -> None:
        """Drop connections without speaking to the server."""
        ...

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        ...


class Store(Protocol):
    """One configured store: what a URL or a client object was turned into. Makes ports; opens nothing by itself."""

    capabilities: Capabilities
    deadline_ms: int
    address: str
    """Where it is, for people: never with a password."""

    def blocking(self) -> StorePort:
        """A port of its own, with connections of its own."""
        ...

    def aio(self) -> AsyncStorePort:
        """An asyncio port of its own."""
        ...


class LedgerPort(Protocol):
    """The durable record. Thread-safe. `LedgerAbsent` where it does not answer within `deadline_ms`."""

    host_local: bool
    address: str
    deadline_ms: int

    def call(self, request: LedgerRequest) -> LedgerReply:
        """Carry out one request of `_model.records`."""
        ...

    def jobs(self, job: str | None = None) -> list[JobRow]:
        """Every job that ever started or skipped in this namespace, or the one named, with its keys."""
        ...

    def tallies(self, job: str | None = None) -> list[TallyRow]:
        """Rejected attempts by job, hole and claim."""
        ...

    def now(self) -> int:
        """The ledger's clock, in epoch ms."""
        ...

    def runs(self, *, since: int = 0, job: str | None = None) -> list[RunRow]:
        """The runs that started at `since` (epoch ms on the ledger's clock) or later, oldest first."""
        ...

    def skips(self, *, since: int = 0, job: str | None = None) -> list[SkipRow]:
        """The skips of the last day, minute by minute, whose last one was at `since` or later; oldest first."""
        ...

    def forget(self) -> None:
        """Drop connections without speaking to the server: we are a forked child."""
        ...

    def close(self) -> None:
        """Close connections. The port may be used again."""
        ...


class Observer(Protocol):
    """Is told every event. What it raises is swallowed and reported once: observing never breaks a job."""

    def __call__(self, event: Event, /) -> None:
        """Take one event."""
        ...
