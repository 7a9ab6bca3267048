"""A few connections to PostgreSQL for a whole process, and a limit in time on everything that is done with them.

Never one connection per job start: the threads of a process share at most four, and a server that has no room for
one more is asked again, jittered, until the deadline. Names are resolved and connections made on one daemon thread,
so that a resolver that never answers holds up nobody. A connection whose deadline passes is cut, which wakes the
thread that waits on it: a frozen server answers no cancel request, and its kernel still acknowledges our bytes.

A connection that nobody uses is given back: two hundred cron jobs that start in one second and then work for an hour must
not hold two hundred connections meanwhile. See `idle_ms`.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from claimant._drive import clock
from claimant._drive.fork import on_fork
from claimant._drive.worker import Worker
from claimant.ledger import forks
from claimant.ledger.schema import VERSION

if TYPE_CHECKING:
    import psycopg

SIZE = 4
"""Connections of one process. A request holds one for about a millisecond, so four serve some thousand a second."""
GROW_AGAIN_MS = 10_000
"""How long after a refusal a process makes do with the connections that it has."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Between two attempts at a server without room, at most: each is a process that the server starts for nothing, so a crowd that
asks often keeps itself waiting."""
SHORTEST_IDLE_MS = 50
LONGEST_IDLE_MS = 10_000


def idle_ms(used_for_ms: int) -> int:
    """How long a process keeps a connection that it does not use, having used the ledger for `used_for_ms`: a tenth of that.

    A process that has just come, as from cron, gives it back right after its start is recorded. One whose jobs start again
    and again keeps it between them.
    """
    return min(max(used_for_ms // 10, SHORTEST_IDLE_MS), LONGEST_IDLE_MS)


class Line:
    """One connection, and a second handle on its socket that is good for nothing but cutting it."""

    version = VERSION
    """Of the ledger's schema, as it was when the connection was made."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._plug = socket.socket(fileno=os.dup(connection.fileno()))

    def cut(self) -> None:
        """End the connection under whoever waits on it."""
        with contextlib.suppress(OSError):
            self._plug.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self._plug.close()
        with contextlib.suppress(Exception):
            self.connection.close()

    def leave_alone(self) -> None:
        """We are a forked child: close our copies of the handles, and say nothing to the server."""
        forks.leave_alone(self.connection)
        with contextlib.suppress(Exception):
            os.close(self.connection.fileno())
        self._plug.close()


class Busy(Exception):
    """Every connection was in use by other threads until the deadline."""


class Unreachable(Exception):
    """No connection could be made by the deadline. `spent`: the deadline passed, rather than a refusal came.

    `full`: the server was heard meanwhile, and had no room.
    """

    def __init__(self, reason: str, *, spent: bool, full: bool) -> None:
        super().__init__(reason)
        self.spent = spent
        self.full = full


