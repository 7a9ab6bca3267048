"""What a real server may answer instead of yes or no: each is named, none is taken for contention."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from claimant._drive.clock import now_ms
from claimant._model.ops import (
    Create,
    Granted,
    Held,
    NotOurs,
    Peek,
    Release,
    Released,
    Renew,
    Renewal,
    Renewed,
    Repair,
    StoreAbsent,
    StoreUnknown,
    Vacant,
)
from claimant.testing.store_suite import MINUTE_MS, Asked, soon, value
from tests.support.servers import Server, resp

Ask = Callable[[object], Asked]
Start = Callable[..., Server]
PASSWORD = "s3cret-Pa55"


def renewal(key: str, holder: int) -> Renew:
    return Renew((Renewal(key, value(holder), MINUTE_MS),), soon())


def made(asked: Asked, key: str, holder: int) -> None:
    assert asked.call(Create(key, value(holder), MINUTE_MS, soon())) == Granted()


def _number(url: str) -> str:
    return url.rpartition("/")[2]


def outside(url: str, *commands: str) -> bytes:
    """Commands of somebody else, in the test's own database."""
    return resp(int(url.rpartition(":")[2].partition("/")[0]), f"SELECT {_number(url)}", *commands)


# -- keys of strangers


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("HSET k f 1", "hash"),
        ("LPUSH k a", "list"),
        ("SADD k a", "set"),
        ("ZADD k 1 a", "zset"),
        ("XADD k * a b", "stream"),
    ],
)
def test_a_key_of_a_foreign_type_is_held_by_a_stranger(
    ask: Ask, redis_url: str, command: str, kind: str
) -> None:
    """It is neither an error nor an absence; nothing that we do changes it."""
    asked = ask(redis_url)
    outside(redis_url, command)
    for request in (Create("k", value(1), MINUTE_MS, soon()), Peek("k", soon())):
        reply = asked.call(request)
        assert isinstance(reply, Held)
        assert kind in reply.value
        assert reply.remaining_ms is None
    assert asked.call(renewal("k", 1)) == (NotOurs(),)
    assert asked.call(Repair("k", value(1), MINUTE_MS, soon())) == NotOurs()
    assert asked.call(Release("k", value(1), soon())) == NotOurs()
    assert outside(redis_url, "TYPE k") == f"+{kind}\r\n".encode()


