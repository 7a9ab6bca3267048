"""Faults for tests of jobs: a store that can be switched off, and a claim in somebody else's hands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from claimant import Claimant, NotDone, Refused
from claimant._drive import clock
from claimant._drive.ports import AsyncStorePort, LeaseRow, Store, StorePort
from claimant._model.names import job_key, key_text
from claimant._model.operation import part_text
from claimant._model.ops import Create, Granted, Release, Renew, StoreAbsent, StoreReply, StoreRequest
from claimant._model.value import LeaseValue

SOMEBODY = LeaseValue("f" * 32, 60_000, "somebody-else:1")


class Switched:
    """A `Store` in front of another one, that does not answer while `away` is True."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.capabilities = store.capabilities
        self.deadline_ms = store.deadline_ms
        self.address = store.address
        self.away = False

    def blocking(self) -> StorePort:
        """A port that asks the switch first."""
        return _Port(self, self.store.blocking())

    def aio(self) -> AsyncStorePort:
        """The same for asyncio."""
        return _AsyncPort(self, self.store.aio())


def _off(request: StoreRequest) -> StoreReply:
    reply = StoreAbsent("switched off by the test")
    return tuple(reply for _ in request.items) if isinstance(request, Renew) else reply


class _Port:
    def __init__(self, switch: Switched, port: StorePort) -> None:
        self._switch, self._port, self.capabilities = switch, port, port.capabilities

    def call(self, request: StoreRequest) -> StoreReply:
        return _off(request) if self._switch.away else self._port.call(request)

    def scan(self, prefix: str, until_ms: int) -> Iterator[LeaseRow]:
        return self._port.scan(prefix, until_ms)

    def forget(self) -> None:
        self._port.forget()

    def close(self) -> None:
        self._port.close()


class _AsyncPort:
    def __init__(self, switch: Switched, port: AsyncStorePort) -> None:
        self._switch, self._port, self.capabilities = switch, port, port.capabilities

    async def call(self, request: StoreRequest) -> StoreReply:
        return _off(request) if self._switch.away else await self._port.call(request)

    def forget(self) -> None:
        self._port.forget()

    async def aclose(self) -> None:
        await self._port.aclose()


@contextmanager
def store_absent(claims: Claimant) -> Iterator[None]:
    """The store of `claims` does not answer inside the block. `claims` must have been made with a `Switched` store."""
    switch = claims.store
    if not isinstance(switch, Switched):
        raise Refused(
            "CLM070", "absent() needs Claimant(Switched(open_store(url)), …); the `claims` fixture is one"
        )
    switch.away = True
    try:
        yield
    finally:
        switch.away = False
        # What the process learned of the outage is forgotten too, so that the next start of the test claims again.
        claims._wiring.forget_outage()  # noqa: SLF001  a test of claimant's own fixture


@contextmanager
def held_by_another(claims: Claimant, name: str, **key: object) -> Iterator[None]:
    """Somebody else holds job `name` (with these key parameters, in the job's order) inside the block."""
    parts = {part: part_text(value, what=part, name=name) for part, value in key.items()}
    lease, value = job_key(claims.namespace, name, key_text(parts)), SOMEBODY.encode()
    port = claims.store.blocking()
    until = clock.now_ms() + 5_000
    reply = port.call(Create(lease, value, SOMEBODY.lifetime_ms, until))
    if not isinstance(reply, Granted):
        raise NotDone(f"{name}: cannot be held by another here: {reply}", retry_in=1.0, name=name)
    try:
        yield
    finally:
        port.call(Release(lease, value, until + 60_000))
        port.close()
