"""One shared server of each kind for a whole test run, started when the first test asks for it.

The process that started the run owns them, because it outlives every xdist worker; the workers ask it over a Unix
socket. Nobody pauses or kills a shared server: who wants that starts a private one.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support import servers
from tests.support.servers import Missing, Server

START: dict[str, Callable[[], Server]] = {
    "valkey": servers.valkey,
    "redis7": servers.redis7,
    "postgres": servers.postgres,
}


@dataclass(frozen=True, slots=True)
class Shared:
    """A server that other tests use at the same time."""

    name: str
    url: str
    port: int
    pid: int


class Shelf:
    """The shared servers of this run, in the process that started it."""

    def __init__(self) -> None:
        self._servers: dict[str, Server | Missing] = {}
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._dir: Path | None = None

    def get(self, name: str) -> Shared:
        """The shared server of that name, started if need be.

        Raises:
            Missing: this machine does not have it.
        """
        if name not in self._servers:
            try:
                self._servers[name] = START[name]()
            except Missing as absent:
                self._servers[name] = absent
        found = self._servers[name]
        if isinstance(found, Missing):
            raise Missing(*found.args)
        return Shared(name, found.url, found.port, found.pid)

    def serve(self) -> str:
        """Answer xdist workers from now on; returns the address to hand to them."""
        if self._dir is None:
            self._dir = Path(tempfile.mkdtemp(prefix="claimant-tests-"))
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(self._dir / "shelf"))
            self._listener.listen(64)
            self._thread = threading.Thread(target=self._answer, name="shelf", daemon=True)
            self._thread.start()
        return str(self._dir / "shelf")

    def stop(self) -> None:
        """Stop every server that was started."""
        if self._thread is not None:
            with contextlib.suppress(OSError):
                _ask(self.serve(), "stop")
            self._thread.join(timeout=10)
        if self._listener is not None:
            self._listener.close()
        if self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
        for each in self._servers.values():
            if isinstance(each, Server):
                each.stop()
        self._servers.clear()

    def _answer(self) -> None:
        servers.this_thread_lasts()
        assert self._listener is not None
        while True:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rw") as stream, contextlib.suppress(OSError):
                name = stream.readline().strip()
                if name == "stop":
                    # This thread started servers: they go before it does, or Linux takes them with it unasked.
                    for each in self._servers.values():
                        if isinstance(each, Server):
                            each.stop()
                    return
                try:
                    answer: dict[str, object] = asdict(self.get(name))
                except Missing as absent:
                    answer = {"missing": str(absent)}
                except Exception as failed:
                    answer = {"failed": f"{type(failed).__name__}: {failed}"}
                stream.write(json.dumps(answer) + "\n")
                stream.flush()


def ask(address: str, name: str) -> Shared:
    """From a worker: the shared server of that name.

    Raises:
        Missing: this machine does not have it.
    """
    answer = json.loads(_ask(address, name))
    if "missing" in answer:
        raise Missing(answer["missing"])
    if "failed" in answer:
        raise RuntimeError(f"shared {name} did not start: {answer['failed']}")
    return Shared(**answer)


def _ask(address: str, name: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(address)
        with connection.makefile("rw") as stream:
            stream.write(name + "\n")
            stream.flush()
            return stream.readline()
