"""What a Redis or Valkey store is made from: a URL, or a client object that somebody configured with care.

Of a ready client, the connection class and its arguments are copied, and retry, timeouts and decoding replaced. The
client itself is never used. Sentinel and cluster clients are refused by name: they are not available yet.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from claimant._model.errors import Refused

if TYPE_CHECKING:
    from claimant.stores.redis_link import Raw

LIBRARIES = ("redis", "valkey")
NOT_OURS = frozenset(
    [
        "retry",
        "retry_on_timeout",
        "retry_on_error",
        "health_check_interval",
        "parser_class",
        "command_packer",
        "event_dispatcher",
        "himport_registry",
        "encoder_class",
        "decode_responses",
        "protocol",
        "legacy_responses",
        "client_cache",
        "connection_class",
        "socket_timeout",
        "socket_connect_timeout",
        "timeout",
        "max_connections",
    ]
)
"""Arguments that we set ourselves, or that belong to a layer above the connection."""
CLUSTER = frozenset(
    {"RedisCluster", "ValkeyCluster", "ClusterNode", "AbstractRedisCluster", "AbstractValkeyCluster"}
)
SENTINEL = frozenset({"Sentinel", "SentinelConnectionPool", "SentinelManagedConnection"})
NOT_OURS_PREFIXES = ("maint", "orig_", "oss_", "cache")

Making = tuple[Callable[[], "Raw"], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where connections come from. `load` imports the library and returns how to make one, and what to keep secret."""

    address: str
    load: Callable[[], Making]

    def __repr__(self) -> str:
        return f"<Source {self.address}>"


def from_url(url: str, scheme: str) -> Source:
    """A source for `redis[s]://`, `valkey[s]://` or `unix://`. Raises `Refused`; opens and imports nothing."""
    if not installed("redis"):
        raise Refused(
            "CLM063", f"{scheme}: needs redis-py, which is not installed: pip install 'claimant[redis]'"
        )
    address = _address(url, scheme)
    plain = {"valkey": "redis", "valkeys": "rediss", "redis+unix": "unix", "valkey+unix": "unix"}.get(
        scheme, scheme
    )
    redis_url = plain + url[len(scheme) :]

    def load() -> Making:
        connection = import_module("redis.connection")
        wrong: type[Exception] = import_module("redis.exceptions").RedisError
        try:
            pool = connection.ConnectionPool.from_url(redis_url)
            arguments = _ours(pool.connection_kwargs)
            pool.connection_class(**arguments)  # connects to nothing, and finds an option that does not exist
        except (TypeError, ValueError, AttributeError, wrong) as error:
            raise Refused(
                "CLM062", f"{address}: {_scrubbed(str(error), redis_url)}; mend the URL's options"
            ) from None
        return _making(pool.connection_class, arguments)

    return Source(address, load)


def client_library(target: object) -> str | None:
    """The library, "redis" or "valkey", if `target` is one of that library's objects. Imports nothing."""
    for kind in type(target).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in LIBRARIES:
            return root
    return None


def from_client(client: object, library: str) -> Source:
    """A source for a ready client of redis-py or valkey-py, sync or async. Raises `Refused`."""
    kind = type(client)
    pool = getattr(client, "connection_pool", None)
    connection_class = getattr(pool, "connection_class", None)
    lineage = {
        base.__name__
        for part in (kind, type(pool), connection_class)
        for base in getattr(part, "__mro__", ())
    }
    if kind.__module__.partition(".")[0] == "fakeredis":
        raise Refused("CLM064", f'{kind.__name__} has no server behind it: use the store "memory:" in tests')
    for names, which in ((CLUSTER, "a cluster"), (SENTINEL, "Sentinel")):
        if lineage & names:
            raise Refused(
                "CLM064",
                f"{kind.__name__} speaks to {which}, which is not available yet; pass a client of one server",
            )
    arguments = getattr(pool, "connection_kwargs", None)
    if not isinstance(connection_class, type) or not isinstance(arguments, Mapping):
        raise Refused(
            "CLM064", f"{kind.__name__} has no connection pool to copy; pass a {library} client or a URL"
        )
    if ".asyncio" in connection_class.__module__ or _is_async(connection_class):
        connection_class = _blocking_twin(connection_class, library, kind.__name__)
    arguments = _ours(arguments)
    hook = arguments.get(f"{library}_connect_func")
    if inspect.iscoroutinefunction(hook):
        raise Refused(
            "CLM064",
            f"{kind.__name__} greets its server with a coroutine ({library}_connect_func), which the keeper's thread cannot "
            "await; pass a blocking client or a URL",
        )
    return Source(_place(arguments, library, connection_class), lambda: _making(connection_class, arguments))


def installed(library: str) -> bool:
    """Whether `library` can be imported, without importing it."""
    try:
        return find_spec(library) is not None
    except (ImportError, ValueError):
        return False


def _is_async(connection_class: type) -> bool:
    return inspect.iscoroutinefunction(getattr(connection_class, "connect", None))


def _blocking_twin(connection_class: type, library: str, name: str) -> type:
    """The blocking class of the same name. The keeper renews on a thread, so an asyncio client must have one."""
    if connection_class.__module__ == f"{library}.asyncio.connection":
        twin = getattr(import_module(f"{library}.connection"), connection_class.__name__, None)
        if isinstance(twin, type):
            return twin
    raise Refused(
        "CLM064",
        f"{name} connects with {connection_class.__name__}, of which there is no blocking twin, and leases are renewed on a "
        "thread; pass a blocking client that reaches the same server, or a URL",
    )


def _ours(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments to copy. RESP2 and bytes: what we read does not depend on how the client decodes."""
    kept = {
        name: value
        for name, value in arguments.items()
        if name not in NOT_OURS and not name.startswith(NOT_OURS_PREFIXES)
    }
    return kept | {"protocol": 2, "decode_responses": False}


def _making(connection_class: type, arguments: dict[str, Any]) -> Making:
    from claimant.stores.redis_link import CONNECT_S

    bounded = arguments | {"socket_timeout": CONNECT_S, "socket_connect_timeout": CONNECT_S}
    secrets = tuple(str(arguments[name]) for name in ("password", "ssl_password") if arguments.get(name))
    return (lambda: connection_class(**bounded)), secrets


def _address(url: str, scheme: str) -> str:
    """The URL without user, password and options."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise Refused(
            "CLM062", f"a {scheme}: URL whose host or port cannot be read; write {scheme}://HOST:PORT/0"
        ) from None
    if scheme.endswith("unix"):
        return f"{scheme}://{parts.path}"
    if not url.startswith(f"{scheme}://"):
        raise Refused("CLM062", f"a {scheme}: URL without //; write {scheme}://HOST:PORT/0")
    host = f"[{host}]" if ":" in host else host or "localhost"
    return f"{scheme}://{host}:{port or 6379}{parts.path.rstrip('/')}"


def _place(arguments: Mapping[str, Any], library: str, connection_class: type) -> str:
    if "path" in arguments:
        return f"unix://{arguments['path']}"
    scheme = library + ("s" if "SSL" in connection_class.__name__ else "")
    return f"{scheme}://{arguments.get('host', 'localhost')}:{arguments.get('port', 6379)}/{arguments.get('db') or 0}"


def _scrubbed(text: str, url: str) -> str:
    secret = urlsplit(url).password
    return text.replace(secret, "***") if secret else text
