"""Who is told by SIGTERM and SIGINT: every loop of this process that listens, all at once, and never a forked child.

One handler for all of them, from the first that comes to the last that goes, and only where nobody else has one. A
plain handler and not the event loop's: that one hangs on a file descriptor which a forked child shares, so a signal to
the child would stop its parent. Joined and left on the main thread, where Python runs handlers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

LISTENED = (signal.SIGTERM, signal.SIGINT)
DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Listeners:
    """The loops that listen. Once they are told, the handlers are as they were: a second signal ends the program as ever."""

    def __init__(self) -> None:
        self._tell: dict[Callable[[], None], tuple[int, ...]] = {}
        self._told = False
        self._before: dict[int, Any] = {}
        self._forking = threading.local()

    @contextlib.contextmanager
    def told(self, tell: Callable[[], None], numbers: tuple[int, ...]) -> Iterator[None]:
        """Have `tell` called, once or more, on any signal that a loop listens to; nothing happens off the main thread.

        `numbers` are those that it needs a handler for. Who comes while others still end is told at once.
        """
        if not _on_main_thread():
            yield
            return
        self._tell[tell] = numbers
        try:
            self._settle()
            if self._told:
                tell()
                # It may have come in the middle of the line above.
                self._settle()
            yield
        finally:
            self._tell.pop(tell, None)
            if not self._tell:
                self._told = False
            if _on_main_thread():
                # Else an abandoned coroutine was collected elsewhere: with nobody to tell, the handler steps aside by itself.
                self._settle()

    def before_fork(self) -> None:
        """Hold back what would end the child, until it is itself: a handler that it inherits would swallow it.

        A signal with a handler of Python's, like SIGINT, is dropped by Python itself in that moment, here as elsewhere.
        """
        fatal = [number for number, was in self._before.items() if was is signal.SIG_DFL]
        if fatal:
            self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, fatal)

    def after_fork(self) -> None:
        """Take what was held back."""
        mask = self._forking.__dict__.pop("mask", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def in_child(self) -> None:
        """Nobody listens in a child, and its handlers are those from before the loops."""
        self._tell.clear()
        self._told = False
        self._settle()
        self.after_fork()

    def _settle(self) -> None:
        """Put the handler where somebody needs it, and take it away where nobody does."""
        wanted = set() if self._told else {number for numbers in self._tell.values() for number in numbers}
        for number in LISTENED:
            handler = signal.getsignal(number)
            if number in wanted:
                if handler in DEFAULTS:
                    # Noted first: another thread may fork between these two lines.
                    self._before[number] = handler
                    signal.signal(number, self._heard)
            elif number in self._before:
                if handler == self._heard:
                    signal.signal(number, self._before[number])
                del self._before[number]

    def _heard(self, number: int, _: object) -> None:
        was = self._before.get(number, signal.SIG_DFL)
        if not self._tell:
            signal.signal(number, was)
            signal.raise_signal(number)
            return
        self._told = True
        self._settle()
        for tell in list(self._tell):
            tell()


listeners = Listeners()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=listeners.before_fork,
        after_in_parent=listeners.after_fork,
        after_in_child=listeners.in_child,
    )
