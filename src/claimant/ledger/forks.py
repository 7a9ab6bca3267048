"""Files and connections across a fork.

SQLite keeps its locks per process and shares its bookkeeping of one file among all connections of a process: a child
that inherits an open file would believe in locks that it does not have. So the parent closes its file before it
forks and opens it again when it next needs it, about half a millisecond.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Closes(Protocol):
    """Something that must not be open while its process forks."""

    def before_fork(self) -> None:
        """Close, and stay closed."""

    def after_fork(self) -> None:
        """In the parent: may be open again."""


_registered: WeakSet[Closes] = WeakSet()
_closed: dict[int, list[Closes]] = {}
"""By forking thread: two threads may fork at once, and each opens again what it closed itself."""


def close_before_fork(holder: Closes) -> None:
    """Have `holder` closed around every fork for as long as it lives."""
    _registered.add(holder)


def leave_alone(inherited: object) -> None:
    """Never finalise an inherited connection: closing it would speak to our parent's server or touch its locks."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def _before() -> None:
    holders = _closed[threading.get_ident()] = list(_registered)
    for holder in holders:
        holder.before_fork()


def _after_in_parent() -> None:
    for holder in _closed.pop(threading.get_ident(), ()):
        holder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_closed.clear)
