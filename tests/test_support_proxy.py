"""The faulty proxy and the silent name service do what the other tests rely on."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support import dns, servers
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.shared import Shared
from tests.support.wire import Wire

ROOT = Path(__file__).parent.parent
Start = Callable[..., Server]


# --- the proxy


@pytest.fixture
def proxy(valkey: Shared) -> Iterator[Proxy]:
    with Proxy(valkey.port) as between:
        yield between


@pytest.fixture
def key(valkey_url: str) -> str:
    """A key that no other worker uses: the tests below talk to database 0, which all of them share."""
    return f"{os.getpid()}-{time.monotonic_ns()}"


def test_the_proxy_passes_both_ways_and_counts(proxy: Proxy, valkey: Shared) -> None:
    """Without a fault nothing is changed, and every connection, request and byte is counted."""
    with Wire(proxy.port) as wire:
        assert wire.ask("PING") == b"+PONG\r\n"
        assert wire.ask("PING") == b"+PONG\r\n"
        counts = proxy.wait(lambda seen: seen.bytes_to_client == 14)
    assert (counts.connections, counts.requests, counts.faults) == (1, 2, 0)
    assert counts.bytes_to_server == 28
    assert (
        proxy.url("redis://:pw@127.0.0.1:1/3?deadline=1s")
        == f"redis://:pw@127.0.0.1:{proxy.port}/3?deadline=1s"
    )
    assert proxy.url(valkey.url) == f"redis://127.0.0.1:{proxy.port}/0"


def test_refuse_closes_what_is_open_and_refuses_what_is_new(proxy: Proxy) -> None:
    """While it refuses nobody listens on the port; after `heal()` the same port serves again."""
    with Wire(proxy.port) as wire:
        assert wire.ask("PING") == b"+PONG\r\n"
        for _ in range(3):
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                Wire(proxy.port)
            proxy.refuse()
            proxy.heal()
            with Wire(proxy.port) as again:
                assert again.ask("PING") == b"+PONG\r\n"
        assert wire.line() == b""


def test_black_hole_accepts_and_never_answers(proxy: Proxy, valkey: Shared, key: str) -> None:
    """The connection is taken and the request is neither answered nor applied."""
    proxy.black_hole()
    with Wire(proxy.port) as wire:
        wire.send(f"SET {key} 1")
        assert wire.silent_for(0.1)
    assert servers.resp(valkey.port, f"EXISTS {key}") == b":0\r\n"
    assert proxy.counts.bytes_to_server == 0


def test_drip_delivers_a_byte_at_a_time(proxy: Proxy) -> None:
    """A reply of seven bytes at 20 ms each takes at least 140 ms, though every read makes progress."""
    proxy.drip(byte_ms=20)
    with Wire(proxy.port) as wire:
        began = time.monotonic()
        wire.send("PING")
        assert wire.socket.recv(100) == b"+"
        assert wire.line() == b"PONG\r\n"
        assert time.monotonic() - began >= 0.140


def test_delay_answers_late_though_the_request_was_applied_at_once(
    proxy: Proxy, valkey: Shared, key: str
) -> None:
    """The effect is there before the reply is."""
    proxy.delay(reply_ms=150)
    with Wire(proxy.port) as wire:
        began = time.monotonic()
        wire.send(f"SET {key} 1")
        proxy.wait(lambda seen: seen.bytes_to_server > 0)
        assert wire.silent_for(0.05)
        assert servers.resp(valkey.port, f"EXISTS {key}") == b":1\r\n"
        assert wire.line() == b"+OK\r\n"
        assert time.monotonic() - began >= 0.150


@pytest.mark.parametrize("close", [True, False], ids=["close", "silent"])
def test_cut_after_request_applies_and_loses_the_reply(
    proxy: Proxy, valkey: Shared, key: str, close: bool
) -> None:
    """The server has the key and the client has no answer; then the connection is closed or stays mute for good."""
    proxy.cut_after_request(close=close, times=1)
    with Wire(proxy.port) as wire:
        wire.send(f"SET {key} 1")
        assert proxy.wait(lambda seen: seen.discarded == 1).faults == 1
        assert servers.resp(valkey.port, f"EXISTS {key}") == b":1\r\n"
        if close:
            assert wire.line() == b""
        else:
            wire.send("PING")
            assert wire.silent_for(0.1)
    with Wire(proxy.port) as wire:
        assert wire.ask("PING") == b"+PONG\r\n"


def test_a_path_can_be_cut_one_way(proxy: Proxy, valkey: Shared, key: str) -> None:
    """Cut to the server, a request is not applied; cut to the client, it is, and the answer is lost; both heal."""
    with Wire(proxy.port) as wire:
        assert wire.ask("PING") == b"+PONG\r\n"
        proxy.cut_to_server()
        wire.send(f"SET {key} 1")
        assert wire.silent_for(0.1)
        assert servers.resp(valkey.port, f"EXISTS {key}") == b":0\r\n"
        proxy.cut_to_client()
        wire.send(f"SET {key} 2")
        proxy.wait(lambda seen: seen.discarded == 1)
        assert servers.resp(valkey.port, f"EXISTS {key}") == b":1\r\n"
        proxy.heal()
        assert wire.ask("PING") == b"+PONG\r\n"


def test_cut_to_server_still_delivers_what_the_server_sends_by_itself(
    proxy: Proxy, valkey: Shared, key: str
) -> None:
    """A push arrives over a path that is broken the other way, and does not over one cut to the client."""
    with Wire(proxy.port) as wire:
        wire.send(f"SUBSCRIBE {key}")
        wire.socket.settimeout(5)
        assert wire.socket.recv(1000).startswith(b"*3")
        proxy.cut_to_server()
        assert servers.resp(valkey.port, f"PUBLISH {key} a") == b":1\r\n"
        assert wire.socket.recv(1000).startswith(b"*3")
        proxy.cut_to_client()
        assert servers.resp(valkey.port, f"PUBLISH {key} b") == b":1\r\n"
        proxy.wait(lambda seen: seen.discarded == 1)
        assert wire.silent_for(0.05)


def test_a_fault_may_meet_only_the_next_requests_that_match(proxy: Proxy) -> None:
    """`times` and `match` choose the requests; everything else passes, and afterwards all does."""
    proxy.black_hole(times=2, match=b"ECHO")
    with Wire(proxy.port) as wire:
        assert wire.ask("PING") == b"+PONG\r\n"
        wire.send("ECHO a")
        proxy.wait(lambda seen: seen.faults == 1)
        assert wire.ask("PING") == b"+PONG\r\n"
        wire.send("ECHO b")
        proxy.wait(lambda seen: seen.faults == 2)
        wire.send("ECHO c")
        assert wire.line() == b"$1\r\n"
        assert wire.line() == b"c\r\n"


def test_dropped_connections_end_and_new_ones_are_taken(proxy: Proxy) -> None:
    """`drop_connections()` is a server's idle time-out, not an outage."""
    with Wire(proxy.port) as wire:
        assert wire.ask("PING") == b"+PONG\r\n"
        proxy.drop_connections()
        assert wire.line() == b""
    with Wire(proxy.port) as wire:
        assert wire.ask("PING") == b"+PONG\r\n"


