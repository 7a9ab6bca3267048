"""How a question is put to Redis or Valkey, without I/O: commands, replies, silence, scripts, and who may say no.

Everything here is a generator that yields a batch of commands and is sent their replies; see `redis_codec`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from hashlib import sha1
from typing import TypeAlias

from claimant._model.ops import StoreUnknown
from claimant.stores.redis_words import ErrorReply

Command: TypeAlias = tuple[str | int, ...]
Batch: TypeAlias = list[Command]
Reply: TypeAlias = "bytes | str | int | list[Reply] | ErrorReply | Silence | None"
Asking: TypeAlias = Generator[Batch, list[Reply], list[Reply]]


USUAL: list[Reply] = []
"""Stands for the one reply that was expected, which nobody has to read then."""


class Silence(Exception):
    """The replies did not all come. `replies` are those that did; the rest may or may not have been applied."""

    def __init__(self, reason: str, replies: Sequence[Reply] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.replies = replies


CREATE = (
    "local v=redis.call('GET',KEYS[1]) if v then return v end "
    "redis.call('SET',KEYS[1],ARGV[1],'PX',ARGV[2]) return false"
)
RENEW = "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('PEXPIRE',KEYS[1],ARGV[2]) end return 0"
RELEASE = "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0"
# Redis itself names scripts by their SHA-1: nothing secret hangs on it.
SHA = {
    script: sha1(script.encode(), usedforsecurity=False).hexdigest() for script in (CREATE, RENEW, RELEASE)
}


def pack(commands: Batch) -> bytes:
    """The commands as RESP arrays of bulk strings (https://redis.io/docs/latest/develop/reference/protocol-spec/)."""
    pieces: list[bytes] = []
    for command in commands:
        pieces.append(b"*%d\r\n" % len(command))
        for word in command:
            data = _exactly(str(word))
            pieces.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(pieces)


def packed_create(key: str, value: str, lifetime_ms: int) -> bytes:
    """`SET key value NX GET PX lifetime`, packed from a template: `pack` takes four times as long."""
    name, data = _exactly(key), _exactly(value)
    end = _create_end(lifetime_ms)
    return b"*7\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n%b" % (len(name), name, len(data), data, end)


@lru_cache(maxsize=64)
def _create_end(lifetime_ms: int) -> bytes:
    return pack([("NX", "GET", "PX", lifetime_ms)]).partition(b"\r\n")[2]


def packed_release(key: str, value: str) -> bytes:
    """`DELIFEQ key value`, packed from a template."""
    name, data = _exactly(key), _exactly(value)
    return b"*3\r\n$7\r\nDELIFEQ\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(data), data)


def packed_left(key: str) -> bytes:
    """`PTTL key`, packed from a template."""
    name = _exactly(key)
    return b"*2\r\n$4\r\nPTTL\r\n$%d\r\n%b\r\n" % (len(name), name)


def _exactly(word: str) -> bytes:
    """As it goes over the wire. Names of strangers need not be UTF-8."""
    return word.encode("utf-8", "surrogateescape")


def asked(batch: Batch) -> Asking:
    """The replies to `batch`; a `Silence` stands for each that did not come."""
    try:
        return (yield batch)
    except Silence as silence:
        got = list(silence.replies)
        return got + [silence] * (len(batch) - len(got))


def scripted(script: str, calls: Sequence[tuple[str | int, ...]]) -> Asking:
    """Run a one-key script for each (key, *arguments): by its hash, and with its text where the server forgot it."""
    replies = yield from asked([("EVALSHA", SHA[script], 1, *call) for call in calls])
    lost = [
        at for at, reply in enumerate(replies) if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT"
    ]
    if lost:
        # The first one brings the text, and the rest of the same pipeline finds it.
        again: Batch = [("EVALSHA", SHA[script], 1, *calls[at]) for at in lost]
        again[0] = ("EVAL", script, 1, *calls[lost[0]])
        for at, reply in zip(lost, (yield from asked(again)), strict=True):
            replies[at] = reply
    return replies


def why_not_primary() -> Generator[Batch, list[Reply], StoreUnknown | None]:
    """None if the node is a primary. "Not there" from any other node proves nothing: a replica may lag behind.

    ROLE needs a permission; HELLO (Redis 6.2) is open to every user and names the role too.
    """
    role, hello = yield from asked([("ROLE",), ("HELLO",)])
    name = ""
    if isinstance(role, list) and role:
        name = text_of(role[0])
    elif isinstance(hello, list):
        words = [text_of(word) if isinstance(word, bytes | str) else "" for word in hello]
        name = words[words.index("role") + 1] if "role" in words[:-1] else ""
    if name == "master":
        return None
    if name:
        return StoreUnknown(
            f"the server is not the primary any more (it says {name}), so its not knowing the key proves nothing"
        )
    if isinstance(role, Silence):
        return StoreUnknown(role.reason)
    return StoreUnknown(
        "the server did not say whether it is the primary; grant it: ACL SETUSER <user> +role"
    )


def text_of(reply: Reply) -> str:
    """A reply as text; bytes of strangers that are not UTF-8 keep their place."""
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
