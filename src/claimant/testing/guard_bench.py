"""What a guard suite needs to know of one kind of handle: how to have one, how to use it, how to look from outside.

Scenarios are written once, as coroutines. A bench for plain handles drives them on threads, one for asyncio on a loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from claimant._model.events import Event
from claimant._model.operation import identify
from claimant.guards import Context, Once, Said, once, once_aio, once_blocking

T = TypeVar("T")
PATIENCE_S = 20.0
DEBIT = "INSERT INTO debits (order_id, amount) VALUES ({order:d}, {amount:d})"
CHARGE = "INSERT INTO notes (text) VALUES ('charged')"


@dataclass(frozen=True)
class Caller:
    """A handle in a transaction of the caller's own."""

    handle: Any
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]


class Gate:
    """Opened once by one side, waited for by the other, on threads or on a loop."""

    def __init__(self, *, waits: bool) -> None:
        self._loop = asyncio.Event() if waits else None
        self._thread = threading.Event()

    def open(self) -> None:
        """Let everybody through."""
        self._thread.set()
        if self._loop is not None:
            self._loop.set()

    async def passed(self) -> None:
        """Wait until it is open."""
        if self._loop is not None:
            await asyncio.wait_for(self._loop.wait(), PATIENCE_S)
        elif not self._thread.wait(PATIENCE_S):
            raise TimeoutError("the gate was never opened")


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Carry a coroutine out that never waits for a loop."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a plain scenario waited for an event loop")


class Bench(ABC):
    """One kind of handle on one database. `waits`: attempts are made on an event loop.

    The database has a table `debits (order_id INTEGER NOT NULL, amount INTEGER NOT NULL CHECK (amount > 0))` with
    the unique index `one_debit` on order_id, a table `notes (text TEXT NOT NULL)` with a plain index `plain_notes`, and a table `receipts (number INTEGER NOT NULL
    UNIQUE)`; on debits there is a partial unique index `some_debits` as well. All are empty.
    """

    waits = False
    url: str
    """The database, for looking at it from outside."""
    db: Any
    """What `once()` is given."""
    forbids_commit: tuple[type[BaseException], ...] = ()
    """What the driver itself raises for a commit inside the effect, if it does."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._moment = threading.Event()

    # -- what a subclass says

    @abstractmethod
    def idle(self) -> AbstractAsyncContextManager[Any]:
        """A handle for which the guard opens its own transaction."""

    def begun(self) -> AbstractAsyncContextManager[Caller]:
        """A handle in an open transaction; not asked of kinds that are never joined."""
        raise NotImplementedError

    @abstractmethod
    async def execute(self, tx: Any, sql: str) -> Any:
        """Run `sql` on what an effect is given."""

    @abstractmethod
    async def commit(self, tx: Any) -> None:
        """Commit as a careless effect would."""

    @abstractmethod
    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What others see of the database: the rows of `sql`, on a connection apart from all handles."""

    def blocked(self) -> bool:
        """Whether somebody waits for a lock in the database now; True where that cannot be seen."""
        return True

    # -- what the suite uses

    def guard(self, **options: Any) -> Once:
        """A guard for this database."""
        return once(self.db, **options)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry a scenario out."""
        return asyncio.run(work) if self.waits else drive(work)

    def gate(self) -> Gate:
        """A closed gate."""
        return Gate(waits=self.waits)

    def effect(self, body: Callable[[Any], Coroutine[Any, Any, T]]) -> Callable[[Any], Any]:
        """`body` as the effect of this colour."""
        return body if self.waits else lambda tx: drive(body(tx))

    def debit(self, order: int = 1, amount: int = 5, result: Any = "ok") -> Callable[[Any], Any]:
        """An effect that is harmful when done twice."""

        async def body(tx: Any) -> Any:
            await self.execute(tx, DEBIT.format(order=order, amount=amount))
            return result

        return self.effect(body)

    def charge(self, result: Any = "ok") -> Callable[[Any], Any]:
        """An effect that nothing but the guard keeps from happening twice: a note."""

        async def body(tx: Any) -> Any:
            await self.execute(tx, CHARGE)
            return result

        return self.effect(body)

    async def attempt(
        self,
        guard: Once,
        handle: Any,
        effect: Callable[[Any], Any],
        *,
        order: int = 1,
        run_id: str,
        fingerprint: bytes = b"",
    ) -> Said[Any]:
        """One attempt at the operation of `order`."""
        context = Context("debit-wallet", "money", run_id, "deadline passed", self.events.append)
        operation = identify("debit-wallet", {"order_id": str(order)}, fingerprint)
        if self.waits:
            return await once_aio(guard, handle, effect, operation, context)
        return once_blocking(guard, handle, effect, operation, context)

    async def together(self, *works: Callable[[], Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """Carry several out at once; their results or errors, in order."""
        if self.waits:
            return list(await asyncio.gather(*(work() for work in works), return_exceptions=True))
        results: list[T | BaseException] = [TimeoutError("never ended")] * len(works)

        def one(at: int) -> None:
            try:
                results[at] = drive(works[at]())
            except BaseException as error:
                results[at] = error

        threads = [threading.Thread(target=one, args=(at,), daemon=True) for at in range(len(works))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S * 3)
        return results

    async def until_blocked(self) -> None:
        """Wait until somebody waits for a lock in the database."""
        end = time.monotonic() + PATIENCE_S
        while not self.blocked():
            if time.monotonic() > end:
                raise TimeoutError("nobody ever waited for a lock")
            await self.pause()

    async def pause(self) -> None:
        """A moment, for looking again."""
        if self.waits:
            await asyncio.sleep(0.01)
        else:
            self._moment.wait(0.01)

    def notes(self) -> int:
        """How many notes others see."""
        return int(self.rows("SELECT count(*) FROM notes")[0][0])

    def debits(self) -> int:
        """How many debits others see."""
        return int(self.rows("SELECT count(*) FROM debits")[0][0])

    def guard_rows(self) -> int:
        """How many guard rows others see; none where the table was never made."""
        try:
            self.rows("SELECT 1 FROM claimant_guard LIMIT 1")
        except Exception:
            return 0
        return int(self.rows("SELECT count(*) FROM claimant_guard")[0][0])
