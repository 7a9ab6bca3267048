"""`stopping` for a loop on an event loop. Apart from it, because it imports asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from claimant._drive import clock
from claimant._drive.stopping import Stopping, Table
from claimant._model.ops import Request, SleepUntil


def stoppable(table: Table, stop: asyncio.Event) -> dict[type[Request], Callable[[Any], Any]]:
    """`table`, with sleeps that end when told to stop."""

    async def sleep_until(request: SleepUntil) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0, request.at_ms - clock.now_ms()) / 1_000):
                await stop.wait()
        if stop.is_set():
            raise Stopping

    return {**table, SleepUntil: sleep_until}


@contextlib.contextmanager
def on_signals() -> Iterator[asyncio.Event]:
    """Be told by SIGTERM, on the main thread's loop, where nobody listens to it yet. SIGINT is asyncio's: it cancels."""
    stop = asyncio.Event()
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not ours:
        yield stop
        return
    loop = asyncio.get_running_loop()

    def told() -> None:
        stop.set()
        # A second one ends the program as ever.
        loop.remove_signal_handler(signal.SIGTERM)

    try:
        loop.add_signal_handler(signal.SIGTERM, told)
    except NotImplementedError:
        # A loop that takes no signals (Windows).
        yield stop
        return
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
