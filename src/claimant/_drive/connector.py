"""Connecting, one at a time, on one daemon thread: a name that never resolves costs each caller only its deadline.

Whoever needs a link waits for the next one to become free or to be opened, up to its own deadline. What was opened
after its caller had left is kept for the next one. It never connects on the calling thread or in a loop's executor.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

from claimant._drive.clock import now_ms
from claimant._drive.fork import on_fork
from claimant._drive.worker import Worker

LONGEST_ATTEMPT_MS = 5_000
"""An attempt older than this is cut off by the next caller, so that one that hangs does not outlast its server."""
MOST_IDLE = 16
"""Idle links that are kept; as many threads seldom speak to a store at once."""


class Link(Protocol):
    """One connection to a server."""

    def open(self) -> None:
        """Connect, on the connector's thread. What it raises is the reason why there is no link."""

    def cut(self) -> None:
        """From another thread: have `open` fail soon."""

    def usable(self) -> bool:
        """Whether an idle link may still be used: the other side has neither closed it nor said anything."""
        ...

    def close(self) -> None:
        """Close it."""

    def drop(self) -> None:
        """Close the descriptor in a forked child, without a word to the server."""


L = TypeVar("L", bound=Link)


class NotConnected(Exception):
    """There is no link by the deadline. The message is for people and holds no password."""


class NotYet(NotConnected):
    """No link came by the caller's own deadline; another caller's may be later."""


class Connector(Generic[L]):
    """A pool of links, newest first, and the one attempt at a time that makes more. Thread-safe."""

    def __init__(self, make: Callable[[], L], worker: Worker, what: str) -> None:
        self._make = make
        self._worker = worker
        self._what = what
        self._links: WeakSet[L] = WeakSet()
        self._aged = False  # whether links of an earlier age may still be given back
        self._reset()
        on_fork(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: deque[L] = deque()
        self._waiting: deque[Future[L]] = deque()
        self._opening: tuple[L, float] | None = None
        self._serving = False
        self._age = object()

    def take(self, until_ms: int) -> L:
        """A link that nobody else uses. Raises `NotConnected`, at the latest at `until_ms`."""
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:
                break
            if link.usable():
                return link
            self.lose(link)
        future = self.ask()
        try:
            return future.result(max(0, until_ms - now_ms()) / 1_000)
        except NotInTime:
            pass
        except BaseException:
            self.leave(future)
            raise
        self.leave(future)
        raise self.late()

    def late(self) -> NotYet:
        """What to raise when no link came in time."""
        return NotYet(
            f"no connection to {self._what} in time: its name, the network or its greeting did not answer"
        )

    def ask(self) -> Future[L]:
        """The next link that becomes free or is opened. It must be taken, or left with `leave`."""
        future: Future[L] = Future()
        with self._lock:
            self._pass_over()
            self._waiting.append(future)
            start, self._serving = not self._serving, True
            opening = self._opening
        if opening is not None and time.monotonic() - opening[1] > LONGEST_ATTEMPT_MS / 1_000:
            opening[0].cut()
        if start:
            self._worker.submit(self._serve)
        return future

    def leave(self, future: Future[L]) -> None:
        """Give up on `ask`; a link that came meanwhile is kept for others."""
        if not future.cancel() and future.exception() is None:
            self.give(future.result())

    def give(self, link: L) -> None:
        """Hand a link back, fit for use: to whoever waits longest, else it is kept."""
        with self._lock:
            if self._aged and link not in self._links:
                kept = False
            elif self._waiting and self._hand_over(link):
                return
            else:
                kept = len(self._idle) < MOST_IDLE
                if kept:
                    self._idle.append(link)
        if not kept:
            self.lose(link)

    def lose(self, link: L) -> None:
        """Close a link that must not be used again."""
        self._links.discard(link)
        link.close()

    def close(self) -> None:
        """Close what is idle, and what is in use when it comes back. The connector may be used again."""
        with self._lock:
            idle, self._idle = self._idle, deque()
            self._links = WeakSet()
            self._age = object()
            self._aged = True
        for link in idle:
            link.close()

    def forget(self) -> None:
        """We are a forked child: drop every descriptor that our parent still uses."""
        for link in self._links:
            link.drop()
        self._links = WeakSet()
        self._reset()
        self._aged = True

    def _pass_over(self) -> None:
        while self._waiting and self._waiting[0].cancelled():
            self._waiting.popleft()

    def _hand_over(self, link: L) -> bool:
        while self._waiting:
            future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(link)
                return True
        return False

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._pass_over()
                if not self._waiting:
                    self._serving = False
                    return
                age = self._age
            error = self._open(age)
            if error is not None:
                with self._lock:
                    failed, self._waiting = self._waiting, deque()
                for future in failed:
                    if future.set_running_or_notify_cancel():
                        future.set_exception(error)

    def _open(self, age: object) -> NotConnected | None:
        """Open one link and give it away; the reason if it did not come to that."""
        link = self._make()
        self._opening = (link, time.monotonic())
        try:
            link.open()
        except NotConnected as error:
            link.close()
            return error
        except BaseException as error:
            link.close()
            return NotConnected(f"no connection to {self._what}: {type(error).__name__}")
        finally:
            self._opening = None
        with self._lock:
            current = age is self._age
            if current:
                self._links.add(link)
        if current:
            self.give(link)
        else:
            link.close()
        return None
