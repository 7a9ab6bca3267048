"""Whose turn it is among threads to use a lease file, and a pause around every fork.

SQLite keeps its locks in process memory: a child that inherits an open file believes in locks that it does not have.
So the file is closed before a fork, and both sides open it anew.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

from claimant._drive.clock import now_ms
from claimant._drive.fork import on_fork
from claimant.stores.sqlite_file import LeaseFile

LONGEST_WAIT_S = 2.0
"""A fork waits this long for a call under way; one that lasts longer keeps its file, and the child leaves that alone."""


class Turns:
    """The lock of one port's file. Forks are waited out."""

    def __init__(self, file: LeaseFile) -> None:
        self.file = file
        self.lock = threading.Lock()
        self._paused_by: int | None = None
        _all.add(self)
        on_fork(self)

    def take(self, until_ms: int) -> bool:
        """Wait for our turn, until the deadline."""
        return self.lock.acquire(timeout=max(0, until_ms - now_ms()) / 1_000)

    def before_fork(self) -> None:
        """Close the file, once nobody uses it; a call lasts one deadline at most."""
        if self.lock.acquire(timeout=LONGEST_WAIT_S):
            self._paused_by = threading.get_ident()
            self.file.close()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._paused_by == threading.get_ident():
            self._paused_by = None
            self.lock.release()

    def forget(self) -> None:
        """We are the child."""
        self.lock = threading.Lock()
        self._paused_by = None
        self.file.forget()


_all: WeakSet[Turns] = WeakSet()


def _before() -> None:
    for turns in list(_all):
        turns.before_fork()


def _after_in_parent() -> None:
    for turns in list(_all):
        turns.after_fork_in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent)
