"""One exchange on one connection: one deadline for all of it, no reply taken for another, and templates that are exact."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimant._drive.clock import now_ms
from claimant.stores.redis_asking import USUAL, Silence, pack, packed_create, packed_left, packed_release
from claimant.stores.redis_link import RedisLink

PING = pack([("PING",)])
NULL = b"$-1\r\n"
WORDS = st.text(st.characters(codec="utf-8") | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF))


class Connected:
    """What the client library hands over: a connection that has greeted."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock: socket.socket | None = sock

    def connect(self) -> None:
        pass

    def disconnect(self) -> None:
        assert self._sock is not None
        self._sock.close()


@pytest.fixture
def pair() -> Iterator[tuple[RedisLink, socket.socket]]:
    """A link, and the server's end of it."""
    ours, theirs = socket.socketpair()
    link = RedisLink(lambda: Connected(ours), "test", ())
    link.open()
    yield link, theirs
    link.close()
    theirs.close()


def soon(ms: int = 5_000) -> int:
    return now_ms() + ms


@given(WORDS, WORDS, st.integers(600, 30 * 86_400_000))
def test_the_templates_are_what_packing_gives(key: str, value: str, lifetime_ms: int) -> None:
    """Word for word and byte for byte, whatever the names."""
    create = ("SET", key, value, "NX", "GET", "PX", lifetime_ms)
    assert packed_create(key, value, lifetime_ms) == pack([create])
    assert packed_left(key) == pack([("PTTL", key)])
    assert packed_release(key, value) == pack([("DELIFEQ", key, value)])


def test_the_usual_reply_is_not_read(pair: tuple[RedisLink, socket.socket]) -> None:
    """It is compared; anything else is read as ever."""
    link, server = pair
    server.sendall(NULL)
    assert link.converse(PING, 1, soon(), NULL) is USUAL
    server.sendall(b":7\r\n")
    assert link.converse(PING, 1, soon(), NULL) == [7]
    assert link.usable()


def test_a_usual_reply_in_pieces_is_read_whole(pair: tuple[RedisLink, socket.socket]) -> None:
    """However it is cut, and whatever the next reply looks like."""
    link, server = pair
    for cut in range(1, len(NULL)):
        server.sendall(NULL[:cut])
        rest = threading.Timer(0.01, server.sendall, [NULL[cut:]])
        rest.start()
        assert link.converse(PING, 1, soon(), NULL) == [None]
        rest.join()
        server.sendall(b"+OK\r\n")
        assert link.converse(PING, 1, soon(), NULL) == [b"OK"]


def test_an_end_that_looks_usual_is_no_usual_reply(pair: tuple[RedisLink, socket.socket]) -> None:
    """A holder's value may end in anything, and be cut anywhere: it is no grant."""
    link, server = pair
    server.sendall(b"$6\r\nabc")
    rest = threading.Timer(0.02, server.sendall, [NULL])
    rest.start()
    assert link.converse(PING, 1, soon(), NULL) == [b"abc$-1"]
    rest.join()


def test_a_closed_connection_is_silence_and_not_the_usual(pair: tuple[RedisLink, socket.socket]) -> None:
    """Nothing came, which is not what was expected, be that nothing."""
    link, server = pair
    server.shutdown(socket.SHUT_WR)
    for usual in (NULL, b""):
        found = link.converse(PING, 1, soon(), usual)
        assert isinstance(found, Silence)
        assert "closed" in found.reason


def test_more_replies_than_questions_end_the_connection(pair: tuple[RedisLink, socket.socket]) -> None:
    """The first ones are believed, and the connection takes no further question: its answers would be one off."""
    link, server = pair
    server.sendall(NULL + b":1\r\n")
    found = link.converse(PING, 1, soon(), NULL)
    assert isinstance(found, Silence)
    assert found.replies == [None]


def test_more_than_a_socket_takes_at_once_leaves_in_pieces(pair: tuple[RedisLink, socket.socket]) -> None:
    """A large pipeline waits for room and arrives whole; one that finds no room is late at the deadline."""
    link, server = pair
    data = b"x" * 3_000_000
    got = bytearray()

    def serve() -> None:
        while len(got) < len(data):
            got.extend(server.recv(100_000))
        server.sendall(NULL)

    serving = threading.Thread(target=serve)
    serving.start()
    assert link.converse(data, 1, soon(), NULL) is USUAL
    serving.join()
    assert got == data
    found = link.converse(data, 1, soon(50))
    assert isinstance(found, Silence)
    assert "in time" in found.reason


def test_signals_do_not_move_the_deadline(pair: tuple[RedisLink, socket.socket]) -> None:
    """A profiler's timer interrupts every wait; a server that is silent still costs one deadline, not a thousand."""
    link, _ = pair
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    stop = threading.Timer(5, signal.setitimer, [signal.ITIMER_REAL, 0])
    try:
        began = time.monotonic()
        found = link.converse(PING, 1, soon(100))
        assert isinstance(found, Silence)
        assert time.monotonic() - began < 2
    finally:
        stop.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_deadline_of_years_is_no_error(pair: tuple[RedisLink, socket.socket]) -> None:
    """The system's own wait cannot count that far."""
    link, server = pair
    server.sendall(NULL)
    assert link.converse(PING, 1, now_ms() + 10**12, NULL) is USUAL


def test_a_claim_makes_few_calls_of_the_system(pair: tuple[RedisLink, socket.socket]) -> None:
    """One send, one wait, one read; no timeout is set on the socket, which would be two more for each."""
    link, server = pair
    calls: list[str] = []

    class Counted:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            calls.append(name)
            return getattr(self.inner, name)

    link._poll = Counted(link._poll)
    real, link.socket = link.socket, Counted(link.socket)  # type: ignore[assignment]
    server.sendall(NULL)
    assert link.converse(PING, 1, soon(), NULL) is USUAL
    link.socket = real
    assert calls == ["send", "poll", "recv_into"]
