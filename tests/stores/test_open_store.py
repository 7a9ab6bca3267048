"""What `open_store` takes, and what it refuses with words that teach."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from claimant._model.errors import Refused
from claimant._model.ops import Create, Granted
from claimant.stores import open_store, sqlite_place
from claimant.testing.store_suite import MINUTE_MS, soon, value

SECRET = "s3cret-Pa55"


def refused(target: object) -> Refused:
    with pytest.raises(Refused) as caught:
        open_store(target).blocking()
    return caught.value


@pytest.mark.parametrize(
    ("url", "address"),
    [
        *(
            ("memory:", "memory:"),
            ("memory:x", "memory:x"),
            ("redis://h", "redis://h:6379"),
            ("redis://", "redis://localhost:6379"),
        ),
        *(
            ("redis://h:1/2", "redis://h:1/2"),
            ("rediss://h:1/2", "rediss://h:1/2"),
            ("valkey://[::1]:5", "valkey://[::1]:5"),
        ),
        ("valkeys://h/3?ssl_ca_certs=/x", "valkeys://h:6379/3"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("redis+unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
        (f"redis://user:{SECRET}@h/0", "redis://h:6379/0"),
        (f"redis://{SECRET}@h/0", "redis://h:6379/0"),
        (f"redis://h/0?password={SECRET}", "redis://h:6379/0"),
    ],
)
def test_an_address_names_the_place_and_no_secret(url: str, address: str) -> None:
    """Users, passwords and options are left out of it, and out of the store's repr."""
    store = open_store(url)
    assert store.address == address
    assert SECRET not in repr(store)


def test_the_deadline_is_ours() -> None:
    """`?deadline=` sets the store's deadline; the other options stay; without it there are 250 ms."""
    assert open_store("redis://h/0").deadline_ms == 250
    assert open_store("redis://h/0?deadline=100ms&client_name=a%26b").deadline_ms == 100
    assert open_store("memory:x?deadline=2s").deadline_ms == 2_000
    assert open_store("memory:x?deadline=2s").address == "memory:x"
    assert "CLM010" in str(refused("redis://h/0?deadline=never"))


def test_options_reach_the_connection(valkey_url: str) -> None:
    """The client's name, given beside our own option, is the one that the server sees."""
    import redis

    port = open_store(f"{valkey_url}?deadline=5s&client_name=a%2Fb").blocking()
    assert port.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
    with redis.Redis.from_url(valkey_url) as client:
        assert "a/b" in {each["name"] for each in client.client_list()}
    port.close()


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "http://h", "reddis://h/0", f"ftp://u:{SECRET}@h", 42, None, object(), b"redis://h"],
)
def test_what_is_not_a_store_is_refused_with_the_stores_that_work(url: object) -> None:
    """The message lists them, and quotes nothing that may be a password."""
    error = refused(url)
    assert error.code == "CLM060"
    for scheme in ("memory:", "sqlite:", "redis://", "valkey://"):
        assert scheme in str(error)
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    "scheme",
    ["redis+sentinel", "redis+cluster", "memcached", "etcd", "postgresql", "mysql", "django"],
)
def test_a_store_of_a_later_day_is_not_available(scheme: str) -> None:
    """It is refused by name, not half there."""
    error = refused(f"{scheme}://u:{SECRET}@h/0")
    assert error.code == "CLM061"
    assert "not available" in str(error)
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "redis:h",
            f"redis://u:{SECRET}@h:port/0",
            f"redis://u:{SECRET}@h/0?no_such_option=1",
            f"redis://u:{SECRET}@[::1/0",
        ),
        *(
            "redis://h/0?socket_timeout=x",
            "sqlite:",
            "sqlite::memory:",
            "sqlite:///x.db",
            "memory:x?size=1",
            "sqlite:x.db?mode=ro",
        ),
    ],
)
def test_a_broken_url_is_refused_without_its_password(url: str) -> None:
    """Malformed addresses and unknown options are the caller's to mend."""
    error = refused(url)
    assert error.code == "CLM062"
    assert SECRET not in str(error)


def test_opening_imports_nothing_and_touches_nothing(tmp_path: Path) -> None:
    """Neither a client library nor a file is there before a port is used."""
    code = f"""
import sys
from claimant.stores import open_store
open_store("redis://store.invalid/0"); open_store("valkey://h"); open_store("memory:"); open_store("sqlite:{tmp_path}/x/leases.db")
assert not {{"redis", "valkey", "hiredis"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("how", ["sys.modules['redis'] = None", "sys.meta_path.insert(0, Blocked())"])
def test_a_missing_client_library_is_named_with_the_command_that_installs_it(how: str) -> None:
    """The refusal comes when the store is opened, long before the first claim."""
    code = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "redis":
            raise ModuleNotFoundError(name)
{how}
from claimant._model.errors import Refused
from claimant.stores import open_store
try:
    open_store("redis://localhost/0")
except Refused as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "CLM063" in said
    assert "pip install 'claimant[redis]'" in said


# -- ready-made clients


def test_sentinel_and_cluster_clients_are_refused_by_name() -> None:
    """They need more than a connection, and are not available yet."""
    import redis
    import redis.sentinel
    import valkey.sentinel

    for client in (
        redis.sentinel.Sentinel([("h", 1)]),
        redis.sentinel.Sentinel([("h", 1)]).master_for("m"),
        valkey.sentinel.Sentinel([("h", 1)]).master_for("m"),
        object.__new__(redis.RedisCluster),
    ):
        error = refused(client)
        assert error.code == "CLM064"
        assert "Sentinel" in str(error) or "cluster" in str(error)


def test_an_async_client_without_a_blocking_twin_is_refused_by_name() -> None:
    """Leases are renewed on a thread: a class of one's own for asyncio alone cannot serve it."""
    import redis.asyncio as aio

    class Mine(aio.Connection):
        pass

    error = refused(aio.Redis(connection_pool=aio.ConnectionPool(connection_class=Mine)))
    assert error.code == "CLM064"
    assert "Mine" in str(error)

    async def greet(connection: Any) -> None:
        """Greet."""

    error = refused(aio.Redis(connection_pool=aio.ConnectionPool(redis_connect_func=greet)))
    assert "coroutine" in str(error)


