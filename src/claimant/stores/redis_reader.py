"""Reads RESP2, the replies of Redis and Valkey: with hiredis where it is installed, else in Python.

It is fed bytes as they come, and gives one reply at a time, or False while there is none.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from claimant.stores.redis_asking import Reply
from claimant.stores.redis_words import ErrorReply


class Reader(Protocol):
    """What takes bytes and gives replies."""

    def feed(self, buffer: bytearray, offset: int, size: int, /) -> Any:
        """Take `size` bytes of `buffer`."""

    def gets(self) -> Any:
        """The next reply; False if it is not complete yet. Raises `ValueError` for bytes that are not RESP."""


class NotResp(ValueError):
    """The other side does not speak RESP."""


def reader() -> Reader:
    """A new reader, the fastest there is."""
    try:
        import hiredis
    except ImportError:
        return PlainReader()
    return cast("Reader", hiredis.Reader(protocolError=NotResp, replyError=ErrorReply))


class PlainReader:
    """RESP2 in Python."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, buffer: bytearray, offset: int, size: int, /) -> None:
        """Take `size` bytes of `buffer`."""
        self._data += memoryview(buffer)[offset : offset + size]

    def gets(self) -> Reply:
        """The next reply; False if it is not complete yet."""
        try:
            reply, end = self._parse(0)
        except IndexError:
            return False
        del self._data[:end]
        return reply

    def _parse(self, at: int) -> tuple[Reply, int]:
        end = self._data.find(b"\r\n", at)
        if end < 0:
            raise IndexError
        kind, line, at = self._data[at : at + 1], bytes(self._data[at + 1 : end]), end + 2
        match bytes(kind):
            case b"+":
                return line, at
            case b"-":
                return ErrorReply(line.decode(errors="replace")), at
            case b":":
                return int(line), at
            case b"$":
                size = int(line)
                if size < 0:
                    return None, at
                if len(self._data) < at + size + 2:
                    raise IndexError
                return bytes(self._data[at : at + size]), at + size + 2
            case b"*":
                items: list[Reply] = []
                for _ in range(int(line)):
                    item, at = self._parse(at)
                    items.append(item)
                return None if line == b"-1" else items, at
        raise NotResp(f"a reply begins with {bytes(kind)!r}")
