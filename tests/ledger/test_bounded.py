"""Two hundred processes that start in one second, as from cron, do not need two hundred connections, and lose no start."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import psycopg
import pytest

from claimant.ledger import init
from claimant.ledger.lines import LONGEST_IDLE_MS, SHORTEST_IDLE_MS, Lines, idle_ms
from tests.ledger.conftest import Open
from tests.ledger.test_lines import Wire, in_ms
from tests.support.servers import Server, wait

STARTS = 200
ROOM = 20

FLEET = """
import os, sys, time
from claimant._model.records import Begin, LedgerNow
from claimant.ledger import Spooled, open_ledger
from claimant._model.errors import LedgerAbsent
from claimant.testing.ledger_rows import ended, started
import psycopg
url, starts = sys.argv[1], int(sys.argv[2])
at = time.time() + 1.0
told, tell = os.pipe()
held, release = os.pipe()
children = []
for number in range(starts):
    pid = os.fork()
    if pid:
        children.append(pid)
        continue
    try:
        os.close(release)
        time.sleep(max(0, at - time.time()))
        spooled = Spooled(open_ledger(url, namespace="shop"))
        run = started(run_id=os.urandom(16).hex(), key=f"n={number}")
        said = b"b"
        for request in (LedgerNow(), Begin(run)):
            try:
                spooled.call(request)
            except LedgerAbsent:
                said = b"x"
        os.write(tell, said)
        os.read(held, 1)  # the work: nobody needs a connection meanwhile
        try:
            spooled.call(ended(run))
        except LedgerAbsent:
            pass
        spooled.close()
        os._exit(0 if spooled.kept == 0 and spooled.dropped == 0 else 3)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(4)
os.close(tell)
began = b""
while len(began) < starts:
    got = os.read(told, starts)
    if not got:
        break
    began += got
print(began.count(b"b"), began.count(b"x"), flush=True)
sys.stdin.readline()
os.close(release)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print(codes.count(0), codes.count(3), codes.count(4), flush=True)
"""


@pytest.mark.parametrize("deadline", ["?deadline=20s", ""], ids=["patient", "default"])
def test_two_hundred_starts_in_a_second_share_a_small_server(
    private_postgres: Callable[..., Server], opened: Open, deadline: str
) -> None:
    """Each start and each end is recorded by a server with room for a tenth of them, and nobody at work has a connection.

    With a deadline that is long enough for a crowd on two cores every start is there while it works; with the default one
    those that found no room are written with their end.
    """
    server = private_postgres(settings={"max_connections": str(ROOM)})
    admin_url = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
    init(admin_url)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute("CREATE ROLE worker LOGIN")
        admin.execute("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO worker")
        url = admin_url.replace("postgres@", "worker@", 1) + deadline

        def connected() -> int:
            [[count]] = admin.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = 'worker'"
            ).fetchall()
            return int(count)

        def recorded() -> int:
            [[count]] = admin.execute("SELECT count(*) FROM claimant_runs").fetchall()
            return int(count)

        fleet = subprocess.Popen(
            [sys.executable, "-c", FLEET, url, str(STARTS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with fleet:
            assert fleet.stdin is not None
            assert fleet.stdout is not None
            began, missed = map(int, fleet.stdout.readline().split())
            assert began + missed == STARTS
            if deadline:
                assert missed == 0
            # Two hundred processes are at work now.
            wait(lambda: connected() == 0, "the connections to be given back", 10)
            assert recorded() >= began
            fleet.stdin.write("\n")
            fleet.stdin.flush()
            assert fleet.stdout.readline().split() == [str(STARTS), "0", "0"]
        wait(lambda: connected() == 0, "the connections to be gone", 10)
    rows = opened(admin_url).jobs()
    assert sum(row.runs for row in rows) == STARTS
    assert all(row.last_kind == "ran" for row in rows)
    assert len(rows) == STARTS


def test_a_connection_that_nobody_uses_is_given_back() -> None:
    """A process that has just come gives its connection back within moments; asked again it makes another."""
    made: list[Wire] = []

    def connect(_: int) -> Wire:
        made.append(Wire())
        return made[-1]

    lines = Lines(connect, lambda _: False)
    with lines.taken(in_ms(5_000)):
        pass
    wait(lambda: made[0].closed, "the connection to be given back", 5)
    with lines.taken(in_ms(5_000)) as line:
        time.sleep(2 * SHORTEST_IDLE_MS / 1_000)
        assert line is made[1]
        assert not made[1].closed
    lines.close()


def test_a_connection_that_somebody_waits_for_is_kept() -> None:
    """On a busy machine whoever it was made for may come to run late; it is not given back under their hands."""
    made: list[Wire] = []

    def connect(_: int) -> Wire:
        made.append(Wire())
        return made[-1]

    lines = Lines(connect, lambda _: False)
    with lines.taken(in_ms(5_000)):
        pass
    with lines._changed:
        lines._waiting += 1  # somebody who does not come to run
    time.sleep(3 * SHORTEST_IDLE_MS / 1_000)
    assert not made[0].closed
    with lines._changed:
        lines._waiting -= 1
    wait(lambda: made[0].closed, "the connection to be given back", 5)


@pytest.mark.parametrize(
    ("used_for_ms", "kept_ms"),
    [(0, SHORTEST_IDLE_MS), (10, SHORTEST_IDLE_MS), (20_000, 2_000), (10**9, LONGEST_IDLE_MS)],
)
def test_who_has_used_the_ledger_for_long_keeps_its_connection_longer(used_for_ms: int, kept_ms: int) -> None:
    """A worker whose jobs start again and again does not connect anew for each of them."""
    assert idle_ms(used_for_ms) == kept_ms
