"""An asyncio port made of a blocking one: its calls run in order on one daemon thread.

For stores that can only block (a file), and for loops that cannot watch sockets. The loop waits for the answer at
most until the request's deadline, and never for the thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from claimant._drive.clock import now_ms
from claimant._drive.ports import StorePort
from claimant._drive.worker import Worker
from claimant._model.ops import (
    Create,
    Granted,
    Release,
    Renew,
    StoreAbsent,
    StoreReply,
    StoreRequest,
    StoreUnknown,
)

GRACE_MS = 25
"""The blocking port ends at the deadline by itself; its answer says more than our own impatience."""

CLOSE_MS = 1_000


class Offloaded:
    """`port`, awaited. The thread is called `name`."""

    def __init__(self, port: StorePort, name: str) -> None:
        self._port = port
        self._worker = Worker(name)
        self.capabilities = port.capabilities

    async def call(self, request: StoreRequest) -> StoreReply:
        """Carry out one request by its `until_ms`, a moment more if the thread is about to answer."""
        until_ms: int = request.until_ms  # type: ignore[attr-defined]
        work = self._worker.submit(lambda: self._port.call(request))
        try:
            await done_by(work, until_ms + GRACE_MS)
        except BaseException:
            self._abandon(work, request)
            raise
        if work.done():
            return work.result()
        if work.cancel():
            return _each(
                request, StoreAbsent("the store's thread was busy with an earlier request until the deadline")
            )
        return _each(request, StoreUnknown("the store did not answer in time"))

    def _abandon(self, work: Future[StoreReply], request: StoreRequest) -> None:
        """The caller was cancelled: a create that is carried out all the same is taken back by the same thread."""
        if work.cancel() or not isinstance(request, Create):
            return
        port, worker = self._port, self._worker

        def take_back(done: Future[StoreReply]) -> None:
            if done.exception() is None and isinstance(done.result(), Granted):
                later_ms = now_ms() + max(request.lifetime_ms // 3, 1)
                worker.submit(lambda: port.call(Release(request.key, request.value, later_ms)))

        work.add_done_callback(take_back)

    def forget(self) -> None:
        """We are a forked child."""
        self._port.forget()

    async def aclose(self) -> None:
        """Close the port, on its thread; a thread that is stuck is not waited for."""
        await done_by(self._worker.submit(self._port.close), now_ms() + CLOSE_MS)


async def done_by(work: Future[Any], until_ms: int) -> None:
    """Wait for a thread's `work` until the deadline. The loop keeps no tie to that thread, not even when it closes."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(_wake, came)

    work.add_done_callback(tell)
    await asyncio.wait([came], timeout=max(0, until_ms - now_ms()) / 1_000)


def _each(request: StoreRequest, reply: StoreAbsent | StoreUnknown) -> StoreReply:
    return tuple(reply for _ in request.items) if isinstance(request, Renew) else reply


def _wake(came: asyncio.Future[None]) -> None:
    if not came.done():
        came.set_result(None)
