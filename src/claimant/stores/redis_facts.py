"""What a port has learned of its Redis or Valkey, and the short way that this allows: one command, one reply, no talk.

Nothing here decides what an unusual reply means: that is `redis_codec`'s alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from claimant._model.ops import Create, Granted, Release, Released, StoreReply, StoreRequest
from claimant.stores.redis_asking import packed_create, packed_left, packed_release

MOST_REFUSED = 256
GRANTED, RELEASED = Granted(), Released()


@dataclass(slots=True)
class Facts:
    """What one port has learned of its server. Each is only a short cut: a wrong one is found out and mended."""

    create_native: bool = True
    """SET NX GET: Redis 7.0 and Valkey."""
    renew_native: bool = True
    """SET IFEQ: Valkey 8.1 and Redis 8.4."""
    release: tuple[str, ...] = ("DELIFEQ", "DELEX")
    """DELIFEQ: Valkey 9.0. DELEX: Redis 8.4."""
    refused: dict[str, None] = field(default_factory=dict)
    """Keys that were held when they were last asked for: the next create asks for the time left in the same breath."""

    def refuse(self, key: str) -> None:
        """Remember `key`, and a bounded number of others."""
        if len(self.refused) >= MOST_REFUSED:
            self.refused.clear()
        self.refused[key] = None


Plain: TypeAlias = tuple[str, bytes, int, bytes, StoreReply]
"""The first batch of `redis_codec.talk`, ready to leave: the word it begins with, the batch packed, how many replies there will
be, the one that needs no talk, as it comes, and what that means. Any other reply is for `talk`, which decides all else.
"""


def plainly(request: StoreRequest, facts: Facts) -> Plain | None:
    """The short way for `request`; None where there is none."""
    # No `match`: this is in the way of every claim, and comparing types takes a third of the time.
    if isinstance(request, Create) and facts.create_native:
        key = request.key
        packed = packed_create(key, request.value, request.lifetime_ms)
        if key not in facts.refused:
            return "SET", packed, 1, b"$-1\r\n", GRANTED
        return "SET", packed + packed_left(key), 2, b"", GRANTED
    if isinstance(request, Release) and facts.release and facts.release[0] == "DELIFEQ":
        return "DELIFEQ", packed_release(request.key, request.value), 1, b":1\r\n", RELEASED
    return None
