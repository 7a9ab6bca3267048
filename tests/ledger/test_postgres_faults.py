"""The ledger in PostgreSQL, and everything that can be the matter with a server or the way to it."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from claimant._drive import clock
from claimant._drive.ports import LedgerPort
from claimant._model.errors import LedgerAbsent
from claimant._model.records import Began, Begin, CloseSlot, SlotClosed, SlotState
from claimant.ledger import Spooled, init, open_ledger
from claimant.ledger.patience import Unsettled
from claimant.ledger.postgres import PostgresLedger
from claimant.testing.ledger_rows import SLOT, ended, skipped, started
from tests.ledger.conftest import Open
from tests.support import dns
from tests.support.proxy import Proxy
from tests.support.servers import Server

DEADLINE_S = 1.0
SCHEDULING_S = 0.6
"""What a busy machine may add before a thread runs."""


def refused_after(ledger: LedgerPort) -> float:
    """Seconds until one call says that the ledger is absent."""
    began = time.monotonic()
    with pytest.raises(LedgerAbsent):
        ledger.call(Begin(started()))
    return time.monotonic() - began


def costs_one_deadline(ledger: LedgerPort) -> None:
    """One call waits for the deadline and no longer; the next hundred do not wait."""
    assert DEADLINE_S * 0.95 <= refused_after(ledger) < DEADLINE_S + SCHEDULING_S
    assert sum(refused_after(ledger) for _ in range(100)) < 0.3


def a_second_later(ledger: LedgerPort) -> None:
    """Let the pause after a spent deadline be over."""
    assert isinstance(ledger, PostgresLedger)
    assert ledger._patience._closed_until is not None
    ledger._patience._closed_until = 0


def comes_back(ledger: LedgerPort) -> None:
    """The ledger is used again, once the attempts of before have ended."""
    assert isinstance(ledger, PostgresLedger)
    until = time.monotonic() + 5
    while True:
        ledger._patience._closed_until = 0
        try:
            ledger.call(Begin(started()))
            return
        except LedgerAbsent:
            assert time.monotonic() < until


@pytest.fixture
def frozen(private_postgres: Callable[..., Server]) -> Server:
    """A server of our own that may be paused."""
    server = private_postgres(fsync=False)
    init(server.url)
    return server


@pytest.fixture
def between(postgres, pg_url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy in front of the shared server, and the ledger's address through it."""
    with Proxy(postgres.port) as proxy:
        yield proxy, proxy.url(pg_url)


# -- servers that do not answer


def test_nobody_listens(between: tuple[Proxy, str], opened: Open) -> None:
    """A refused connection is absent at once, and the ledger is used again as soon as it listens."""
    proxy, url = between
    proxy.refuse()
    ledger = opened(url)
    assert refused_after(ledger) < 0.5
    proxy.heal()
    assert ledger.call(Begin(started())) == Began(1, 0)


def test_a_server_that_accepts_and_never_answers(between: tuple[Proxy, str], opened: Open) -> None:
    """It costs one deadline at the first call, and works again once it answers."""
    proxy, url = between
    proxy.black_hole()
    ledger = opened(url)
    costs_one_deadline(ledger)
    proxy.heal()
    proxy.drop_connections()
    proxy.wait(lambda counts: counts.connections >= 1)
    comes_back(ledger)


def test_a_name_that_never_resolves(opened: Open) -> None:
    """A resolver that hangs costs one deadline, then nothing, and keeps the process from ending neither."""
    with dns.hanging("ledger.invalid") as hang:
        ledger = opened("postgresql://someone@ledger.invalid/app")
        costs_one_deadline(ledger)
        a_second_later(ledger)
        assert refused_after(ledger) < 0.2  # the same look-up is not waited for twice
        assert hang.lookups == 1


