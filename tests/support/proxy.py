"""A TCP proxy with switchable faults, to put between a client and a real server.

A *request* is what one read from the client yields, a *reply* what one read from the server yields: on loopback
that is one command or one pipeline, and its answer. It knows no protocol and never alters a byte: it delays, drops or cuts.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_CHUNK = 1 << 16


class Kind(Enum):
    """What happens to a request or its reply."""

    PASS = "pass"
    BLACK_HOLE = "black hole"  # accepted, read, never forwarded, never answered
    DRIP = "drip"  # the reply arrives one byte at a time
    DELAY = "delay"  # the reply arrives late
    CUT_AFTER_REQUEST = "cut after request"  # applied by the server, the reply lost
    CUT_TO_SERVER = "cut to server"  # what clients send is lost, what the server sends arrives
    CUT_TO_CLIENT = "cut to client"  # every reply is lost, the connection stays
    REFUSE = "refuse"  # nobody listens


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and how long it stays: `times` requests, those that hold `match`; None: until changed."""

    kind: Kind
    delay_s: float = 0.0
    close: bool = True
    times: int | None = None
    match: bytes = b""


_PASS = Fault(Kind.PASS)
_NOT_FORWARDED = {Kind.BLACK_HOLE, Kind.CUT_TO_SERVER}
_NOT_DELIVERED = {Kind.BLACK_HOLE, Kind.CUT_TO_CLIENT, Kind.CUT_AFTER_REQUEST}


@dataclass(slots=True)
class Counts:
    """What went through, as the proxy saw it."""

    connections: int = 0
    requests: int = 0
    faults: int = 0
    discarded: int = 0
    bytes_to_server: int = 0
    bytes_to_client: int = 0


