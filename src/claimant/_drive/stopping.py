"""How a loop is told to stop: where it sleeps, and nowhere else, so that a body that is running ends first."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from claimant._drive import clock
from claimant._drive.signals import LISTENED, listeners
from claimant._model.ops import Request, SleepUntil

Table = Mapping[type[Request], Callable[[Any], Any]]


class Stopping(BaseException):
    """Thrown into a loop that was told to stop. No `Exception`: nothing on its way may take it for a failure."""


class Stop(Protocol):
    """What a loop waits on: a `threading.Event`, or `Signalled`."""

    def wait(self, timeout: float) -> bool:
        """Wait for `timeout` seconds at most. Whether to stop."""
        ...


LOOK_AGAIN_S = 5.0
"""Python runs handlers between two of its steps, and a wait is one: what came just before it, or to another thread, is seen then."""


class Signalled:
    """Set by a signal's handler, which may interrupt its own `wait`: an Event's lock would be taken twice by one thread."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = False

    def set(self, *_: object) -> None:
        """Tell it to stop. Reentrant."""
        self._stopped = True
        self._told.put(None)

    def wait(self, timeout: float) -> bool:
        """See `Stop.wait`."""
        ends = clock.now_ms() + timeout * 1_000
        while not self._stopped and (left := (ends - clock.now_ms()) / 1_000) > 0:
            with contextlib.suppress(queue.Empty):
                self._told.get(timeout=min(left, LOOK_AGAIN_S))
        return self._stopped


def stoppable(table: Table, stop: Stop) -> dict[type[Request], Callable[[Any], Any]]:
    """`table`, with sleeps that end when told to stop."""

    def sleep_until(request: SleepUntil) -> None:
        if stop.wait(max(0, request.at_ms - clock.now_ms()) / 1_000):
            raise Stopping

    return {**table, SleepUntil: sleep_until}


@contextlib.contextmanager
def on_signals() -> Iterator[Signalled]:
    """Be told by SIGTERM and SIGINT, on the main thread, where nobody else listens to them. A second one ends as ever."""
    stop = Signalled()
    with listeners.told(stop.set, LISTENED):
        yield stop
