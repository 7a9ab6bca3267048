"""The servers and the run's own promises do what the other tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support import servers
from tests.support.servers import Server
from tests.support.shared import Shared
from tests.support.wire import Wire

ROOT = Path(__file__).parent.parent
Start = Callable[..., Server]


# --- servers


def test_a_shared_server_offers_each_test_an_empty_database(redis_url: str) -> None:
    """Whatever another test of this worker left in its database is gone."""
    port, number = int(redis_url.split(":")[2].split("/", maxsplit=1)[0]), redis_url.rpartition("/")[2]
    assert servers.resp(port, f"SELECT {number}", "DBSIZE") == b":0\r\n"
    assert servers.resp(port, f"SELECT {number}", "SET left behind") == b"+OK\r\n"


def test_the_two_redis_like_servers_are_what_their_names_say(valkey: Shared, redis7: Shared) -> None:
    """`valkey` is a Valkey and `redis7` a Redis, in two processes."""
    with Wire(valkey.port) as first, Wire(redis7.port) as second:
        for wire, expected in ((first, b"valkey_version"), (second, b"redis_version")):
            wire.send("INFO server")
            wire.socket.settimeout(5)
            assert expected in wire.socket.recv(1 << 16)
    assert valkey.pid != redis7.pid


def test_a_paused_server_keeps_its_connections_and_answers_after_it_is_resumed(private_redis: Start) -> None:
    """Pausing is a hang and not a crash: the request waits and is answered later."""
    server = private_redis()
    with Wire(server.port) as wire:
        assert wire.ask("PING") == b"+PONG\r\n"
        server.pause()
        wire.send("PING")
        assert wire.silent_for(0.1)
        server.resume()
        assert wire.line() == b"+PONG\r\n"


def test_a_killed_server_refuses_and_comes_back_empty_on_the_same_port(private_redis: Start) -> None:
    """A restart is what a cache server's restart is: same address, another process, no keys."""
    server = private_redis()
    port, pid = server.port, server.pid
    assert servers.resp(port, "SET k v") == b"+OK\r\n"
    server.kill()
    assert not servers.alive(pid)
    with pytest.raises(ConnectionRefusedError):
        servers.resp(port, "PING")
    server.restart()
    assert (server.port, server.pid != pid) == (port, True)
    assert servers.resp(port, "EXISTS k") == b":0\r\n"


def test_a_private_server_takes_a_password_a_memory_limit_and_an_acl(private_valkey: Start) -> None:
    """The options reach the server, and the URL carries the password."""
    locked = private_valkey(password="s3cret", maxmemory="5mb", policy="allkeys-lru")
    assert locked.url == f"redis://:s3cret@127.0.0.1:{locked.port}/0"
    assert servers.resp(locked.port, "PING").startswith(b"-NOAUTH")
    assert servers.resp(locked.port, "PING", password="s3cret") == b"+PONG\r\n"
    assert (
        b"maxmemory"
        not in servers.resp(locked.port, "CONFIG SET maxmemory-policy nonsense", password="s3cret")[:10]
    )
    narrow = private_valkey(acl="user default on nopass ~* &* +@all -eval")
    assert servers.resp(narrow.port, "EVAL return 0").startswith(b"-NOPERM")
    assert servers.resp(narrow.port, "PING") == b"+PONG\r\n"


def test_a_second_private_server_is_another_one(private_valkey: Start) -> None:
    """Private servers do not share a process, a port or a folder."""
    first, second = private_valkey(), private_valkey(args=["--maxclients", "7"])
    assert first.port != second.port
    assert first.pid != second.pid
    assert first.dir != second.dir


def test_a_stopped_server_leaves_neither_process_nor_folder(private_postgres: Start) -> None:
    """`stop()` ends the children as well and removes what was written."""
    server = private_postgres()
    family = [server.pid, *(child.pid for child in psutil.Process(server.pid).children(recursive=True))]
    assert len(family) > 1
    server.stop()
    assert not any(servers.alive(pid) for pid in family)
    assert not server.dir.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child's life to its parent's")
def test_servers_die_with_a_killed_test_process(valkey: Shared, tmp_path: Path) -> None:
    """After `kill -9` of the process that started them, no server lives on."""
    code = "from tests.support import servers; print(servers.valkey().pid, flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        server = int(child.stdout.readline())
        assert servers.alive(server)
        child.send_signal(signal.SIGKILL)
        child.wait()
        servers.wait(lambda: not servers.alive(server), "the server to die", 5)


