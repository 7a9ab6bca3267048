"""Redis and Valkey under asyncio: one connection for each event loop, shared by that loop's tasks.

Connecting happens on the store's own thread, never in the loop's executor: a name that never resolves would keep
`asyncio.run` from returning.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from weakref import WeakKeyDictionary

from claimant._drive.clock import now_ms
from claimant._drive.connector import Connector, NotConnected, NotYet
from claimant._drive.ports import StorePort
from claimant._model.ops import StoreReply, StoreRequest
from claimant.stores.offloaded import Offloaded, done_by
from claimant.stores.redis import CAPABILITIES
from claimant.stores.redis_asking import Batch, Reply, Silence
from claimant.stores.redis_codec import not_sent, talk
from claimant.stores.redis_facts import Facts
from claimant.stores.redis_line import Answer, Line, Loop
from claimant.stores.redis_link import RedisLink


class RedisAioPort:
    """The port for asyncio."""

    capabilities = CAPABILITIES

    def __init__(self, connector: Connector[RedisLink], blocking: Callable[[], StorePort]) -> None:
        self._connector = connector
        self._facts = Facts()
        self._blocking = blocking
        self._aside: Offloaded | None = None
        self._lines: WeakKeyDictionary[Loop, Line] = WeakKeyDictionary()
        self._opening: WeakKeyDictionary[Loop, asyncio.Future[NotConnected | None]] = WeakKeyDictionary()
        self._lock = threading.Lock()  # one port may serve loops of several threads

    async def call(self, request: StoreRequest) -> StoreReply:
        """Carry out one request by its `until_ms`; what the server or the network did is a reply."""
        until_ms: int = request.until_ms  # type: ignore[attr-defined]
        if now_ms() >= until_ms:
            return not_sent(request, "the deadline had passed before anything was sent")
        loop = asyncio.get_running_loop()
        if self._aside is not None:
            return await self._aside.call(request)
        try:
            line = await self._line(loop, until_ms)
        except NotConnected as error:
            return not_sent(request, str(error))
        except NotImplementedError:
            # A loop that cannot watch sockets (Windows' proactor): the blocking port on a thread of its own.
            self._aside = Offloaded(self._blocking(), "claimant-store")
            return await self._aside.call(request)
        conversation = talk(request, self._facts)
        try:
            batch = next(conversation)
            while True:
                replies = await self._exchange(loop, line, batch, until_ms)
                if isinstance(replies, Silence):
                    batch = conversation.throw(replies)
                else:
                    batch = conversation.send(replies)
        except StopIteration as stop:
            reply: StoreReply = stop.value
            return reply

    async def _exchange(self, loop: Loop, line: Line, batch: Batch, until_ms: int) -> list[Reply] | Silence:
        answer = line.ask(loop, batch)
        timer = loop.call_later(max(0, until_ms - now_ms()) / 1_000, _too_late, answer)
        try:
            return await answer
        finally:
            timer.cancel()
            if answer.cancelled() or (answer.done() and isinstance(answer.result(), Silence)):
                line.retire()

    async def _line(self, loop: Loop, until_ms: int) -> Line:
        """This loop's connection, opened by the first task that needs it while the others wait for that."""
        while True:
            line = self._lines.get(loop)
            if line is not None and line.taking:
                return line
            opening = self._opening.get(loop)
            if opening is None:
                break
            await asyncio.wait([opening], timeout=max(0, until_ms - now_ms()) / 1_000)
            if not opening.done():
                raise self._connector.late()
            failed = opening.result()
            if failed is not None:
                raise NotConnected(str(failed))
        with self._lock:
            self._sweep()
            mine = self._opening[loop] = loop.create_future()
        failed = None
        try:
            link = await _delivered(self._connector, until_ms)
            try:
                line = Line(loop, link, self._connector.lose)
            except BaseException:
                self._connector.lose(link)
                raise
            with self._lock:
                self._lines[loop] = line
            return line
        except NotYet:
            raise  # our own deadline: those who wait with us may have a later one
        except NotConnected as error:
            failed = error
            raise
        finally:
            with self._lock:
                self._opening.pop(loop, None)
            mine.set_result(failed)

    def _sweep(self) -> None:
        """Close what loops that were closed have left behind."""
        for loop, line in list(self._lines.items()):
            if loop.is_closed():
                line.fail("the event loop was closed")

    def forget(self) -> None:
        """We are a forked child: drop what our parent uses, its loops included."""
        self._connector.forget()
        if self._aside is not None:
            self._aside.forget()
        for line in self._lines.values():
            line.open = False
        self._lines = WeakKeyDictionary()
        self._opening = WeakKeyDictionary()
        self._lock = threading.Lock()

    async def aclose(self) -> None:
        """Close the running loop's connection."""
        with self._lock:
            line = self._lines.pop(asyncio.get_running_loop(), None)
            last = not self._lines
        if line is not None:
            line.fail("the port was closed")
        if last:
            self._connector.close()
        if self._aside is not None:
            await self._aside.aclose()


def _too_late(answer: Answer) -> None:
    if not answer.done():
        answer.set_result(Silence("the server did not answer in time"))


async def _delivered(connector: Connector[RedisLink], until_ms: int) -> RedisLink:
    """A link from the connector's thread."""
    asked: Future[RedisLink] = connector.ask()
    try:
        await done_by(asked, until_ms)
    except BaseException:
        connector.leave(asked)
        raise
    if asked.done():
        return asked.result()
    connector.leave(asked)
    raise connector.late()