def test_a_frozen_server(frozen: Server, opened: Open) -> None:
    """A server frozen between two calls costs one deadline, for one thread or for many, and is used again when it thaws."""
    ledger = opened(frozen.url)
    ledger.call(Begin(started()))
    frozen.pause()
    try:
        costs_one_deadline(ledger)
        a_second_later(ledger)
        spent: list[float] = []
        threads = [threading.Thread(target=lambda: spent.append(refused_after(ledger))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert max(spent) < DEADLINE_S + SCHEDULING_S
        assert sorted(spent)[-2] < 0.5, "only one thread asks"
    finally:
        frozen.resume()
    comes_back(ledger)


def test_a_server_that_drips(between: tuple[Proxy, str], opened: Open) -> None:
    """Bytes that trickle do not extend the deadline."""
    proxy, url = between
    ledger = opened(url)
    ledger.call(Begin(started()))
    proxy.drip(60)
    costs_one_deadline(ledger)


def test_a_restarted_server_is_not_an_outage(frozen: Server, opened: Open) -> None:
    """Connections that died while idle are replaced within the call; nobody is told."""
    ledger = opened(frozen.url)
    threads = [threading.Thread(target=lambda: ledger.call(Begin(started()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    frozen.restart()
    assert isinstance(ledger.call(Begin(started())), Began)
    assert isinstance(ledger.call(Begin(started())), Began)


def test_a_reply_lost_after_the_commit(between: tuple[Proxy, str], opened: Open) -> None:
    """A begin or an end whose commit was not answered is sent again and counts once; a skip is not, and says so."""
    proxy, url = between
    ledger = opened(url)
    run = started(slot=SLOT)
    assert isinstance(ledger, PostgresLedger)
    ledger.now()
    proxy.cut_after_request(times=1, match=b"; COMMIT")
    assert ledger.call(Begin(run)) == Began(1, 0)
    proxy.cut_after_request(times=1, match=b"; COMMIT")
    assert ledger.call(ended(run, "uncommitted", close_slot=False)) is None
    proxy.cut_after_request(times=1, match=b"; COMMIT")
    assert ledger.call(CloseSlot(run.run_id)) is None
    proxy.cut_after_request(times=1, match=b"; COMMIT")
    spooled = Spooled(ledger)
    with pytest.raises(Unsettled):
        spooled.call(skipped())
    assert spooled.kept == 0
    proxy.heal()
    [row] = ledger.jobs()
    assert (row.runs, row.skips_total, row.last_kind) == (1, 1, "ran")


# -- many at once


def test_two_hundred_threads_share_a_few_connections(pg_url: str, opened: Open) -> None:
    """Two hundred threads that start at once each write their run, over four connections at most."""
    ledger = opened(f"{pg_url}?deadline=20s")
    ledger.now()
    most, errors = [0], list[BaseException]()
    gate = threading.Barrier(201)

    def work() -> None:
        gate.wait()
        run = started(job=f"job-{threading.get_ident()}")
        try:
            ledger.call(Begin(run))
            ledger.call(ended(run))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(200)]
    with psycopg.connect(pg_url, autocommit=True) as connection:
        for thread in threads:
            thread.start()
        gate.wait()
        while any(thread.is_alive() for thread in threads):
            [[count]] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
            most.append(count)
    assert errors == []
    assert 1 <= max(most) <= 4
    assert sum(row.runs for row in ledger.jobs()) == 200


def test_a_full_server_is_asked_again(private_postgres: Callable[..., Server]) -> None:
    """Where the server has no room for one more client, a start asks again, jittered, until there is room."""
    server = private_postgres(
        fsync=False,
        settings={"max_connections": "5", "superuser_reserved_connections": "0", "reserved_connections": "0"},
    )
    init(server.url)
    crowd = [psycopg.connect(server.url) for _ in range(5)]
    ledger = open_ledger(f"{server.url}?deadline=5s")
    replies: list[object] = []
    thread = threading.Thread(target=lambda: replies.append(ledger.call(Begin(started()))))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    crowd.pop().close()
    thread.join(5)
    assert replies == [Began(1, 0)]
    # All room is taken again, by us too: more threads make do with the connection that is there.
    crowd.append(psycopg.connect(server.url)) if len(crowd) < 4 else None
    threads = [
        threading.Thread(target=lambda: replies.append(ledger.call(Begin(started())))) for _ in range(10)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(replies) == 11
    ledger.close()
    for connection in crowd:
        connection.close()


def test_a_full_server_costs_one_deadline(private_postgres: Callable[..., Server]) -> None:
    """Where no room comes, the start learns that the ledger is absent, in time."""
    server = private_postgres(
        fsync=False,
        settings={"max_connections": "5", "superuser_reserved_connections": "0", "reserved_connections": "0"},
    )
    init(server.url)
    crowd = [psycopg.connect(server.url) for _ in range(5)]
    ledger = open_ledger(server.url)
    assert refused_after(ledger) < DEADLINE_S + SCHEDULING_S
    ledger.close()
    for connection in crowd:
        connection.close()


def test_a_worker_frozen_in_its_transaction_holds_up_its_own_job_only(pg_url: str, opened: Open) -> None:
    """Its row stays locked until the server ends its transaction; other jobs go on, and no breaker opens."""
    ledger = opened(f"{pg_url}?deadline=300ms")
    ledger.call(Begin(started("stuck")))
    with psycopg.connect(pg_url) as frozen:
        frozen.execute("SELECT 1 FROM claimant_jobs FOR UPDATE")
        with pytest.raises(LedgerAbsent, match="locked"):
            ledger.call(Begin(started("stuck")))
        assert ledger.call(Begin(started("free"))) == Began(1, 0)
    assert isinstance(ledger.call(Begin(started("stuck"))), Began)


def test_the_server_ends_our_transaction_if_we_are_frozen(pg_url: str, opened: Open) -> None:
    """A transaction of ours that is left idle is ended by the server within two deadlines, so its locks do not outlive it."""
    ledger = open_ledger(f"{pg_url}?deadline=200ms", namespace="shop")
    assert isinstance(ledger, PostgresLedger)
    from claimant.ledger.postgres import _begin

    with (
        ledger._lines.taken(clock.now_ms() + 30_000) as line,
        psycopg.connect(pg_url, autocommit=True) as other,
    ):
        line.connection.execute(_begin(200, durable=True) + "SELECT 1")
        until = time.monotonic() + 5
        while True:
            [[count]] = other.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND datname = current_database()"
            ).fetchall()
            if not count:
                break
            assert time.monotonic() < until
    ledger.close()


def test_durability_is_the_servers_for_what_closes_a_slot(pg_url: str, opened: Open) -> None:
    """Only begins, skips and ends that close nothing commit asynchronously."""
    ledger = opened(pg_url)
    assert isinstance(ledger, PostgresLedger)
    run = started(slot=SLOT)
    seen: list[str] = []
    with ledger._lines.taken(clock.now_ms() + 30_000) as line:
        connection = line.connection
    original = connection.execute

    def spy(query, params=None, **options):
        if query.startswith(b"BEGIN"):
            seen.append("off" if b"synchronous_commit = off" in query else "server")
        return original(query, params, **options)

    connection.execute = spy  # type: ignore[method-assign]
    for request in (
        Begin(run),
        ended(run),
        skipped(),
        ended(started(slot="x"), "failed"),
        ended(started()),
        Begin(started(slot="y"), close_at_start=True),
    ):
        ledger.call(request)
    assert seen == ["off", "server", "off", "server", "off", "server"]
    assert isinstance(ledger.call(SlotState("rebuild-index", "", SLOT)), SlotClosed)


def test_a_strict_default_isolation_changes_nothing(pg_url: str, opened: Open) -> None:
    """Where the database's default is serializable, begins still see each other and none fails."""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(
            f"ALTER DATABASE {pg_url.rpartition('/')[2]} SET default_transaction_isolation = 'serializable'"
        )
    ledger = opened(pg_url)
    replies: list[object] = []
    threads = [
        threading.Thread(target=lambda: replies.append(ledger.call(Begin(started(slot=SLOT)))))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reply.attempt for reply in replies if isinstance(reply, Began)) == list(range(1, 13))


def test_at_exit_nothing_hangs(frozen: Server) -> None:
    """A process whose ledger is frozen, with a call in flight on a thread, ends at once."""
    code = (
        "import sys, threading, time\nfrom claimant.ledger import open_ledger\n"
        "ledger = open_ledger(sys.argv[1] + '?deadline=60s')\nledger.now()\nprint('up', flush=True)\nsys.stdin.readline()\n"
        "threading.Thread(target=ledger.now, daemon=True).start()\ntime.sleep(0.05)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, frozen.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        frozen.pause()
        try:
            child.communicate("go\n", timeout=5)
        finally:
            child.kill()
            frozen.resume()
        assert child.returncode == 0


def test_no_socket_is_left_open(pg_url: str) -> None:
    """After `close` the server sees nobody of ours."""
    ledger = open_ledger(pg_url)
    ledger.now()
    ledger.close()
    with psycopg.connect(pg_url, autocommit=True) as connection:
        until = time.monotonic() + 5
        while True:
            [[count]] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
            if not count:
                break
            assert time.monotonic() < until
    assert isinstance(socket.socket, type)