def test_a_clients_own_class_and_credentials_are_kept(private_valkey: Any) -> None:
    """A credential provider, a connection class of one's own and a unix socket all work; the client is not used."""
    import redis
    import redis.asyncio as aio
    from redis.credentials import CredentialProvider

    server = private_valkey(password=SECRET, args=["--unixsocket", "valkey.sock"])
    asked: list[str] = []

    class Provider(CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            asked.append("provider")
            return (SECRET,)

    class Mine(redis.Connection):
        def on_connect(self) -> None:
            asked.append("mine")
            super().on_connect()

        def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
            asked.append("mine")
            super().on_connect_check_health(*args, **kwargs)

    socket_path = str(server.dir / "valkey.sock")
    clients = [
        redis.Redis(port=server.port, credential_provider=Provider()),
        aio.Redis(port=server.port, credential_provider=Provider()),
        redis.Redis(
            connection_pool=redis.ConnectionPool(connection_class=Mine, port=server.port, password=SECRET)
        ),
        redis.Redis(unix_socket_path=socket_path, password=SECRET),
        aio.Redis(unix_socket_path=socket_path, password=SECRET),
    ]
    for at, client in enumerate(clients):
        store = open_store(client)
        assert SECRET not in store.address + repr(store)
        port = store.blocking()
        assert port.call(Create(f"k{at}", value(1), MINUTE_MS, soon())) == Granted()
        port.close()
    port = open_store(f"unix://{socket_path}?password={SECRET}").blocking()
    assert port.call(Create("unix", value(1), MINUTE_MS, soon())) == Granted()
    port.close()
    assert asked.count("provider") == 2
    assert "mine" in asked


def test_retries_and_timeouts_of_a_client_are_replaced(proxy: Any, valkey_url: str) -> None:
    """A client that would retry for seconds, or wait for ever, keeps our deadline."""
    import redis
    from redis.backoff import ConstantBackoff
    from redis.retry import Retry

    from claimant._drive.clock import now_ms
    from claimant._model.ops import StoreAbsent

    client = redis.Redis.from_url(
        proxy.url(valkey_url),
        retry=Retry(ConstantBackoff(5), 10),
        socket_timeout=None,
        health_check_interval=1,
    )
    port = open_store(client).blocking()
    proxy.black_hole()
    began = now_ms()
    assert isinstance(port.call(Create("k", value(1), MINUTE_MS, began + 150)), StoreAbsent)
    assert now_ms() - began < 600
    proxy.refuse()
    client = redis.Redis(port=proxy.port, retry=Retry(ConstantBackoff(5), 10), socket_timeout=None)
    reply = open_store(client).blocking().call(Create("k", value(1), MINUTE_MS, now_ms() + 2_000))
    assert isinstance(reply, StoreAbsent)
    assert "refused" in reply.reason, "the client's retry was still at work"


# -- files on a network


def test_a_network_file_system_is_refused_and_a_shared_one_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The innermost mount decides; names with spaces are read as the table writes them."""
    folder = tmp_path / "a b"
    folder.mkdir()
    table = tmp_path / "mounts"
    monkeypatch.setattr(sqlite_place, "MOUNTS", table)
    spelled = str(folder).replace(" ", "\\040")

    def mounts(kind: str) -> str:
        table.write_text(
            f"/dev/sda / ext4 rw 0 0\nserver:/x {spelled} {kind} rw 0 0\ntmpfs {tmp_path}/a tmpfs rw 0 0\n"
        )
        return f"sqlite:{folder}/deeper/leases.db"

    for kind in ("nfs4", "cifs", "fuse.sshfs"):
        error = refused(mounts(kind))
        assert error.code == "CLM065"
        assert kind in str(error)
    open_store(mounts("9p"))
    assert "9p" in caplog.text
    caplog.clear()
    open_store(mounts("ext4"))
    assert not caplog.text
    mounts("nfs4")
    open_store(f"sqlite:{tmp_path}/leases.db")
    (tmp_path / "link").symlink_to(folder)
    assert refused(f"sqlite:{tmp_path}/link/leases.db").code == "CLM065"
    table.unlink()
    open_store(f"sqlite:{folder}/leases.db")
