"""What a test does to a server from outside, and how long it waits for what it expects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from tests.support.servers import wait

LIFETIME = 0.6  # the shortest there is: real processes are waited for here


def ask(url: str, *words: object) -> Any:
    """One command to the server, from outside."""
    with redis.Redis.from_url(url) as outside:
        return outside.execute_command(*words)


def hold_until(condition: Callable[[], bool], what: str) -> None:
    wait(condition, what, 10)
