"""Lease stores: what keeps leases, shared and volatile. A store is never a record of work.

`open_store` makes one from a URL or from a ready client. It opens nothing and imports no client library.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, quote

from claimant._drive.ports import Store
from claimant._model.durations import duration_ms
from claimant._model.errors import Refused

DEADLINE_MS = 250
"""How long one claim may take in all, unless the URL says `?deadline=`."""
REDIS = frozenset({"redis", "rediss", "valkey", "valkeys", "unix", "redis+unix", "valkey+unix"})
WORKING = "memory:NAME, sqlite:PATH, redis://HOST:PORT/0, rediss://…, valkey://…, valkeys://…, unix://PATH"
LATER = {
    "redis+sentinel": "Sentinel",
    "rediss+sentinel": "Sentinel",
    "valkey+sentinel": "Sentinel",
    "sentinel": "Sentinel",
    "redis+cluster": "Redis Cluster",
    "rediss+cluster": "Redis Cluster",
    "valkey+cluster": "Valkey Cluster",
    "memcached": "Memcached",
    "etcd": "etcd",
    "postgresql": "PostgreSQL as a lease store",
    "postgres": "PostgreSQL as a lease store",
    "mysql": "MySQL as a lease store",
    "django": "Django's database as a lease store",
}


def open_store(target: object) -> Store:
    """A lease store from a URL, or from a client object of redis-py or valkey-py, sync or async.

    `?deadline=250ms` on a URL is the longest that one claim may take. Raises `Refused`: CLM060 (not a store),
    CLM061 (not available), CLM062 (a broken URL), CLM063 (a missing extra), CLM064 (a client that cannot be used),
    CLM065 (a file on a network).

    ```python
    store = open_store("valkey://localhost:6379/0?deadline=100ms")
    ```
    """
    if not isinstance(target, str):
        return _from_client(target)
    scheme, colon, rest = target.partition(":")
    scheme = scheme.lower()
    if scheme in LATER:
        raise Refused(
            "CLM061", f"{scheme}: {LATER[scheme]} is not available yet. Stores that work now: {WORKING}"
        )
    if not colon or scheme not in REDIS | {"memory", "sqlite"}:
        raise Refused(
            "CLM060", f"the store {_shown(target)} has no known scheme. Stores that work now: {WORKING}"
        )
    rest, deadline_ms = _deadline(rest)
    if scheme in ("memory", "sqlite") and "?" in rest:
        raise Refused(
            "CLM062",
            f"the store {target!r} has an option that it does not know; the only one is ?deadline=250ms",
        )
    if scheme == "memory":
        from claimant.stores.memory import MemoryStore

        return MemoryStore(rest, deadline_ms=deadline_ms)
    if scheme == "sqlite":
        from claimant.stores.sqlite import SqliteStore

        return SqliteStore(rest, deadline_ms)
    from claimant.stores.redis import RedisStore
    from claimant.stores.redis_clients import from_url

    return RedisStore(from_url(f"{scheme}:{rest}", scheme), deadline_ms)


def _from_client(target: object) -> Store:
    from claimant.stores.redis_clients import client_library, from_client

    library = client_library(target)
    if library is None:
        raise Refused(
            "CLM060",
            f"a {type(target).__name__} is not a lease store: pass a URL ({WORKING}) or a client of redis-py or valkey-py",
        )
    from claimant.stores.redis import RedisStore

    return RedisStore(from_client(target, library), DEADLINE_MS)


def _deadline(rest: str) -> tuple[str, int]:
    """The URL without our own option, and the deadline in milliseconds."""
    base, _, query = rest.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    ours = [value for name, value in options if name == "deadline"]
    if not ours:
        return rest, DEADLINE_MS
    kept = [f"{quote(name)}={quote(value, safe='')}" for name, value in options if name != "deadline"]
    return f"{base}?{'&'.join(kept)}" if kept else base, duration_ms(ours[-1], "deadline")


def _shown(target: str) -> str:
    """The scheme alone: whatever follows may be a password."""
    scheme, colon, _ = target.partition(":")
    return repr(f"{scheme}:…") if colon and scheme.replace("+", "").isalnum() else "given"


__all__ = ["Store", "open_store"]
