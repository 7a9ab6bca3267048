"""Opening a connection within a bounded time, for drivers that may wait for minutes.

The wait happens on a daemon thread of its own: one that never ends is left behind and keeps nothing from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from claimant.guards import sessions

T = TypeVar("T")


def within(work: Callable[[], T], dispose: Callable[[T], object]) -> T:
    """`work()`, or `TimeoutError` after `sessions.CONNECT_S`; what comes later than that is disposed of."""
    future: Future[T] = Future()

    def carry_out() -> None:
        try:
            result = work()
        except BaseException as error:
            if not future.cancelled():
                future.set_exception(error)
            return
        if future.set_running_or_notify_cancel():
            future.set_result(result)
        else:
            dispose(result)

    threading.Thread(target=carry_out, name="claimant-connect", daemon=True).start()
    try:
        return future.result(sessions.CONNECT_S)
    except TimeoutError:
        if not future.cancel() and future.done():
            return future.result()
        raise TimeoutError(f"no connection within {sessions.CONNECT_S:g} s") from None
