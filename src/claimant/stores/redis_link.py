"""One connection to a Redis or Valkey: the client library connects and greets, we send and read.

The library's connection keeps URL options, TLS, credentials and the greeting; its retries, timeouts and parser are
not used, so that one deadline spans a whole exchange, and errors arrive as the server wrote them.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, cast

from claimant._drive.clock import now_ms
from claimant._drive.connector import NotConnected
from claimant.stores.redis_asking import USUAL, Batch, Reply, Silence, pack
from claimant.stores.redis_reader import reader
from claimant.stores.redis_words import no_connection

CONNECT_S = 2.0
"""Each step of connecting and greeting ends after this; the caller leaves at its own deadline."""
CHUNK = 16_384
LONGEST_WAIT_MS = 3_600_000
"""What `poll` can count to is less than what a deadline may be."""
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Raw(Protocol):
    """What we use of the library's connection."""

    _sock: socket.socket | None

    def connect(self) -> None:
        """Connect and greet."""

    def disconnect(self) -> None:
        """Close."""


class RedisLink:
    """A connection, or one to be. Used by one thread or one event loop at a time."""

    def __init__(self, make: Callable[[], Raw], address: str, secrets: tuple[str, ...]) -> None:
        self._make = make
        self._address = address
        self._secrets = secrets
        self._raw: Raw | None = None
        self._poll: Any = None
        self.socket: socket.socket = cast("socket.socket", None)
        self.buffer = bytearray(CHUNK)

    def open(self) -> None:
        """Connect and greet. Raises `NotConnected`."""
        try:
            raw = self._raw = self._make()
            raw.connect()
        except Exception as error:
            raise NotConnected(no_connection(error, self._address, self._secrets)) from None
        sock = _socket_of(raw)
        if sock is None:
            raise NotConnected(f"no connection to {self._address}: it was closed while greeting")
        # Never a timeout on the socket: that is two more system calls for each read, and counts from each read anew.
        sock.setblocking(False)
        self.socket = sock
        self.reader = reader()
        self._encrypted = isinstance(sock, ssl.SSLSocket)
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(self.socket, select.POLLIN)

    def cut(self) -> None:
        """Have an attempt that hangs fail: its next read or write ends at once. A name look-up cannot be cut."""
        sock = _socket_of(self._raw)
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def usable(self) -> bool:
        """Whether nothing has arrived while idle: neither an end nor bytes that nobody asked for."""
        try:
            if self._poll is not None:
                return not self._poll.poll(0)
            return not select.select([self.socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Close the connection."""
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.disconnect()

    def drop(self) -> None:
        """In a forked child: close our copy of the descriptor; the parent's connection stays as it is."""
        sock = _socket_of(self._raw)
        if sock is not None:
            sock.close()
        self.close()  # finds the socket closed, and has nothing to say to the server

    def exchange(self, batch: Batch, until_ms: int) -> list[Reply] | Silence:
        """Send `batch` and read its replies. After a `Silence` the link is not to be used again."""
        return self.converse(pack(batch), len(batch), until_ms)

    def converse(self, data: bytes, wanted: int, until_ms: int, usual: bytes = b"") -> list[Reply] | Silence:
        """Send commands that are packed already and read `wanted` replies; `USUAL` where `usual` is all that came.

        After a `Silence` the link is not to be used again.
        """
        replies: list[Reply] = []
        sock, buffer = self.socket, self.buffer
        try:
            try:
                sent = sock.send(data)
            except WOULD_BLOCK:
                sent = 0
            while sent < len(data):
                sent += self._send(data[sent:], until_ms)
            if not self._encrypted:
                self._wait(until_ms)  # nothing can have come yet
            while True:
                try:
                    size = sock.recv_into(buffer)
                except WOULD_BLOCK as reason:
                    self._wait(until_ms, to_write=isinstance(reason, ssl.SSLWantWriteError))
                    continue
                if not size:
                    return Silence("the server closed the connection before it answered", replies)
                if size == len(usual) and buffer.startswith(usual):
                    return USUAL
                usual = b""  # what came is not whole, or something else
                self.reader.feed(buffer, 0, size)
                while (reply := self.reader.gets()) is not False:
                    replies.append(reply)
                if len(replies) == wanted:
                    return replies
                if len(replies) > wanted:
                    return Silence("the server answered more than it was asked", replies[:wanted])
                if until_ms <= now_ms():
                    raise TimeoutError
        except TimeoutError:
            return Silence("the server did not answer in time", replies)
        except OSError as error:
            return Silence(
                f"the connection broke before the answer ({error.strerror or type(error).__name__})", replies
            )
        except ValueError as error:
            return Silence(f"what answers is not a Redis or Valkey ({type(error).__name__})", replies)

    def _send(self, data: bytes, until_ms: int) -> int:
        """How many bytes left. Waits while none can."""
        while True:
            try:
                return self.socket.send(data)
            except WOULD_BLOCK as reason:
                self._wait(until_ms, to_write=not isinstance(reason, ssl.SSLWantReadError))

    def _wait(self, until_ms: int, *, to_write: bool = False) -> None:
        """Until the socket can be read, or written. Raises `TimeoutError` at `until_ms`, however often signals interrupt."""
        left_ms = until_ms - now_ms()
        if left_ms <= 0:
            raise TimeoutError
        left_ms = min(left_ms, LONGEST_WAIT_MS)
        if self._poll is not None and not to_write:
            ready = self._poll.poll(left_ms)
        elif hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self.socket, select.POLLOUT if to_write else select.POLLIN)
            ready = poll.poll(left_ms)
        else:
            reading, writing = ([], [self.socket]) if to_write else ([self.socket], [])
            ready = [each for some in select.select(reading, writing, [], left_ms / 1_000) for each in some]
        if not ready:
            raise TimeoutError


def _socket_of(raw: Raw | None) -> socket.socket | None:
    """The one private name of the libraries that we use; both have it in every release since redis-py 3."""
    return raw._sock if raw is not None else None  # noqa: SLF001