def test_a_closed_proxy_leaves_no_thread_even_in_the_middle_of_a_delay(valkey: Shared) -> None:
    """Closing does not wait for a fault to run out."""
    before = set(threading.enumerate())
    began = time.monotonic()
    with Proxy(valkey.port) as proxy, Wire(proxy.port) as wire:
        proxy.delay(reply_ms=60_000)
        wire.send("PING")
        proxy.wait(lambda seen: seen.requests == 1)
    assert time.monotonic() - began < 10
    assert set(threading.enumerate()) <= before


def test_the_proxy_carries_postgres(postgres: Shared) -> None:
    """A real session passes, and a COMMIT whose answer is lost has been applied."""
    name = f"proxied_{os.getpid()}"
    with Proxy(postgres.port) as proxy, psycopg.connect(postgres.url, autocommit=True) as outside:
        with psycopg.connect(proxy.url(postgres.url)) as connection:
            connection.execute(f"CREATE TABLE {name} (n int)")
            proxy.cut_after_request(times=1, match=b"COMMIT")
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
        outside.execute(f"DROP TABLE {name}")


# --- the name service


def test_a_name_hangs_and_other_names_do_not() -> None:
    """Within the block the look-up does not return, and at its end it fails as a name service does."""
    failed: list[BaseException] = []

    def look_up() -> None:
        try:
            socket.create_connection(("silent.invalid", 6379))
        except OSError as error:
            failed.append(error)

    real = socket.getaddrinfo
    with dns.hanging("silent.invalid") as hang:
        thread = threading.Thread(target=look_up)
        thread.start()
        assert hang.entered.wait(5)
        assert socket.getaddrinfo("127.0.0.1", 1)
        assert thread.is_alive()
    thread.join(5)
    assert isinstance(failed[0], socket.gaierror)
    assert socket.getaddrinfo is real


def test_a_name_hangs_for_asyncio_too() -> None:
    """The event loop's own resolver passes through the same place."""

    async def main(hang: dns.Hang) -> None:
        look_up = asyncio.ensure_future(asyncio.get_running_loop().getaddrinfo("silent.invalid", 1))
        assert await asyncio.to_thread(hang.entered.wait, 5)
        assert not look_up.done()
        hang.release()
        with pytest.raises(socket.gaierror):
            await look_up

    with dns.hanging("silent.invalid") as hang:
        asyncio.run(main(hang))


def test_a_name_hangs_in_a_child_by_its_environment() -> None:
    """A child that asks for it has the same silent names, and ends although a look-up never returns."""
    code = (
        "import socket, threading; from tests.support import dns; hang = dns.hang_from_environment();"
        "threading.Thread(target=socket.getaddrinfo, args=('silent.invalid', 1), daemon=True).start();"
        "print(hang.entered.wait(5), hang.lookups)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=dns.environment("silent.invalid"),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (child.stdout, child.returncode) == ("True 1\n", 0), child.stderr
