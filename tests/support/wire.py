"""A bare RESP connection, to see which bytes arrive and when; no client, so no pool, no retry and no time-out of its own."""

from __future__ import annotations

import socket
from typing import Self


class Wire:
    """A bare connection that speaks just enough RESP to see what arrives and when."""

    def __init__(self, port: int, timeout_s: float = 5.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)

    def send(self, command: str) -> None:
        words = command.split()
        self.socket.sendall(
            (f"*{len(words)}\r\n" + "".join(f"${len(each)}\r\n{each}\r\n" for each in words)).encode()
        )

    def line(self) -> bytes:
        """The next line, or what came of it before the server closed."""
        got = b""
        while not got.endswith(b"\r\n"):
            byte = self.socket.recv(1)
            if not byte:
                break
            got += byte
        return got

    def ask(self, command: str) -> bytes:
        self.send(command)
        return self.line()

    def silent_for(self, seconds: float) -> bool:
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b"never"
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