def test_a_foreign_text_is_held_and_left_alone(ask: Ask, redis_url: str) -> None:
    """A value that is not ours, not even UTF-8, is shown, with its lifetime or the lack of it."""
    asked = ask(redis_url)
    outside(redis_url, "SET k other-tool", "SET l other-tool PX 60000")
    reply = asked.call(Create("k", value(1), MINUTE_MS, soon()))
    assert reply == Held("other-tool", None)
    reply = asked.call(Create("l", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, Held)
    assert reply.remaining_ms is not None
    assert 0 < reply.remaining_ms <= MINUTE_MS


def test_a_value_that_is_not_utf8_is_only_a_strangers_value(ask: Ask, redis_url: str) -> None:
    """Bytes that no decoder takes do not break a claim."""
    import redis

    asked = ask(redis_url)
    client = redis.Redis.from_url(redis_url)
    client.set("k", b"\xff\xfe\x00")
    client.close()
    assert isinstance(asked.call(Create("k", value(1), MINUTE_MS, soon())), Held)
    assert [row.key for row in asked.store.blocking().scan("k", soon())] == ["k"]


def test_a_live_claim_that_was_persisted_shows_no_lifetime_and_can_be_repaired(
    ask: Ask, redis_url: str
) -> None:
    """PERSIST makes it immortal; a repair by its value gives it an end again, and so does the holder's renewal."""
    asked = ask(redis_url)
    made(asked, "k", 1)
    outside(redis_url, "PERSIST k")
    assert asked.call(Create("k", value(2), MINUTE_MS, soon())) == Held(value(1), None)
    assert asked.call(Repair("k", value(2), MINUTE_MS, soon())) == NotOurs()
    assert asked.call(Repair("k", value(1), MINUTE_MS, soon())) == Renewed()
    reply = asked.call(Peek("k", soon()))
    assert reply.remaining_ms is not None
    outside(redis_url, "PERSIST k")
    assert asked.call(renewal("k", 1)) == (Renewed(),)
    reply = asked.call(Peek("k", soon()))
    assert reply.remaining_ms is not None


# -- a full server


@pytest.fixture
def full(private_redis: Start) -> Server:
    """Starts with room."""
    return private_redis()


def fill(server: Server) -> None:
    resp(server.port, "CONFIG SET maxmemory-policy noeviction", "CONFIG SET maxmemory 1")


def test_a_held_key_on_a_full_server_is_held(ask: Ask, full: Server) -> None:
    """OOM is the answer to every create; who holds is read all the same, and our own claim is recognised."""
    asked = ask(full.url)
    made(asked, "k", 1)
    fill(full)
    reply = asked.call(Create("k", value(2), MINUTE_MS, soon()))
    assert isinstance(reply, Held)
    assert reply.value == value(1)
    assert reply.remaining_ms is not None
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted(recognised=True)
    reply = asked.call(Create("free", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert "OOM" in reply.reason


def test_a_full_server_still_renews_and_releases(ask: Ask, full: Server) -> None:
    """SET is refused there; the lease is kept alive and given back all the same."""
    asked = ask(full.url)
    made(asked, "k", 1)
    fill(full)
    assert asked.call(renewal("k", 1)) == (Renewed(),)
    assert asked.call(renewal("k", 2)) == (NotOurs(),)
    assert asked.call(Release("k", value(2), soon())) == NotOurs()
    assert asked.call(Release("k", value(1), soon())) == Released()


# -- a demoted server, and one without replicas


def test_a_replica_never_says_that_a_claim_is_gone(ask: Ask, private_redis: Start) -> None:
    """After a demotion no answer is a loss: writes are absent by name, and "not there" is unknown."""
    primary, demoted = private_redis(), private_redis()
    asked = ask(demoted.url)
    made(asked, "k", 1)
    assert asked.call(Release("none", value(1), soon())) == NotOurs()
    assert asked.call(renewal("none", 1)) == (NotOurs(),)
    resp(demoted.port, f"REPLICAOF 127.0.0.1 {primary.port}")
    for reply in (
        *asked.call(renewal("none", 1)),
        asked.call(Release("none", value(1), soon())),
        *asked.call(renewal("k", 1)),
        asked.call(Release("k", value(1), soon())),
    ):
        assert isinstance(reply, StoreAbsent | StoreUnknown), reply
    reply = asked.call(Create("other", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert "replica" in reply.reason or "primary" in reply.reason


def test_scripts_on_a_replica_prove_nothing(ask: Ask, private_redis7: Start) -> None:
    """A script's 0 from a replica is no error there, and still is not "gone"."""
    primary, demoted = private_redis7(), private_redis7()
    asked = ask(demoted.url)
    assert asked.call(Release("none", value(1), soon())) == NotOurs()  # from here on by script alone
    assert asked.call(renewal("none", 1)) == (NotOurs(),)
    resp(demoted.port, f"REPLICAOF 127.0.0.1 {primary.port}", "CONFIG SET replica-serve-stale-data yes")
    reply = asked.call(Release("none", value(1), soon()))
    assert isinstance(reply, StoreUnknown)
    assert "slave" in reply.reason or "replica" in reply.reason
    [reply] = asked.call(renewal("none", 1))
    assert isinstance(reply, StoreUnknown)


def test_a_server_short_of_replicas_is_absent(ask: Ask, private_redis: Start) -> None:
    """NOREPLICAS: absent by name; what is held is seen as held."""
    server = private_redis()
    asked = ask(server.url)
    made(asked, "k", 1)
    resp(server.port, "CONFIG SET min-replicas-to-write 1")
    reply = asked.call(Create("free", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert "NOREPLICAS" in reply.reason
    assert isinstance(asked.call(Create("k", value(2), MINUTE_MS, soon())), Held)
    [reply] = asked.call(renewal("k", 1))
    assert isinstance(reply, StoreAbsent)


def test_scripts_that_were_flushed_are_sent_again(ask: Ask, redis_url: str) -> None:
    """NOSCRIPT on any path costs a second command and no answer."""
    asked = ask(redis_url)
    for turn in range(2):
        made(asked, f"k{turn}", 1)
        outside(redis_url, "SCRIPT FLUSH")
        items = tuple(Renewal(f"k{turn}", value(holder), MINUTE_MS) for holder in (1, 2, 1))
        assert asked.call(Renew(items, soon())) == (Renewed(), NotOurs(), Renewed())
        outside(redis_url, "SCRIPT FLUSH")
        assert asked.call(Release(f"k{turn}", value(1), soon())) == Released()


def test_a_server_without_room_for_clients_is_absent(ask: Ask, private_redis: Start) -> None:
    """maxclients: absent, and the advice names the setting."""
    import socket

    server = private_redis(args=["--maxclients", "1"])
    with socket.create_connection(("127.0.0.1", server.port)) as first:
        first.sendall(b"PING\r\n")
        first.recv(16)
        reply = ask(server.url).call(Create("k", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert "maxclients" in reply.reason


# -- permissions


def test_without_scripts_a_claim_works_and_the_missing_rule_is_named(ask: Ask, private_redis7: Start) -> None:
    """Redis 7 releases and renews by script only: without permission for it that is absent, by name, and never a loss."""
    server = private_redis7(acl="user default on nopass ~* &* +@all -eval -evalsha -eval_ro -evalsha_ro")
    asked = ask(server.url)
    made(asked, "k", 1)
    assert isinstance(asked.call(Create("k", value(2), MINUTE_MS, soon())), Held)
    [reply] = asked.call(renewal("k", 1))
    assert isinstance(reply, StoreAbsent)
    assert "+eval" in reply.reason
    assert "+evalsha" in reply.reason
    reply = asked.call(Release("k", value(1), soon()))
    assert isinstance(reply, StoreAbsent)
    assert "+eval" in reply.reason


def test_without_scripts_valkey_needs_none(ask: Ask, private_valkey: Start) -> None:
    """Where native compare commands exist, scripts may be forbidden."""
    server = private_valkey(acl="user default on nopass ~* +@all -@scripting")
    asked = ask(server.url)
    made(asked, "k", 1)
    assert asked.call(renewal("k", 1)) == (Renewed(),)
    assert asked.call(Release("k", value(1), soon())) == Released()


def test_without_the_native_commands_scripts_do(ask: Ask, private_valkey: Start) -> None:
    """A forbidden native command falls back to the script."""
    server = private_valkey(acl="user default on nopass ~* +@all -delifeq")
    asked = ask(server.url)
    made(asked, "k", 1)
    assert asked.call(Release("k", value(2), soon())) == NotOurs()
    assert asked.call(Release("k", value(1), soon())) == Released()


def test_a_least_user_is_enough(ask: Ask, private_redis: Start) -> None:
    """A few commands and one key pattern, without ROLE, PUBLISH or any channel, do everything."""
    server = private_redis(
        acl="user default on nopass ~claimant:* -@all +set +get +pttl +type +eval +evalsha +del +pexpire +select"
    )
    asked = ask(server.url)
    made(asked, "claimant::k", 1)
    assert isinstance(asked.call(Create("claimant::k", value(2), MINUTE_MS, soon())), Held)
    assert asked.call(renewal("claimant::k", 1)) == (Renewed(),)
    assert asked.call(renewal("claimant::k", 2)) == (NotOurs(),)
    assert asked.call(Release("claimant::k", value(1), soon())) == Released()
    assert asked.call(Release("claimant::k", value(1), soon())) == NotOurs()


def test_without_permission_to_read_the_rule_is_named(ask: Ask, private_redis: Start) -> None:
    """A create reads as well as writes the key: write permission alone is absent, by name."""
    server = private_redis(acl="user default on nopass %W~* +@all")
    reply = ask(server.url).call(Create("k", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert "read" in reply.reason
    assert "ACL SETUSER" in reply.reason


def test_without_pttl_the_holders_own_lifetime_is_shown(ask: Ask, private_redis: Start) -> None:
    """Who cannot ask for the time left shows the most that it can be."""
    server = private_redis(acl="user default on nopass ~* +@all -pttl")
    asked = ask(server.url)
    made(asked, "k", 1)
    assert asked.call(Create("k", value(2, 5_000), 5_000, soon())) == Held(value(1), MINUTE_MS)


# -- passwords


def test_a_wrong_password_is_named_and_never_printed(ask: Ask, private_redis: Start) -> None:
    """Neither the wrong one nor the right one appears in any answer, address or repr."""
    server = private_redis(password=PASSWORD)
    wrong = server.url.replace(PASSWORD, "wr0ng-Pa55")
    for url in (wrong, wrong.replace("redis://:", "redis://somebody:")):
        asked = ask(url)
        reply = asked.call(Create("k", value(1), MINUTE_MS, soon()))
        assert isinstance(reply, StoreAbsent)
        assert "password" in reply.reason
        for text in (
            reply.reason,
            repr(reply),
            asked.store.address,
            repr(asked.store),
            str(vars(asked.store)),
        ):
            assert "wr0ng" not in text
            assert PASSWORD not in text


def test_a_missing_password_is_named(ask: Ask, private_redis: Start) -> None:
    """The server wants one, the URL has none: absent, and the sentence says so."""
    server = private_redis(password=PASSWORD)
    reply = ask(f"redis://127.0.0.1:{server.port}/0").call(Create("k", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert "password" in reply.reason
    assert ask(server.url).call(Create("k", value(1), MINUTE_MS, soon())) == Granted()


def test_a_database_that_does_not_exist_is_absent(ask: Ask, redis_url: str) -> None:
    """The server's own words, and no exception."""
    reply = ask(redis_url.rpartition("/")[0] + "/999").call(Create("k", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)


def test_a_frozen_server_costs_one_deadline(ask: Ask, private_redis: Start) -> None:
    """A stopped process accepts connections and answers nothing; thawed, it answers again."""
    server = private_redis()
    asked = ask(server.url)
    assert asked.call(Peek("k", soon())) == Vacant()
    server.pause()
    began = now_ms()
    reply = asked.call(Create("k", value(1), MINUTE_MS, began + 150))
    assert isinstance(reply, StoreUnknown)
    reply = asked.call(Create("k", value(2), MINUTE_MS, now_ms() + 150))
    assert isinstance(reply, StoreAbsent), "a new connection is not greeted, so nothing was sent"
    assert now_ms() - began < 1_000
    server.resume()
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted(recognised=True)
