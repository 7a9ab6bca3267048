"""Redis (6.2 and later) and Valkey, standalone: leases as keys with a lifetime.

Nothing is opened, and no client library imported, before a port is made. A port never re-sends: whether a silent
request is sent again is the flow's decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from claimant._drive.clock import now_ms
from claimant._drive.connector import Connector, NotConnected
from claimant._drive.ports import LeaseRow
from claimant._drive.worker import Worker
from claimant._model.capability import Capabilities
from claimant._model.errors import NotDone
from claimant._model.ops import StoreReply, StoreRequest
from claimant.stores.redis_asking import USUAL, Batch, Command, Reply, Silence, text_of
from claimant.stores.redis_clients import Source
from claimant.stores.redis_codec import not_sent, talk
from claimant.stores.redis_facts import Facts, plainly

if TYPE_CHECKING:
    from claimant.stores.redis_aio import RedisAioPort
    from claimant.stores.redis_link import RedisLink

CAPABILITIES = Capabilities(
    name="redis",
    shared=True,
    host_local=False,
    survives_restart=None,
    deadline_clock="the server's wall clock",
    resolution_ms=1,
    early_removal=None,
)
SCAN_COUNT = 500
BROKEN = "the connection broke in the middle"


class RedisStore:
    """One server, as a URL or a ready-made client names it. `deadline_ms` spans one claim; `address` is for people."""

    capabilities = CAPABILITIES

    def __init__(self, source: Source, deadline_ms: int) -> None:
        self._source = source
        self._worker = Worker("claimant-connect")
        self.deadline_ms = deadline_ms
        self.address = source.address

    def __repr__(self) -> str:
        return f"<RedisStore {self.address}>"

    def connector(self) -> Connector[RedisLink]:
        """Connections for one port. Imports the client library: the first time that takes a while, and no deadline runs."""
        from claimant.stores.redis_link import RedisLink

        make, secrets = self._source.load()
        return Connector(lambda: RedisLink(make, self.address, secrets), self._worker, self.address)

    def blocking(self) -> RedisPort:
        """A port for threads."""
        return RedisPort(self.connector())

    def aio(self) -> RedisAioPort:
        """A port for asyncio."""
        from claimant.stores.redis_aio import RedisAioPort

        return RedisAioPort(self.connector(), self.blocking)


class RedisPort:
    """The port for threads: each call takes a connection, and gives it back or closes it."""

    capabilities = CAPABILITIES

    def __init__(self, connector: Connector[RedisLink]) -> None:
        self._connector = connector
        self._facts = Facts()

    def call(self, request: StoreRequest) -> StoreReply:
        """Carry out one request by its `until_ms`; what the server or the network did is a reply."""
        until_ms: int = request.until_ms  # type: ignore[attr-defined]
        if now_ms() >= until_ms:
            return not_sent(request, "the deadline had passed before anything was sent")
        try:
            link: RedisLink | None = self._connector.take(until_ms)
        except NotConnected as error:
            return not_sent(request, str(error))
        assert link is not None
        told: list[Reply] | Silence | None = None
        word = ""
        try:
            plain = plainly(request, self._facts)
            if plain is not None:
                word, packed, wanted, usual, answer = plain
                told = link.converse(packed, wanted, until_ms, usual)
                if told is USUAL:
                    self._connector.give(link)
                    return answer
            conversation = talk(request, self._facts)
            batch = next(conversation)
            if isinstance(told, list) and batch[0][0] != word:
                told = None  # another thread has learned meanwhile that the server knows no such command
            while True:
                if told is None:
                    told = Silence(BROKEN) if link is None else link.exchange(batch, until_ms)
                if isinstance(told, Silence):
                    if link is not None:
                        self._connector.lose(link)
                        link = None
                    batch = conversation.throw(told)
                else:
                    batch = conversation.send(told)
                told = None
        except StopIteration as stop:
            if link is not None:
                self._connector.give(link)
            reply: StoreReply = stop.value
            return reply
        except BaseException:
            if link is not None:
                self._connector.lose(link)
            raise

    def scan(self, prefix: str, until_ms: int) -> Iterator[LeaseRow]:
        """Keys that start with `prefix`, by SCAN. Raises `NotDone` where the server does not answer."""
        pattern = "".join(f"\\{char}" if char in "*?[]\\^-" else char for char in prefix) + "*"
        cursor = "0"
        shown: set[str] = set()  # SCAN may give a key more than once
        while True:
            cursor_reply = self._ask([("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)], until_ms)[0]
            if not isinstance(cursor_reply, list) or not isinstance(cursor_reply[1], list):
                raise NotDone(
                    f"the lease store did not list its keys: {text_of(cursor_reply)[:120]}", retry_in=1.0
                )
            # Names of strangers need not be UTF-8: they go back exactly as they came.
            names = [name for name in map(_exact, cursor_reply[1]) if name not in shown]
            shown.update(names)
            commands: list[Command] = [
                command for name in names for command in (("GET", name), ("PTTL", name))
            ]
            replies = self._ask(commands, until_ms) if commands else []
            for name, value, left in zip(names, replies[::2], replies[1::2], strict=True):
                if left == -2 or value is None:
                    continue
                text = text_of(value) if isinstance(value, bytes | str) else "<another type>"
                yield LeaseRow(name, text, left if isinstance(left, int) and left >= 0 else None)
            cursor = text_of(cursor_reply[0])
            if cursor == "0":
                return

    def _ask(self, batch: Batch, until_ms: int) -> list[Reply]:
        try:
            link = self._connector.take(until_ms)
        except NotConnected as error:
            raise NotDone(f"the lease store is absent: {error}", retry_in=1.0) from None
        try:
            replies = link.exchange(batch, until_ms)
        except BaseException:
            self._connector.lose(link)
            raise
        if isinstance(replies, Silence):
            self._connector.lose(link)
            raise NotDone(f"the lease store did not answer: {replies.reason}", retry_in=1.0)
        self._connector.give(link)
        return replies

    def forget(self) -> None:
        """We are a forked child: drop what our parent uses."""
        self._connector.forget()

    def close(self) -> None:
        """Close the connections that are idle."""
        self._connector.close()


def _exact(name: Reply) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else text_of(name)
