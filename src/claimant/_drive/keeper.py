"""The keeper: one thread per process and store that renews what this process holds, blocking and asyncio alike.

It has a connection of its own, starts with the first lease, survives every fault of its own, and is not on any
event loop, so that a blocked loop loses no lease. It is a daemon: nothing waits for it at interpreter exit.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from claimant._drive import blocking, clock
from claimant._drive.fork import on_fork
from claimant._drive.ports import Store, StorePort
from claimant._drive.process import Process
from claimant._flows.keep import Duties, Duty, keep
from claimant._model import ops
from claimant._model.holding import Tenure

_log = logging.getLogger("claimant")
CROWDED = 1_000
"""Waiting items beyond which the keeper is woken even though none is due: it drops those that were released."""


class Keeper:
    """The thread and its inbox. `hand` never blocks and never fails for reasons of the store."""

    def __init__(self, store: Store, process: Process) -> None:
        self._store = store
        self._process = process
        self._port: StorePort | None = None
        self.forget()
        on_fork(self)

    def forget(self) -> None:
        """Start over without the thread. What the parent holds is the parent's: the child's copies end here."""
        for tenure in self.tenures() if hasattr(self, "_duties") else ():
            tenure.released = True
        if self._port is not None:
            self._port.forget()
        self._port = None
        self._changed = threading.Condition(threading.Lock())
        self._inbox: deque[Duty] = deque()
        self._duties = Duties()
        self._thread: threading.Thread | None = None
        self._wake_ms: int | None = None
        self._stopping = False

    def tenures(self) -> list[Tenure]:
        """What this process holds or has just handed over."""
        waiting = [duty for duty in tuple(self._inbox) if isinstance(duty, Tenure)]
        return [tenure for tenure in {*tuple(self._duties.held), *waiting} if not tenure.ended]

    def hand(self, duty: Duty) -> None:
        """Have the keeper take `duty`. It is woken only if that is due before it would look by itself."""
        self._inbox.append(duty)
        due_ms = duty.claimed_ms + duty.lifetime_ms // 3 if isinstance(duty, Tenure) else 0
        wake_ms = self._wake_ms
        if (
            self._thread is not None
            and wake_ms is not None
            and due_ms >= wake_ms
            and len(self._inbox) < CROWDED
        ):
            return
        with self._changed:
            if self._thread is None:
                self._stopping = False
                self._thread = threading.Thread(target=self._serve, name="claimant-keeper", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Stop the thread, waiting at most `timeout` seconds for the request that it has under way."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._stopping = True
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _serve(self) -> None:
        self._port = port = self._store.blocking()
        table = blocking.handlers(self._process, port, None)
        table[ops.Inbox] = self._wait
        table[ops.Tell] = lambda request: self._process.emit(request.event)
        while not self._stopping:
            try:
                blocking.run(keep(self._store.deadline_ms, self._duties), table)
            except Exception:
                _log.exception("claimant: the keeper failed and starts again; it forgets no lease")
                self._wait(ops.Inbox(clock.now_ms() + 100))
        port.close()

    def _wait(self, request: ops.Inbox) -> tuple[Any, ...] | None:
        with self._changed:
            self._wake_ms = request.until_ms
            if not self._stopping and not self._inbox:
                left_ms = None if request.until_ms is None else request.until_ms - clock.now_ms()
                if left_ms is None or left_ms > 0:
                    self._changed.wait(None if left_ms is None else left_ms / 1_000)
            self._wake_ms = None
            if self._stopping:
                return None
            items = tuple(self._inbox)
            for _ in items:
                self._inbox.popleft()
        return items
