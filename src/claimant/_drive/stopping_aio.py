"""`stopping` for a loop on an event loop. Apart from it, because it imports asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

from claimant._drive import clock, stopping
from claimant._drive.signals import listeners
from claimant._drive.stopping import Stopping, Table
from claimant._model.ops import Call, Request, SleepUntil


class AwaitedCancelled(Exception):
    """What a loop's body awaited was cancelled by somebody, and the loop was not: a failure of the body."""


def stoppable(table: Table, stop: asyncio.Event) -> dict[type[Request], Callable[[Any], Any]]:
    """`table`, with sleeps that end when told to stop, and bodies that cannot pass for a cancelled loop."""

    async def sleep_until(request: SleepUntil) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, request.at_ms - clock.now_ms()) / 1_000):
                await stop.wait()
        if stop.is_set():
            raise Stopping

    async def call(request: Call) -> Any:
        # Per call: a library that swallows a cancellation may leave it counted.
        before = _cancellations()
        try:
            return await table[Call](request)
        except asyncio.CancelledError as error:
            if _cancellations() > before:
                raise
            raise AwaitedCancelled(
                "the body awaited a task or future that was cancelled; the loop itself was not"
            ) from error

    return {**table, SleepUntil: sleep_until, Call: call}


def _cancellations() -> int:
    """How often the current task was cancelled; who takes one back, like a timeout that has expired, counts it down."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


@contextlib.contextmanager
def on_signals() -> Iterator[asyncio.Event]:
    """Be told by SIGTERM, on the main thread's loop, where nobody else listens to it. SIGINT is asyncio's: it cancels."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    waking: asyncio.TimerHandle

    def tell() -> None:
        # As asyncio's own handler of SIGINT does: it wakes a loop that sleeps. A closed loop has nobody to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)

    def look_again() -> None:
        nonlocal waking
        waking = loop.call_later(stopping.LOOK_AGAIN_S, look_again)

    with listeners.told(tell, (signal.SIGTERM,)):
        waking = loop.call_later(stopping.LOOK_AGAIN_S, look_again)
        try:
            yield stop
        finally:
            waking.cancel()
