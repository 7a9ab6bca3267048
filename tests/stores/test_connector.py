"""The connector: one attempt at a time, on its own thread, and nobody waits longer than its deadline."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from claimant._drive import connector as module
from claimant._drive.clock import now_ms
from claimant._drive.connector import Connector, NotConnected
from claimant._drive.worker import Worker
from claimant._model.ops import Create, Granted, Held, Peek, StoreReply, StoreRequest, Vacant
from claimant.stores import open_store
from claimant.stores.sqlite_rows import Rows
from claimant.testing.store_suite import MINUTE_MS, soon, value
from tests.support.proxy import Proxy


class Fake:
    """A link whose opening waits to be let go."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.closed = self.dropped = False
        self.cut_off = threading.Event()

    def open(self) -> None:
        self.wire.opening.append(self)
        self.wire.began.set()
        while not self.wire.go.wait(0.005):
            if self.cut_off.is_set():
                raise NotConnected("cut")
        if self.wire.fails:
            raise NotConnected("refused")

    def cut(self) -> None:
        self.cut_off.set()

    def usable(self) -> bool:
        return not self.closed and not self.wire.stale

    def close(self) -> None:
        self.closed = True

    def drop(self) -> None:
        self.dropped = True


class Wire:
    def __init__(self) -> None:
        self.opening: list[Fake] = []
        self.began = threading.Event()
        self.go = threading.Event()
        self.fails = self.stale = False
        self.connector = Connector(lambda: Fake(self), Worker("test-connect"), "test://")


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.go.set()


def on_threads(count: int, work: object) -> list[object]:
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())  # type: ignore[operator]
        except NotConnected as error:
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_many_callers_share_one_attempt_and_leave_in_time(wire: Wire) -> None:
    """While one attempt hangs nobody starts another, and each caller leaves at its deadline with a reason."""
    began = now_ms()
    found = on_threads(20, lambda: wire.connector.take(began + 100))
    assert now_ms() - began < 500
    assert len(wire.opening) == 1
    assert all(isinstance(each, NotConnected) and "test://" in str(each) for each in found)


def test_what_opens_after_its_caller_left_is_kept_for_the_next(wire: Wire) -> None:
    """A connection slower than one deadline still serves the next caller."""
    with pytest.raises(NotConnected):
        wire.connector.take(now_ms() + 30)
    wire.go.set()
    link = wire.connector.take(now_ms() + 2_000)
    assert link is wire.opening[0]
    assert len(wire.opening) == 1


def test_a_failed_attempt_fails_all_who_wait_for_it(wire: Wire) -> None:
    """They learn at once, and the next caller tries anew."""
    wire.fails = True
    began = now_ms()
    starter = threading.Timer(0.05, wire.go.set)
    starter.start()
    found = on_threads(5, lambda: wire.connector.take(began + 5_000))
    starter.join()
    assert now_ms() - began < 2_000
    assert {str(each) for each in found} == {"refused"}
    assert len(wire.opening) == 1
    wire.fails = False
    assert isinstance(wire.connector.take(now_ms() + 2_000), Fake)


def test_a_link_given_back_goes_to_who_waits_and_else_is_kept(wire: Wire) -> None:
    """The newest idle link is used first; one that went stale while idle is closed and passed over."""
    wire.go.set()
    first = wire.connector.take(soon())
    wire.go.clear()
    taken: list[Fake] = []
    waiter = threading.Thread(target=lambda: taken.append(wire.connector.take(soon())))
    waiter.start()
    while len(wire.opening) < 2:
        wire.began.wait(1)
    wire.connector.give(first)
    waiter.join()
    assert taken == [first]
    wire.go.set()
    wire.connector.give(first)
    assert wire.connector.take(soon()) in wire.opening
    wire.connector.give(first)
    wire.stale = True
    fresh = wire.connector.take(soon())
    assert fresh is not first
    assert first.closed


