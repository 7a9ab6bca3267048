"""TLS with a private authority, through URLs and through ready-made clients, in both runtimes."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from claimant._drive.clock import now_ms
from claimant._model.ops import (
    Create,
    Granted,
    Held,
    Peek,
    Release,
    Released,
    Renew,
    Renewal,
    Renewed,
    StoreAbsent,
    StoreUnknown,
)
from claimant.testing.store_suite import MINUTE_MS, Asked, soon, value
from tests.support.proxy import Proxy
from tests.support.servers import Server

Ask = Callable[[object], Asked]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a private authority (ca.pem) and a server's key and certificate for localhost."""
    if shutil.which("openssl") is None:
        reason = "missing server: openssl (Debian, Ubuntu: apt-get install openssl)"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("tls")
    # Python 3.13 checks by RFC 5280 to the letter, so that the key identifier and usages must be there.
    (folder / "names").write_text(
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    )
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=test-ca -addext keyUsage=critical,keyCertSign,cRLSign",
        "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile names",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def tls_port(private_redis7: Callable[..., Server], authority: Path) -> int:
    """The port of a redis-server that speaks TLS."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    files = ["--tls-cert-file", f"{authority}/server.pem", "--tls-key-file", f"{authority}/server.key"]
    private_redis7(
        args=[
            "--tls-port",
            str(port),
            *files,
            "--tls-ca-cert-file",
            f"{authority}/ca.pem",
            "--tls-auth-clients",
            "no",
        ]
    )
    return port


def cycle(asked: Asked) -> None:
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()
    assert isinstance(asked.call(Create("k", value(2), MINUTE_MS, soon())), Held)
    many = tuple(Renewal(f"none{at}", value(1), MINUTE_MS) for at in range(499))
    replies = asked.call(Renew((Renewal("k", value(1), MINUTE_MS), *many), soon()))
    assert replies[0] == Renewed()
    assert len(replies) == 500
    assert asked.call(Release("k", value(1), soon())) == Released()


def test_a_private_authority_is_named_in_the_url(ask: Ask, tls_port: int, authority: Path) -> None:
    """With it everything works, batches of many records included; without it the answer is absent, and says TLS."""
    cycle(ask(f"rediss://localhost:{tls_port}/0?ssl_ca_certs={authority}/ca.pem"))
    reply = ask(f"rediss://localhost:{tls_port}/0").call(Create("k", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert "TLS" in reply.reason
    assert "ssl_ca_certs" in reply.reason


def test_ready_made_clients_bring_their_authority(ask: Ask, tls_port: int, authority: Path) -> None:
    """A sync and an async client with a private authority serve both runtimes."""
    import redis
    import redis.asyncio as aio

    cycle(ask(redis.Redis(port=tls_port, ssl=True, ssl_ca_certs=f"{authority}/ca.pem")))
    client = aio.Redis(port=tls_port, ssl=True, ssl_ca_certs=f"{authority}/ca.pem")
    cycle(ask(client))
    asyncio.run(client.aclose())


def test_tls_keeps_the_deadline(ask: Ask, tls_port: int, authority: Path) -> None:
    """A server that stops answering, in the handshake or after it, costs one deadline."""
    with Proxy(tls_port) as proxy:
        url = f"rediss://localhost:{proxy.port}/0?ssl_ca_certs={authority}/ca.pem"
        for fault in (proxy.black_hole, lambda: proxy.drip(60)):
            proxy.heal()
            asked = ask(url)
            asked.call(Peek("warm", soon()))
            fault()
            began = now_ms()
            assert isinstance(asked.call(Create("k", value(1), MINUTE_MS, began + 200)), StoreUnknown)
            assert now_ms() - began < 600
            began = now_ms()
            assert isinstance(asked.call(Create("k", value(1), MINUTE_MS, began + 200)), StoreAbsent)
            assert now_ms() - began < 600