class Lines:
    """The connections of one process to one ledger. `connect(until_ms)` makes one; it runs on our thread."""

    def __init__(
        self, connect: Callable[[int], Line], may_have_room: Callable[[Exception], bool], *, size: int = SIZE
    ) -> None:
        self._connect = connect
        self._may_have_room = may_have_room
        self._size = size
        self._worker = Worker("claimant-ledger-connect")
        self._watch = Watch()
        self._idle: list[Line] = []
        self.forget()
        on_fork(self)

    def forget(self) -> None:
        """We are a forked child: our parent's connections are not ours."""
        for line in self._idle:
            line.leave_alone()
        self._changed = threading.Condition()
        self._idle = []
        self._first_ms: int | None = None
        self._open = 0
        self._era = 0
        self._making: Future[Line] | None = None
        self._making_until_ms = 0
        self._grow_at_ms = 0
        self._failures = 0
        self._failure: Exception | None = None
        self._full = False
        self._waiting = 0

    @contextlib.contextmanager
    def taken(self, until_ms: int) -> Iterator[Line]:
        """A connection for one request. It is cut at `until_ms`, and closed unless the block ends without an exception.

        Raises `Busy` or `Unreachable`.
        """
        line = self._take(until_ms)
        era = self._era
        healthy = False
        try:
            with self._watch.over(line, until_ms):
                yield line
            healthy = True
        finally:
            with self._changed:
                keep = healthy and era == self._era
                if keep:
                    self._idle.append(line)
                    self._expire(line)
                elif era == self._era:
                    self._open -= 1
                self._changed.notify()
            if not keep:
                line.close()

    def _expire(self, line: Line) -> None:
        now = clock.now_ms()
        if self._first_ms is None:
            self._first_ms = now
        self._watch.after(line, now + idle_ms(now - self._first_ms), self._give_back)

    def _give_back(self, line: Line) -> None:
        """On the watch's thread: nobody has used it for long enough."""
        with self._changed:
            if line not in self._idle:
                return
            if self._waiting:
                # Whoever it was made for has not come to run yet, on a machine that is busy.
                self._expire(line)
                return
            self._idle.remove(line)
            self._open -= 1
            self._changed.notify()
        line.close()

    def drop_idle(self) -> None:
        """Close what is idle: one connection turned out to be dead, so the others may be."""
        with self._changed:
            lines, self._idle = self._idle, []
            self._open -= len(lines)
        for line in lines:
            line.close()

    def close(self) -> None:
        """Close every connection; those in use are closed when they come back. Later ones are made anew."""
        with self._changed:
            lines, self._idle = self._idle, []
            self._era += 1
            self._open = 0
            self._making = None
        for line in lines:
            line.close()

    def _take(self, until_ms: int) -> Line:
        with self._changed:
            failures = self._failures
            while not self._idle:
                if self._failures != failures and self._failure is not None:
                    spent = clock.now_ms() >= until_ms
                    raise Unreachable(str(self._failure), spent=spent, full=self._full) from self._failure
                now = clock.now_ms()
                if (
                    self._making is None
                    and self._open < self._size
                    and (not self._open or now >= self._grow_at_ms)
                ):
                    self._make(until_ms)
                    if self._making is None:
                        continue  # it has ended already: nobody will wake us for it
                left_ms = until_ms - now
                if self._open and left_ms <= 0:
                    raise Busy
                if not self._open and (left_ms <= 0 or (self._making and now >= self._making_until_ms)):
                    # An attempt that outlasted its own deadline is not waited for again, by nobody.
                    raise Unreachable("no connection was made in time", spent=True, full=self._full)
                self._waiting += 1
                try:
                    self._changed.wait(left_ms / 1000)
                finally:
                    self._waiting -= 1
            line = self._idle.pop()
            self._watch.keep(line)
            return line

    def _make(self, until_ms: int) -> None:
        era = self._era
        self._watch.start()

        def arrived(future: Future[Line]) -> None:
            with self._changed:
                if era != self._era or future is not self._making:
                    if future.exception() is None:
                        future.result().close()
                    return
                self._making = None
                error = future.exception()
                if error is None:
                    self._open += 1
                    self._idle.append(future.result())
                    self._expire(future.result())
                elif self._open == 0 or not isinstance(error, Exception):
                    self._failures += 1
                    self._failure = (
                        error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
                    )
                else:
                    # We have connections; that there is no room for one more is no reason to fail.
                    self._grow_at_ms = clock.now_ms() + GROW_AGAIN_MS
                self._changed.notify_all()

        self._making = self._worker.submit(lambda: self._persist(until_ms))
        self._making_until_ms = until_ms
        self._making.add_done_callback(arrived)

    def _persist(self, until_ms: int) -> Line:
        """Connect; where the server is alive but has no room, again until the deadline, each time after a random pause."""
        pause_s = SHORTEST_PAUSE_S
        while True:
            try:
                line = self._connect(until_ms)
            except Exception as error:
                self._full = self._may_have_room(error)
                if not self._full or clock.now_ms() + pause_s * 1000 >= until_ms:
                    raise
            else:
                self._full = False
                return line
            time.sleep(random.uniform(0, pause_s))  # noqa: S311 - spreads retries, hides nothing
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


class Watch:
    """One daemon thread that cuts connections at their deadlines, and gives back those that nobody uses."""

    def __init__(self) -> None:
        self.forget()
        on_fork(self)

    def forget(self) -> None:
        """Start over without the thread: it did not survive the fork."""
        self._changed = threading.Condition()
        self._until: dict[Line, int] = {}
        self._idle: dict[Line, tuple[int, Callable[[Line], None]]] = {}
        self._next_ms: int | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Have the thread: an interpreter that ends can start none."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="claimant-ledger-watch", daemon=True)
                self._thread.start()

    @contextlib.contextmanager
    def over(self, line: Line, until_ms: int) -> Iterator[None]:
        """Within the block, `line` is cut at `until_ms`. Whoever leaves it may close the line: it is not cut any more."""
        self.start()
        with self._changed:
            self._until[line] = until_ms
            self._wake(until_ms)
        try:
            yield
        finally:
            with self._changed:
                self._until.pop(line, None)

    def after(self, line: Line, at_ms: int, act: Callable[[Line], None]) -> None:
        """Have `act(line)` called at `at_ms`, on our thread, unless it is kept before."""
        with self._changed:
            self._idle[line] = (at_ms, act)
            self._wake(at_ms)

    def keep(self, line: Line) -> None:
        """Somebody uses it again."""
        with self._changed:
            self._idle.pop(line, None)

    def _wake(self, at_ms: int) -> None:
        if self._next_ms is None or at_ms < self._next_ms:
            self._changed.notify()

    def _serve(self) -> None:
        while True:
            with self._changed:
                now = clock.now_ms()
                for line in [line for line, until_ms in self._until.items() if until_ms <= now]:
                    del self._until[line]
                    line.cut()
                unused = [(line, act) for line, (at_ms, act) in self._idle.items() if at_ms <= now]
                for line, _ in unused:
                    del self._idle[line]
                if not unused:
                    due = [*self._until.values(), *(at_ms for at_ms, _ in self._idle.values())]
                    self._next_ms = min(due, default=None)
                    self._changed.wait(
                        None if self._next_ms is None else max(self._next_ms - clock.now_ms(), 0) / 1000
                    )
            # Without our lock: whoever acts takes the one of the connections, and holds it where they ask for ours.
            for line, act in unused:
                act(line)
