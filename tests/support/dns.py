"""Make a host name hang in name resolution, in this process or in a child.

It replaces `socket.getaddrinfo`, which asyncio's resolver and every pure Python client call. A C library that
resolves by itself (libpq given a host name) does not pass here. It never lets a real query leave the machine for the names it holds.

In a child, without any site hook:  ``from tests.support import dns; dns.hang_from_environment()``.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

VARIABLE = "CLAIMANT_TEST_HANGING_NAMES"


class Hang:
    """The names that hang, who waits, and the way out."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.entered = threading.Event()
        self.lookups = 0
        self._released = threading.Event()
        self._real = socket.getaddrinfo

    def release(self) -> None:
        """Let every waiting look-up end, as a name that does not exist."""
        self._released.set()

    def getaddrinfo(self, host: Any, *args: Any, **kwargs: Any) -> Any:
        """Stand in for `socket.getaddrinfo`."""
        name = host.decode() if isinstance(host, bytes) else host
        if name not in self.names:
            return self._real(host, *args, **kwargs)
        self.lookups += 1
        self.entered.set()
        self._released.wait()
        raise socket.gaierror(socket.EAI_AGAIN, f"the name service did not answer for {name}")


@contextmanager
def hanging(*names: str) -> Iterator[Hang]:
    """Within the block a look-up of these names does not return; at its end all of them fail.

    Example:
        ``with hanging("store.invalid") as hang: … hang.entered.wait(1)``
    """
    hang = Hang(names)
    socket.getaddrinfo = hang.getaddrinfo
    try:
        yield hang
    finally:
        socket.getaddrinfo = hang._real
        hang.release()


def environment(*names: str) -> dict[str, str]:
    """The environment for a child that calls `hang_from_environment()`."""
    return os.environ | {VARIABLE: ",".join(names)}


def hang_from_environment() -> Hang:
    """In a child: let the names in the environment hang until the process ends."""
    hang = Hang(tuple(filter(None, os.environ.get(VARIABLE, "").split(","))))
    socket.getaddrinfo = hang.getaddrinfo
    return hang
