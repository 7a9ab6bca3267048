"""What the guard costs on a durable PostgreSQL: `python guard.py URL ROUNDS` prints one JSON object of medians and ratios."""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable

import psycopg

from claimant import guards, once
from claimant._model.operation import identify
from claimant.guards import Context, once_blocking

TIMES = 20


def main() -> None:
    """Bare transaction, guarded in one of our own, guarded inside the caller's: in shuffled turns on one connection."""
    url, rounds = sys.argv[1], int(sys.argv[2])
    guards.init(url)
    conn = psycopg.connect(url)
    conn.execute("CREATE TABLE IF NOT EXISTS wallet (id int PRIMARY KEY, cents bigint)")
    conn.execute("INSERT INTO wallet VALUES (1, 0) ON CONFLICT DO NOTHING")
    conn.commit()
    guard = once(url)
    context = Context(job="debit", stake="money", run_id="bench", hole="", emit=lambda _: None)
    number = iter(range(10**9))

    def effect(tx: psycopg.Connection[object]) -> None:
        tx.execute("UPDATE wallet SET cents = cents - 1 WHERE id = 1")

    def bare() -> None:
        with conn.transaction():
            effect(conn)

    def guarded() -> None:
        once_blocking(guard, conn, effect, identify("debit", {"order": str(next(number))}), context)

    def joined() -> None:
        with conn.transaction():
            guarded()

    ways: dict[str, Callable[[], None]] = {"bare": bare, "owned": guarded, "joined": joined}
    for way in ways.values():
        for _ in range(50):
            way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            began = time.perf_counter()
            for _ in range(TIMES):
                ways[name]()
            times[name].append((time.perf_counter() - began) / TIMES * 1e6)
    conn.close()
    print(json.dumps(times))
    assert statistics.median(times["bare"]) > 0


main()