def test_an_attempt_that_hangs_for_long_is_cut_off(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next caller ends it, so that a server that came back is reached."""
    monkeypatch.setattr(module, "LONGEST_ATTEMPT_MS", 20)
    with pytest.raises(NotConnected):
        wire.connector.take(now_ms() + 60)
    with pytest.raises(NotConnected, match="cut"):
        wire.connector.take(now_ms() + 2_000)
    wire.go.set()
    assert isinstance(wire.connector.take(soon()), Fake)


def test_a_closed_connector_closes_what_comes_back_and_can_be_used_again(wire: Wire) -> None:
    """What was in use when it was closed is closed when it is given back."""
    wire.go.set()
    link = wire.connector.take(soon())
    wire.connector.close()
    wire.connector.give(link)
    assert link.closed
    assert wire.connector.take(soon()) is not link


def in_child(work: object) -> int:
    """Run `work` in a forked child; its exit status, 0 if it returned True."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 2  # type: ignore[operator]
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("url", ["valkey_url", "sqlite"])
def test_a_forked_child_has_a_connection_of_its_own(
    url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Parent and child go on at once, each on its own connection, and neither disturbs the other."""
    store = open_store(f"sqlite:{tmp_path}/leases.db" if url == "sqlite" else request.getfixturevalue(url))
    port = store.blocking()
    assert port.call(Create("parent", value(1), MINUTE_MS, soon())) == Granted()

    def child() -> bool:
        for at in range(50):
            if port.call(Create(f"child{at}", value(2), MINUTE_MS, soon())) != Granted():
                return False
            if not isinstance(port.call(Create("parent", value(2), MINUTE_MS, soon())), Held):
                return False
        port.close()
        return True

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if child() else 2
        finally:
            os._exit(status)
    for _ in range(100):
        reply = port.call(Peek("parent", soon()))
        assert isinstance(reply, Held)
        assert reply.value == value(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert isinstance(port.call(Create("child3", value(1), MINUTE_MS, soon())), Held)
    port.close()


def test_a_fork_drops_descriptors_and_says_nothing(wire: Wire) -> None:
    """In the child every link is dropped, none is closed politely, and the parent's are as they were."""
    wire.go.set()
    idle, used = wire.connector.take(soon()), wire.connector.take(soon())
    wire.connector.give(idle)

    def child() -> bool:
        return idle.dropped and used.dropped and not idle.closed and not used.closed

    assert in_child(child) == 0
    assert not idle.dropped
    assert wire.connector.take(soon()) is idle


def test_a_forked_child_keeps_no_socket_of_its_parent(proxy: Proxy, valkey_url: str) -> None:
    """The descriptor is closed in the child, and the parent goes on over the very connection that it had."""
    port = open_store(proxy.url(valkey_url)).blocking()
    assert port.call(Peek("k", soon())) == Vacant()
    names = [path.name for path in Path("/proc/self/fd").iterdir()]
    descriptors = [int(name) for name in names if _peer(int(name)) == proxy.port]
    assert descriptors
    before = proxy.counts

    def child() -> bool:
        return all(_peer(descriptor) != proxy.port for descriptor in descriptors)

    assert in_child(child) == 0
    assert port.call(Peek("k", soon())) == Vacant()
    after = proxy.counts
    assert after.connections == before.connections
    assert after.requests == before.requests + 1
    port.close()


def _peer(descriptor: int) -> int | None:
    """The port that a socket is connected to; None for anything else."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return int(copy.getpeername()[1])
    except (OSError, IndexError, ValueError):
        return None


def test_a_fork_waits_for_a_write_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's locks live in memory: a child forked in the middle of a transaction would be left with them for good."""
    port = open_store(f"sqlite:{tmp_path}/leases.db").blocking()
    inside, go = threading.Event(), threading.Event()
    answer = Rows.answer

    def slow(rows: Rows, connection: sqlite3.Connection, request: StoreRequest) -> StoreReply:
        reply = answer(rows, connection, request)
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go.wait(5)
        return reply

    monkeypatch.setattr(Rows, "answer", slow)
    writer = threading.Thread(target=lambda: port.call(Create("k", value(1), MINUTE_MS, soon())))
    writer.start()
    inside.wait(5)
    later = threading.Timer(0.1, go.set)
    later.start()
    assert (
        in_child(lambda: port.call(Create("child", value(9), MINUTE_MS, now_ms() + 1_000)) == Granted()) == 0
    )
    writer.join()
    later.join()
    assert isinstance(port.call(Create("child", value(1), MINUTE_MS, soon())), Held)
    port.close()


def test_a_file_open_at_a_fork_is_not_taken_from_the_child(tmp_path: Path) -> None:
    """When the parent closes, what the child writes later is still written where everybody reads."""
    port = open_store(f"sqlite:{tmp_path}/leases.db").blocking()
    assert port.call(Create("first", value(1), MINUTE_MS, soon())) == Granted()
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            granted = port.call(Create("child1", value(2), MINUTE_MS, soon())) == Granted()
            os.write(from_child, b"1")
            os.read(to_child, 1)
            status = (
                0 if granted and port.call(Create("child2", value(2), MINUTE_MS, soon())) == Granted() else 2
            )
        finally:
            os._exit(status)
    os.read(to_parent, 1)
    port.close()
    os.write(from_parent, b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for key in ("child1", "child2"):
        assert isinstance(port.call(Create(key, value(1), MINUTE_MS, soon())), Held), key
    port.close()
    for end in (to_child, from_parent, to_parent, from_child):
        os.close(end)


def test_a_fork_while_another_thread_writes_does_not_spoil_the_child(tmp_path: Path) -> None:
    """Children forked at random moments of a busy parent claim as usual."""
    port = open_store(f"sqlite:{tmp_path}/leases.db").blocking()
    stop = threading.Event()

    def write() -> None:
        at = 0
        while not stop.is_set():
            port.call(Create(f"k{at % 50}", value(at), MINUTE_MS, soon()))
            at += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for turn in range(10):
            key = f"turn{turn}"
            assert (
                in_child(lambda key=key: port.call(Create(key, value(9), MINUTE_MS, soon())) == Granted())
                == 0
            )
            assert isinstance(port.call(Create(key, value(1), MINUTE_MS, soon())), Held)
    finally:
        stop.set()
        writer.join()
        port.close()
