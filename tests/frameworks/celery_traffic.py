"""What a broker was told, command by command, so that each acknowledgement can be held against what was done by then.

It only listens: MONITOR, on a Valkey of the test's own.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from tests.frameworks.celery_workers import Message, message_of

_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_LINE = re.compile(rb"\+(\d+\.\d+) \[(\d+) ([^\]]*)\] ")


@dataclass(frozen=True, slots=True)
class Told:
    """One command that the broker was given: when (epoch seconds), by whom, and its words."""

    at: float
    client: str
    words: list[bytes]


class Monitor:
    """Everything that the broker is told while the block lasts."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self._socket.sendall(b"MONITOR\r\n")
        assert self._socket.recv(5) == b"+OK\r\n"
        self._socket.settimeout(None)
        self._chunks: list[bytes] = []
        self._thread = threading.Thread(target=self._read, name="monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self._socket.recv(1 << 16):
                self._chunks.append(chunk)

    def told(self) -> list[Told]:
        """All of it, in order."""
        found = []
        for line in b"".join(self._chunks).split(b"\r\n"):
            if (head := _LINE.match(line)) is not None:
                words = [codecs.escape_decode(word)[0] for word in _WORD.findall(line, head.end())]
                found.append(Told(float(head[1]), head[3].decode(), words))
        return found


@dataclass
class Traffic:
    """What became of each message: sent, noted by a worker, acknowledged."""

    acknowledged: list[tuple[Message, float]] = field(default_factory=list)
    """In order, with the broker's time in epoch seconds."""
    _messages: dict[str, Message] = field(default_factory=dict)
    _sent: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """Of each task: when which retry was sent."""
    _on_the_way: Counter[str] = field(default_factory=Counter)
    """Of each tag: how often it was put into the queue, less how often a worker noted it."""
    _noted: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, told: list[Told]) -> Traffic:
        """Read it; a transaction is one thing that happened."""
        traffic = cls()
        open_ones: dict[str, list[Told]] = {}
        for each in told:
            match each.words[0].upper():
                case b"MULTI":
                    open_ones[each.client] = []
                case b"EXEC":
                    traffic._happened(open_ones.pop(each.client, []))
                case _ if each.client in open_ones:
                    open_ones[each.client].append(each)
                case _:
                    traffic._happened([each])
        return traffic

    def _happened(self, together: list[Told]) -> None:
        sent: set[str] = set()
        removed: list[tuple[str, float]] = []
        for each in together:
            match each.words:
                case [b"LPUSH" | b"RPUSH", b"celery", raw]:
                    message = message_of(json.loads(raw))
                    sent.add(message.tag)
                    self._messages[message.tag] = message
                    self._sent.setdefault(message.task_id, []).append((each.at, message.retries))
                    self._on_the_way[message.tag] += 1
                case [b"HSET", b"unacked", tag, _]:
                    self._noted.add(tag.decode())
                    self._on_the_way[tag.decode()] -= 1
                case [b"HDEL", b"unacked", tag]:
                    removed.append((tag.decode(), each.at))
        for gone, at in removed:
            # Removed and sent at once: given back, and not acknowledged.
            if gone in self._noted and gone not in sent:
                self.acknowledged.append((self._messages[gone], at))
            self._noted.discard(gone)

    def lost(self) -> list[Message]:
        """Messages that some worker took and never noted, once the queue is empty."""
        return [self._messages[tag] for tag, count in self._on_the_way.items() if count > 0]

    def retried_before(self, message: Message, at: float) -> bool:
        """Whether a later attempt at the message's task had been sent by then."""
        return any(when <= at and retries > message.retries for when, retries in self._sent[message.task_id])
