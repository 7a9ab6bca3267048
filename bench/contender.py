"""One contender: a process that measures one way to claim and release, when it is told to.

`python contender.py NAME URL` prints "ready", then for each line "cycle N" or "failed N" on its standard input the
microseconds that each of N took on the average; for "threads N", how many threads N cycles started.
`python contender.py NAME URL N` carries out N cycles and ends: for counting from outside. Peers run on the Python of an
environment of their own, so nothing of claimant is imported for them.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

Turn = Callable[[], Any]
LIFETIME_MS = 30_000
COMPARE_DELETE = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
)


def floor(url: str) -> dict[str, Turn]:
    """A blocking socket and hand-written protocol: SET … NX GET PX, and DELIFEQ. Nobody in Python can do less."""
    parts = urlsplit(url)
    sock = socket.create_connection((parts.hostname, parts.port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    token = b"0" * 60

    def ask(*words: bytes) -> bytes:
        sock.sendall(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        )
        return sock.recv(4_096)

    def cycle() -> None:
        assert ask(b"SET", b"bench:floor", token, b"NX", b"GET", b"PX", b"30000").startswith(b"$-1")
        assert ask(b"DELIFEQ", b"bench:floor", token) == b":1\r\n"

    def failed() -> None:
        assert ask(b"SET", b"bench:held", token, b"NX", b"GET", b"PX", b"30000").startswith(b"$4")
        ask(b"PTTL", b"bench:held")

    return {"cycle": cycle, "failed": failed}


def raw(url: str) -> dict[str, Turn]:
    """redis-py's commands with hiredis, as people write them: SET NX PX, and a script that compares and deletes."""
    import redis

    client = redis.Redis.from_url(url)
    release = client.register_script(COMPARE_DELETE)

    def cycle() -> None:
        token = secrets.token_hex(16)  # one for each, or the comparison compares nothing
        assert client.set("bench:raw", token, nx=True, px=LIFETIME_MS)
        assert release(keys=["bench:raw"], args=[token]) == 1

    def failed() -> None:
        assert not client.set("bench:held", "token", nx=True, px=LIFETIME_MS)

    return {"cycle": cycle, "failed": failed}


def redis_py_lock(url: str) -> dict[str, Turn]:
    """redis.lock.Lock."""
    import redis

    client = redis.Redis.from_url(url)

    def cycle() -> None:
        lock = client.lock("bench:redis-py", timeout=30)
        assert lock.acquire(blocking=False)
        lock.release()

    def failed() -> None:
        assert not client.lock("bench:held", timeout=30).acquire(blocking=False)

    return {"cycle": cycle, "failed": failed}


def python_redis_lock(url: str) -> dict[str, Turn]:
    """redis_lock.Lock."""
    import redis
    import redis_lock

    client = redis.StrictRedis.from_url(url)
    client.set("lock:bench:held", "held", px=600_000)

    def cycle() -> None:
        lock = redis_lock.Lock(client, "bench:python-redis-lock", expire=30)
        assert lock.acquire(blocking=False)
        lock.release()

    def failed() -> None:
        assert not redis_lock.Lock(client, "bench:held", expire=30).acquire(blocking=False)

    return {"cycle": cycle, "failed": failed}


def hold(url: str) -> dict[str, Turn]:
    """What a user writes: `with claims.hold(…)`. A refused one says who holds, and for how long."""
    from claimant import Claimant, NotDone

    claims = Claimant(f"{url}?deadline=5s", ledger="sqlite:never-opened.db")
    other = f"held-{os.getpid()}"

    def cycle() -> None:
        with claims.hold("bench", stake="scan", max_run="1m") as lease:
            assert lease.cause is None

    def failed() -> None:
        try:
            with claims.hold(other, stake="scan", max_run="1m"):
                raise AssertionError
        except NotDone:
            pass

    claims.hold(other, stake="scan", max_run="1h", lifetime="30m").__enter__()
    return {"cycle": cycle, "failed": failed}


def flows(url: str) -> dict[str, Turn]:
    """The same decisions below the face: the flows `acquire` and `release` on the blocking interpreter."""
    from claimant import Claimant
    from claimant._flows.acquire import Got, HeldBy, acquire
    from claimant._flows.release import release
    from claimant._model.policy import Wanted

    claims = Claimant(f"{url}?deadline=5s", ledger="sqlite:never-opened.db")
    wiring = claims._wiring  # noqa: SLF001 - measured where it is
    wanted = Wanted("bench", "claimant::bench-flows", wiring.label, LIFETIME_MS, 60_000, 5_000)
    other = Wanted("held", f"claimant::held-{os.getpid()}", wiring.label, 1_800_000, 3_600_000, 5_000)
    assert isinstance(wiring.run(acquire(other)), Got)

    def cycle() -> None:
        claimed = wiring.run(acquire(wanted))
        assert isinstance(claimed, Got)
        wiring.run(release(claimed.tenure, 5_000))

    def failed() -> None:
        assert isinstance(wiring.run(acquire(other)), HeldBy)

    return {"cycle": cycle, "failed": failed}


CONTENDERS = {
    "floor": floor,
    "raw redis-py": raw,
    "redis-py Lock": redis_py_lock,
    "python-redis-lock": python_redis_lock,
    "claimant hold": hold,
    "claimant flows": flows,
}


def main() -> None:
    """Serve until the input ends."""
    turns = CONTENDERS[sys.argv[1]](sys.argv[2])
    if len(sys.argv) > 3:
        for _ in range(int(sys.argv[3])):
            turns["cycle"]()
        return
    for turn in turns.values():
        for _ in range(200):
            turn()
    print("ready", flush=True)
    for line in sys.stdin:
        what, count = line.split()
        if what == "threads":
            print(_threads(turns["cycle"], int(count)), flush=True)
            continue
        turn, times = turns[what], int(count)
        began = time.perf_counter()
        for _ in range(times):
            turn()
        print((time.perf_counter() - began) / times * 1e6, flush=True)


def _threads(turn: Turn, times: int) -> int:
    """How many threads are started while `turn` is carried out `times` times."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    threading.Thread.start = counted  # type: ignore[method-assign]
    for _ in range(times):
        turn()
    threading.Thread.start = start  # type: ignore[method-assign]
    return len(started)


main()
