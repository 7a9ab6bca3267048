"""The keeper: one thread per process and store that renews what this process holds, blocking and asyncio alike.

It has a connection of its own, starts with the first lease, survives every fault of its own, and is not on any
event loop, so that a blocked loop loses no lease. It is a daemon: nothing waits for it at interpreter exit.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from claimant._drive import blocking, clock
from claimant._drive.fork import on_fork
from claimant._drive.ports import Store, StorePort
from claimant._drive.process import Process
from claimant._drive.worker import Worker
from claimant._flows.keep import Duties, Duty, keep
from claimant._model import ops
from claimant._model.events import Event
from claimant._model.holding import Tenure

CROWDED = 1_000
"""Waiting items beyond which the keeper is woken even though none is due."""
IDLE_MS = 10_000
"""How long a keeper with nothing due is on watch at most, before it sleeps until something is or until it is woken."""


class Keeper:
    """The thread and its inbox. `hand` never blocks and never fails for reasons of the store."""

    def __init__(self, store: Store, process: Process) -> None:
        self._store = store
        self._process = process
        self._port: StorePort | None = None
        self._events = Worker("claimant-events")
        self.forget()
        on_fork(self)

    def forget(self) -> None:
        """Start over without the thread. What the parent holds is the parent's: the child's copies end here."""
        for tenure in tuple(getattr(self, "_handed", ())):
            tenure.released = True
        self._handed: WeakSet[Tenure] = WeakSet()
        if self._port is not None:
            self._port.forget()
        self._port = None
        self._changed = threading.Condition(threading.Lock())
        self._inbox: deque[Duty] = deque()
        self._duties = Duties()
        self._thread: threading.Thread | None = None
        self._wake_ms: int | None = None
        self._watch_ms = IDLE_MS
        self._stop = threading.Event()
        self._turn = threading.Lock()

    def hand(self, duty: Duty) -> None:
        """Have the keeper take `duty`. It is woken only if that is due before it would look by itself."""
        due_ms = 0
        inbox = self._inbox
        if isinstance(duty, Tenure):
            self._handed.add(duty)
            first_ms = duty.lifetime_ms // 3
            due_ms = duty.claimed_ms + first_ms
            if due_ms > duty.end_ms:
                due_ms = duty.end_ms
                first_ms = due_ms - duty.claimed_ms
            if first_ms < self._watch_ms:
                self._watch_ms = max(first_ms, 1)
            if inbox and not self._drop_released():
                due_ms = 0
        inbox.append(duty)
        wake_ms = self._wake_ms
        if self._thread is not None and wake_ms is not None and due_ms >= wake_ms and len(inbox) < CROWDED:
            return
        with self._changed:
            if self._thread is None:
                self._start()
            self._changed.notify_all()

    def _drop_released(self) -> bool:
        """Drop the leases that came and went while the keeper slept: it need not wake for them, nor they wait for it.

        Without a lock, so that no holder waits here. False: another thread's duty was taken by mistake, and the keeper
        may have looked while it was away; it is back.
        """
        inbox = self._inbox
        try:
            while _gone(inbox[-1]):
                latest = inbox.pop()
                if not _gone(latest):
                    inbox.append(latest)
                    return False
        except IndexError:  # that was the last one, or somebody was quicker
            pass
        return True

    def _start(self) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=self._serve, args=(stop,), name="claimant-keeper", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had, or the interpreter is ending
            import logging

            text = "claimant: leases are not renewed until a thread can be started (%s)"
            logging.getLogger("claimant").error(text, error)  # noqa: TRY400 - its traceback says no more
            return
        self._thread, self._stop = thread, stop

    def _tell(self, event: Event) -> None:
        self._events.submit(lambda: self._process.emit(event))

    def close(self, timeout: float) -> None:
        """Stop the thread, waiting at most `timeout` seconds for the request that it has under way."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._stop.set()
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _serve(self, stop: threading.Event) -> None:
        # A thread that was stopped in the middle of a request ends that first: two must not share the duties.
        with self._turn:
            self._serve_until(stop)

    def _serve_until(self, stop: threading.Event) -> None:
        self._port = port = self._store.blocking()
        table = blocking.handlers(self._process, port, None)
        table[ops.Inbox] = lambda request: self._wait(request, stop)
        # Observers have a thread of their own: a slow log handler must not cost a lease.
        table[ops.Tell] = table[ops.Emit] = lambda request: self._tell(request.event)
        while not stop.is_set():
            try:
                blocking.run(keep(self._store.deadline_ms, self._duties), table)
            except BaseException:  # an observer may raise anything, and this thread must not end of it
                import logging  # which hardly any process needs here

                logging.getLogger("claimant").exception(
                    "claimant: the keeper failed and starts again; it forgets no lease"
                )
                stop.wait(0.1)
        port.close()

    def _wait(self, request: ops.Inbox, stop: threading.Event) -> tuple[Any, ...] | None:
        with self._changed:
            until_ms = request.until_ms
            watch_until_ms = clock.now_ms() + self._watch_ms
            if until_ms is None or until_ms > watch_until_ms:
                # On watch before it sleeps: a lease that comes meanwhile is due later, and wakes nobody by coming.
                self._sleep(watch_until_ms, stop)
            self._sleep(until_ms, stop)
            self._wake_ms = None
            if stop.is_set():
                return None
        items: list[Duty] = []
        with suppress(IndexError):
            while True:
                items.append(self._inbox.popleft())
        return tuple(items)

    def _sleep(self, until_ms: int | None, stop: threading.Event) -> None:
        """Until woken, until `until_ms`, or not at all if there is something to do. The lock is held by the caller."""
        self._wake_ms = until_ms
        if stop.is_set() or self._inbox:
            return
        left_ms = None if until_ms is None else until_ms - clock.now_ms()
        if left_ms is None or left_ms > 0:
            self._changed.wait(None if left_ms is None else left_ms / 1_000)


def _gone(duty: Duty) -> bool:
    return isinstance(duty, Tenure) and duty.released
