"""What the jobs of one `Claimant` share: its store, its ledger, its keeper, and how flows are carried out on them.

Nothing is opened, no thread starts and no interpreter is imported before the first start.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from claimant._drive.fork import on_fork
from claimant._drive.ports import AsyncStorePort, LedgerPort, Observer, Store, StorePort
from claimant._drive.process import Process
from claimant._drive.worker import Worker
from claimant._model.errors import LedgerAbsent, Refused
from claimant._model.events import Event
from claimant._model.ops import Flow, Request
from claimant._model.policy import Mode
from claimant._model.records import CloseSlot
from claimant._model.value import clean_label

if TYPE_CHECKING:
    from claimant._drive.keeper import Keeper

T = TypeVar("T")
Table = dict[type[Request], Callable[[Any], Any]]


def _unchanged(table: Table) -> Table:
    return table


class Wiring:
    """One process's side of one `Claimant`. Thread-safe."""

    def __init__(
        self, store: Store, ledger: LedgerPort, namespace: str, mode: Mode, observers: Iterable[Observer]
    ) -> None:
        self.store = store
        self.ledger = ledger
        self.namespace = namespace
        self.mode = mode
        self._process = Process(observers, self._hand)
        self._worker = Worker("claimant-ledger")
        self._keeper: Keeper | None = None
        self.forget()
        on_fork(self)

    def forget(self) -> None:
        """A forked child starts over, and owns nothing of its parent's."""
        for port in (getattr(self, "_port", None), getattr(self, "_aio_port", None)):
            if port is not None:
                port.forget()
        self.ledger.forget()
        self._label = ""
        self._ports = threading.RLock()
        self._port: StorePort | None = None
        self._aio_port: AsyncStorePort | None = None
        self._table: Table | None = None
        self._aio_table: Table | None = None

    @property
    def label(self) -> str:
        """How this process names itself as a holder: host and process id."""
        if not self._label:
            if sys.platform == "win32":
                import socket

                host = socket.gethostname()
            else:
                host = os.uname().nodename  # the same, without the import
            self._label = clean_label(f"{host}:{os.getpid()}")
        return self._label

    def refuse_host_local_slots(self, name: str, what: str) -> None:
        """Raises `Refused` (CLM050) where slots of a store that hosts share would be remembered by one host alone."""
        if self.ledger.host_local and not self.store.capabilities.host_local:
            raise Refused(
                "CLM050",
                f"{name}: {what} on a store that other hosts share ({self.store.address}) needs a ledger that they share too: "
                "with a ledger per host, each host would do each slot. Give Claimant ledger='postgresql://…'",
                name=name,
            )

    def tell_only(self, observer: Observer) -> None:
        """Have `observer` told, and nobody else, the log included."""
        self._process.observers = (observer,)

    def emit(self, event: Event) -> None:
        """Tell the observers."""
        self._process.emit(event)

    # -- carrying flows out ---------------------------------------------------------------------------------------

    def run(self, flow: Flow[T], changed: Callable[[Table], Table] = _unchanged) -> T:
        """Carry `flow` out on this thread; `changed` may answer some requests otherwise."""
        table = self._table
        if table is None:
            from claimant._drive import blocking

            with self._ports:
                if self._port is None:
                    self._port = self.store.blocking()
                self._carry_out = blocking.run
                self._table = table = blocking.handlers(self._process, self._port, self.ledger)
        return self._carry_out(flow, changed(table))

    async def arun(self, flow: Flow[T], changed: Callable[[Table], Table] = _unchanged) -> T:
        """Carry `flow` out on the running event loop; `changed` may answer some requests otherwise."""
        # asyncio costs more to import than the rest of claimant: only an asyncio program pays for it.
        from claimant._drive import aio

        table = self._aio_table
        if table is None:
            with self._ports:
                if self._aio_port is None:
                    self._aio_port = self.store.aio()
                self._aio_table = table = aio.handlers(
                    self._process, self._aio_port, self.ledger, self._worker
                )
        return await aio.run(flow, changed(table))

    def _hand(self, duty: Any) -> None:
        keeper = self._keeper
        if keeper is None:
            from claimant._drive.keeper import Keeper

            with self._ports:
                if self._keeper is None:
                    self._keeper = Keeper(self.store, self._process)
                keeper = self._keeper
        keeper.hand(duty)

    def close_slot(self, run_id: str) -> None:
        """Close the slot of a run whose caller has committed since; a ledger that is away leaves it open."""

        def close() -> None:
            try:
                self.ledger.call(CloseSlot(run_id))
            except LedgerAbsent as error:
                text = f"a slot stays open, though its work was committed ({error})"
                self.emit(Event("ledger.absent", "", text, "error", {"request": "CloseSlot"}))

        self._worker.submit(close)

    def forget_outage(self) -> None:
        """Close the breaker: the next start asks the store again at once."""
        self._process.forget()

    def move(self, store: Store, ledger: LedgerPort) -> None:
        """Use another store and ledger from the next start on. What was open on the old store is closed; for tests."""
        from concurrent.futures import wait

        # What a run handed over belongs to the ledger that it ran with.
        wait([self._worker.submit(lambda: None)], timeout=5)
        with self._ports:
            port, keeper = self._port, self._keeper
            self.store, self.ledger = store, ledger
            self._port = self._aio_port = self._keeper = None
            self._table = self._aio_table = None
        if keeper is not None:
            keeper.close(0)
        if port is not None:
            port.close()
        self._process.forget()

    # -- ending ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the keeper and close connections. What is still held lapses. May be used again."""
        if self._keeper is not None:
            self._keeper.close(self.store.deadline_ms / 1_000)
        with self._ports:
            port, self._port, self._table = self._port, None, None
        if port is not None:
            port.close()
        self.ledger.close()

    async def aclose(self) -> None:
        """`close()` under asyncio."""
        with self._ports:
            port, self._aio_port, self._aio_table = self._aio_port, None, None
        if port is not None:
            await port.aclose()
        self.close()