def test_every_test_gets_a_database_of_its_own(pg_dsn: str, make_database: Callable[[], str]) -> None:
    """What is written to one fresh database is not in the next, and both are durable ones."""
    with psycopg.connect(pg_dsn) as first, psycopg.connect(make_database()) as second:
        first.execute("CREATE TABLE here (n int)")
        assert first.execute("SELECT to_regclass('here')").fetchone() == ("here",)
        assert second.execute("SELECT to_regclass('here')").fetchone() == (None,)
        assert first.execute("SHOW fsync").fetchone() == ("on",)
        assert first.info.server_version >= 18_00_00


def test_a_killed_postgres_keeps_what_was_committed(private_postgres: Start) -> None:
    """`kill()` and `restart()` are a crash and a recovery: committed rows stay, uncommitted ones do not."""
    server = private_postgres()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (1)")
    unfinished = psycopg.connect(server.url)
    unfinished.execute("INSERT INTO kept VALUES (2)")
    server.kill()
    unfinished.close()
    server.restart()
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]


def test_a_paused_postgres_answers_nobody_who_is_connected(private_postgres: Start) -> None:
    """Pausing freezes the process that serves a connection too, not only the one that accepts."""
    server = private_postgres(fsync=False)
    with psycopg.connect(server.url, autocommit=True) as connection:
        done = threading.Event()
        server.pause()

        def ask() -> None:
            connection.execute("SELECT 1")
            done.set()

        thread = threading.Thread(target=ask)
        thread.start()
        assert not done.wait(0.1)
        server.resume()
        assert done.wait(5)
        thread.join()


def test_postgres_can_ask_for_a_password(private_postgres: Start) -> None:
    """With `password=` a wrong one is refused, so that tests can look for it in what is printed."""
    server = private_postgres(password="s3cret", settings={"lock_timeout": "123ms"})
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SHOW lock_timeout").fetchone() == ("123ms",)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url.replace("s3cret", "wrong"))


# --- the run itself


def run_pytest(folder: Path, test: str, *arguments: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    """Run a small test file under this suite's conftest, in a process of its own where Valkey is missing."""
    (folder / "test_small.py").write_text(test)
    (folder / "no_valkey.py").write_text(
        "from tests.support import shared\n"
        "def start():\n    raise shared.Missing('Valkey (pip install something)')\n"
        "shared.START['valkey'] = start\n"
    )
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CLAIMANT_"))
    }
    path = os.pathsep.join(filter(None, [str(folder), inherited.get("PYTHONPATH")]))
    plugins = "-p no:cacheprovider -p no:valkey -p tests.conftest -p no_valkey"
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), *plugins.split()]
    return subprocess.run(
        [*command, *arguments, str(folder / "test_small.py")],
        cwd=ROOT,
        env=inherited | {"PYTHONPATH": path, "CI": ci},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


TWO_TESTS = "def test_one(valkey): pass\ndef test_two(valkey_url): pass\ndef test_three(): pass\n"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_missing_server_is_one_loud_line(tmp_path: Path, workers: str) -> None:
    """The tests that need it are skipped, and one line at the end counts them over all workers."""
    done = run_pytest(tmp_path, TWO_TESTS, "-n", workers)
    assert done.returncode == 0, done.stdout + done.stderr
    loud = [line for line in done.stdout.splitlines() if "!!!" in line]
    assert loud == ["!!! 2 tests did NOT run: 2 for want of Valkey (pip install something)"]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_missing_server_fails_where_ci_is_set(tmp_path: Path, workers: str) -> None:
    """With CI set the same tests fail, so that a green run means that the servers were there."""
    done = run_pytest(tmp_path, TWO_TESTS, "-n", workers, ci="true")
    assert done.returncode == 1
    assert "2 errors" in done.stdout
    assert "missing server: Valkey" in done.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_process_that_a_test_leaves_behind_fails_the_run(tmp_path: Path, workers: str) -> None:
    """Even a detached one, whose parent is gone, is found and named, although every test passed."""
    test = (
        "import subprocess, sys\n"
        "def test_leaves():\n"
        '    code = \'import subprocess, sys; print(subprocess.Popen([sys.executable, "-c", "import time;'
        " time.sleep(60)\"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True).pid)'\n"
        "    out = subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True).stdout\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(out)\n"
    )
    done = run_pytest(tmp_path, test, "-n", workers)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert "1 passed" in done.stdout
    assert "a test left a process behind" in done.stdout
    assert done.returncode == 1
