"""One connection on one event loop, shared by its tasks in the order of their sends.

What tasks send in one turn of the loop leaves together. A reply goes to the oldest question, always; a task that was
cancelled or ran out of time leaves its place behind, so that no reply can be taken for another's, and the
connection takes no new question after that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias
from weakref import ref

from claimant.stores.redis_asking import Batch, Reply, Silence, pack
from claimant.stores.redis_link import WOULD_BLOCK, RedisLink

Loop: TypeAlias = asyncio.AbstractEventLoop
Answer: TypeAlias = "asyncio.Future[list[Reply] | Silence]"


class Line:
    """One connection on one loop. Holds no reference to the loop that would keep it alive."""

    def __init__(self, loop: Loop, link: RedisLink, lose: Callable[[RedisLink], None]) -> None:
        self._loop = ref(loop)
        self._link = link
        self._lose = lose
        self._asked: deque[tuple[Answer, int, list[Reply]]] = deque()
        self._out: list[bytes] = []
        self._flushing = False
        self.open = True
        self._retired = False
        link.socket.setblocking(False)
        loop.add_reader(link.socket, self._readable)

    @property
    def taking(self) -> bool:
        """Whether it takes new questions."""
        return self.open and not self._retired

    def ask(self, loop: Loop, batch: Batch) -> Answer:
        """Send `batch` with what else is sent in this turn; the future gives its replies, or why there are none."""
        answer: Answer = loop.create_future()
        if not self.open:
            answer.set_result(Silence("the connection broke in the middle"))
            return answer
        self._asked.append((answer, len(batch), []))
        self._out.append(pack(batch))
        if not self._flushing:
            self._flushing = True
            loop.call_soon(self._flush)
        return answer

    def retire(self) -> None:
        """Take no new questions; close when nobody waits any more."""
        self._retired = True
        self._close_if_done()

    def fail(self, reason: str) -> None:
        """Close, and tell everybody who waits."""
        if not self.open:
            return
        self.open = False
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._link.socket)
            loop.remove_writer(self._link.socket)
        self._lose(self._link)
        asked, self._asked = self._asked, deque()
        for answer, _, replies in asked:
            if not answer.done():
                answer.set_result(Silence(reason, replies))

    def _flush(self) -> None:
        self._flushing = False
        loop = self._loop()
        if not self.open or loop is None:
            return
        data = b"".join(self._out)
        self._out.clear()
        try:
            sent = self._link.socket.send(data)
        except WOULD_BLOCK:
            sent = 0
        except OSError as error:
            self.fail(f"the connection broke ({error.strerror or type(error).__name__})")
            return
        if sent < len(data):
            self._out.append(data[sent:])
            self._flushing = True
            loop.add_writer(self._link.socket, self._flush)
        else:
            loop.remove_writer(self._link.socket)

    def _readable(self) -> None:
        link = self._link
        while self.open:
            try:
                size = link.socket.recv_into(link.buffer)
            except WOULD_BLOCK:
                return
            except OSError as error:
                self.fail(
                    f"the connection broke before the answer ({error.strerror or type(error).__name__})"
                )
                return
            if not size:
                self.fail("the server closed the connection before it answered")
                return
            try:
                link.reader.feed(link.buffer, 0, size)
                self._hand_out()
            except ValueError as error:
                self.fail(f"what answers is not a Redis or Valkey ({type(error).__name__})")
            if size < len(link.buffer):
                break
        self._close_if_done()

    def _hand_out(self) -> None:
        while self._asked:
            reply = self._link.reader.gets()
            if reply is False:
                return
            answer, wanted, replies = self._asked[0]
            replies.append(reply)
            if len(replies) == wanted:
                self._asked.popleft()
                if not answer.done():
                    answer.set_result(replies)

    def _close_if_done(self) -> None:
        if self._retired and all(answer.done() for answer, _, _ in self._asked):
            self.fail("")
