"""How the demo takes the lease store away, and gives it back: for real, whatever store it is.

An embedded store is frozen by a writer that does not finish. A server is reached through a forwarder of ours,
which is cut: it may be somebody's own server, so it is never stopped.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from claimant._model.errors import Refused


class Link(Protocol):
    """Workers reach the store at `url`."""

    url: str

    def take(self) -> None:
        """From here on the store does not answer."""
        ...

    def give(self) -> None:
        """From here on it answers again."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


def link_to(store: str) -> Link:
    """A link to the store at this URL."""
    scheme = store.partition(":")[0]
    if scheme == "sqlite":
        return FrozenFile(store)
    if scheme in ("redis", "valkey"):
        return Forwarder(store)
    raise Refused(
        "CLM071", f"the demo can take away sqlite:PATH, redis:// and valkey:// stores, and not {scheme!r}"
    )


class FrozenFile:
    """A writer that holds the file's only write lock and does nothing."""

    def __init__(self, store: str) -> None:
        self.url = store
        self._path = store.removeprefix("sqlite:")
        self._writer: sqlite3.Connection | None = None

    def take(self) -> None:
        """The store stops answering."""
        self._writer = sqlite3.connect(self._path, isolation_level=None, timeout=5)
        self._writer.execute("BEGIN IMMEDIATE")

    def give(self) -> None:
        """It answers again."""
        if self._writer is not None:
            self._writer.rollback()
        self.close()

    def close(self) -> None:
        """Leave nothing behind."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class Forwarder:
    """Passes bytes between workers and the server, until it is cut."""

    def __init__(self, store: str) -> None:
        parts = urlsplit(store)
        self._target = (parts.hostname or "localhost", parts.port or 6379)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = self._listen(0)
        self._port: int = self._listener.getsockname()[1]
        user, at, _ = parts.netloc.rpartition("@")
        self.url = urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self._port}"))

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                return
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open -= {source, sink}
            for end in (source, sink):
                end.close()

    def take(self) -> None:
        """The store stops answering."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ends = list(self._open)
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def give(self) -> None:
        """It answers again."""
        self._listener = self._listen(self._port)

    def close(self) -> None:
        """Leave nothing behind."""
        self.take()
