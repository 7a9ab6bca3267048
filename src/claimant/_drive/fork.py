"""After a fork the child owns nothing: no lease, no connection, no thread of its parent's.

What holds such things registers itself once; `forget()` is called in the child, right after the fork, and must not
speak to any server, because the parent still uses the same sockets.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forgets(Protocol):
    """Something that a forked child must not inherit."""

    def forget(self) -> None:
        """Drop everything inherited, silently."""
        ...


_registered: WeakSet[Forgets] = WeakSet()


def on_fork(holder: Forgets) -> None:
    """Have `holder.forget()` called in every forked child for as long as `holder` lives."""
    _registered.add(holder)


def _in_child() -> None:
    for holder in list(_registered):
        holder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
