"""One daemon thread that carries out blocking calls in order, for callers that must not block or must not wait for ever.

It is never an executor of an event loop: those are joined when the loop closes, and one name that never resolves
would then keep `asyncio.run` from returning. A daemon thread is simply left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from claimant._drive.fork import on_fork

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class Worker:
    """A thread that starts with the first call. `submit` never blocks; waiting is the caller's, on the future."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.forget()
        on_fork(self)

    def forget(self) -> None:
        """Start over without the thread: it did not survive the fork."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have `work()` called on the thread. A future that is cancelled before its turn is passed over."""
        from concurrent.futures import (
            Future,  # by the first call: it brings logging, and many processes need neither
        )

        future: Future[T] = Future()
        self._queue.put((future, work))
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(
                        target=self._serve, args=(self._queue,), name=self._name, daemon=True
                    )
                    thread.start()
                    self._thread = thread
        return future

    @staticmethod
    def _serve(queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]]]) -> None:
        while True:
            future, work = queue.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, work