@dataclass(eq=False, slots=True)
class _Pair:
    client: socket.socket
    server: socket.socket
    fault: Fault = _PASS  # what the last request met
    mute: bool = False

    def close(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """A proxy in front of one server, as a context manager.

    Each fault method replaces the fault before it. With `times=k` the fault meets the next k requests (that
    contain `match`, if given) and then all passes again.

    Args:
        port: The server's port on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self._upstream = ("127.0.0.1", port)
        self._changed = threading.Condition()
        self._fault = _PASS
        self._counts = Counts()
        self._pairs: set[_Pair] = set()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._listener = _bound(0)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor: threading.Thread | None = None
        self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self, upstream: str) -> str:
        """The server's URL with the proxy's port in place of its own."""
        parts = urlsplit(upstream)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    # --- faults

    def heal(self) -> None:
        """Let everything pass, and listen again."""
        self._set(_PASS)

    def refuse(self) -> None:
        """Stop listening and close every connection: connection refused."""
        self._set(Fault(Kind.REFUSE))

    def black_hole(self, *, times: int | None = None, match: bytes = b"") -> None:
        """Accept and read, forward nothing, answer nothing."""
        self._set(Fault(Kind.BLACK_HOLE, times=times, match=match))

    def drip(self, byte_ms: float, *, times: int | None = None, match: bytes = b"") -> None:
        """Deliver replies one byte each `byte_ms` milliseconds."""
        self._set(Fault(Kind.DRIP, delay_s=byte_ms / 1000, times=times, match=match))

    def delay(self, reply_ms: float, *, times: int | None = None, match: bytes = b"") -> None:
        """Deliver replies `reply_ms` milliseconds late."""
        self._set(Fault(Kind.DELAY, delay_s=reply_ms / 1000, times=times, match=match))

    def cut_after_request(self, *, close: bool = True, times: int | None = None, match: bytes = b"") -> None:
        """Let the server apply the request and lose its reply, then close the connection or fall silent."""
        self._set(Fault(Kind.CUT_AFTER_REQUEST, close=close, times=times, match=match))

    def cut_to_server(self) -> None:
        """Lose what clients send, deliver what the server sends (a broken path one way)."""
        self._set(Fault(Kind.CUT_TO_SERVER))

    def cut_to_client(self) -> None:
        """Deliver what clients send, lose what the server sends."""
        self._set(Fault(Kind.CUT_TO_CLIENT))

    def drop_connections(self) -> None:
        """Close every live connection; new ones are taken."""
        with self._changed:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.close()

    # --- what was seen

    @property
    def counts(self) -> Counts:
        """A copy of the counts so far."""
        with self._changed:
            return replace(self._counts)

    def wait(self, condition: Callable[[Counts], bool], timeout_s: float = 5.0) -> Counts:
        """Wait until the counts fulfil `condition`.

        Raises:
            TimeoutError: they did not in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self._counts), timeout_s):
                raise TimeoutError(f"the proxy saw {self._counts}")
            return replace(self._counts)

    def close(self) -> None:
        """Close everything and wait for the threads; harmless when closed already."""
        self._closed.set()
        self._stop_listening()
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(timeout=10)

    # --- inside

    def _set(self, fault: Fault) -> None:
        with self._changed:
            before, self._fault = self._fault, fault
        if fault.kind is Kind.REFUSE and before.kind is not Kind.REFUSE:
            self._stop_listening()
            self._listener = _bound(self.port)  # bound and not listening: refused, and the port stays ours
            self.drop_connections()
        elif before.kind is Kind.REFUSE and fault.kind is not Kind.REFUSE:
            self._listen()

    def _listen(self) -> None:
        self._listener.listen(256)
        self._acceptor = threading.Thread(
            target=self._accept, args=(self._listener,), name="proxy", daemon=True
        )
        self._acceptor.start()

    def _stop_listening(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the acceptor; a close alone does not
        self._listener.close()
        if self._acceptor is not None:
            self._acceptor.join(timeout=10)
            self._acceptor = None

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                server = socket.create_connection(self._upstream, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(client, server)
            threads = [
                threading.Thread(target=self._pump, args=(pair, pump), name="proxy", daemon=True)
                for pump in (self._requests, self._replies)
            ]
            with self._changed:
                self._pairs.add(pair)
                self._threads += threads
                self._counts.connections += 1
                self._changed.notify_all()
            for thread in threads:
                thread.start()

    def _pump(self, pair: _Pair, pump: Callable[[_Pair], None]) -> None:
        with contextlib.suppress(OSError):
            pump(pair)
        pair.close()
        with self._changed:
            self._pairs.discard(pair)

    def _requests(self, pair: _Pair) -> None:
        while data := pair.client.recv(_CHUNK):
            with self._changed:
                pair.fault = fault = self._take(data)
                self._counts.requests += 1
                if fault.kind not in _NOT_FORWARDED:
                    self._counts.bytes_to_server += len(data)
                self._changed.notify_all()
            if fault.kind not in _NOT_FORWARDED:
                pair.server.sendall(data)

    def _replies(self, pair: _Pair) -> None:
        while data := pair.server.recv(_CHUNK):
            with self._changed:
                fault = self._for_reply(pair)
                cut = fault.kind is Kind.CUT_AFTER_REQUEST
                pair.mute = pair.mute or (cut and not fault.close)
                lost = pair.mute or fault.kind in _NOT_DELIVERED
                if lost:
                    self._counts.discarded += 1
                    self._changed.notify_all()
            if cut and fault.close:
                return
            if lost:
                continue
            self._deliver(pair, data, fault)

    def _deliver(self, pair: _Pair, data: bytes, fault: Fault) -> None:
        pieces = [data]
        if fault.kind is Kind.DRIP:
            pieces = [data[at : at + 1] for at in range(len(data))]
        for piece in pieces:
            if fault.delay_s:
                self._closed.wait(fault.delay_s)
            pair.client.sendall(piece)
            with self._changed:
                self._counts.bytes_to_client += len(piece)
                self._changed.notify_all()

    def _take(self, request: bytes) -> Fault:
        """The fault this request meets; counts it down."""
        fault = self._fault
        if fault.kind is Kind.PASS or fault.match not in request:
            return _PASS
        self._counts.faults += 1
        if fault.times is not None:
            left = fault.times - 1
            self._fault = replace(fault, times=left) if left else _PASS
        return fault

    def _for_reply(self, pair: _Pair) -> Fault:
        """What the request met; where it met nothing, what has been set for all traffic since (a push, a late answer)."""
        if pair.fault.kind is Kind.PASS and self._fault.times is None and not self._fault.match:
            return self._fault
        return pair.fault


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener
