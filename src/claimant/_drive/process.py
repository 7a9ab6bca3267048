"""What every interpreter of one process shares: clock, randomness, observers, the breaker, the keeper's inbox."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from claimant._drive import clock
from claimant._drive.fork import on_fork
from claimant._drive.ports import Observer
from claimant._flows.breaker import Breaker, after
from claimant._model import ops
from claimant._model.events import Event
from claimant._model.ops import Request


def _below(limit: int) -> int:
    """A random number below `limit`. From the operating system, so that forked children do not repeat each other."""
    return int.from_bytes(os.urandom(8), "big") % limit if limit > 1 else 0


class Process:
    """One process's side of one store. Thread-safe."""

    def __init__(self, observers: Iterable[Observer], hand: Callable[[Any], None]) -> None:
        self.observers = tuple(observers)
        self._hand = hand
        self._faulty: set[int] = set()
        self.forget()
        on_fork(self)

    def forget(self) -> None:
        """Start over: a forked child learns for itself whether the store is there."""
        self._breaker = Breaker()
        self._lock = threading.Lock()

    @property
    def store_absent(self) -> bool:
        """Whether the breaker is open."""
        return self._breaker.open

    def handlers(self) -> dict[type[Request], Callable[[Any], Any]]:
        """The requests whose answers never wait."""
        return {
            ops.Now: lambda _: clock.now_ms(),
            ops.HostEpoch: lambda _: clock.epoch_ms(),
            ops.NewToken: lambda _: os.urandom(16).hex(),
            ops.Jitter: lambda request: _below(request.limit + 1),
            ops.Emit: lambda request: self.emit(request.event),
            ops.Gate: lambda _: not self._breaker.open,
            ops.Report: self._report,
            ops.Hand: lambda request: self._hand(request.item),
        }

    def emit(self, event: Event) -> None:
        """Tell the observers; a failing one is named once and never breaks a job."""
        for observer in self.observers:
            try:
                observer(event)
            except Exception:
                if id(observer) not in self._faulty:
                    self._faulty.add(id(observer))
                    import logging  # costs more to import than all of this module, and few processes need it here

                    logging.getLogger("claimant").exception(
                        "claimant: an observer failed on %s; its further failures are not shown", event.kind
                    )

    def _report(self, report: ops.Report) -> bool:
        if report.ok and not self._breaker.failures:
            return False
        with self._lock:
            before = self._breaker
            self._breaker = after(before, report)
            return self._breaker.open and not before.open
