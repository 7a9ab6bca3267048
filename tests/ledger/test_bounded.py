"""Two hundred processes that start in one second, as from cron, do not need two hundred connections, and lose no start."""

from __future__ import annotations

import subprocess
import sys
import threading
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
from claimant.ledger.patience import absent
from claimant._model.errors import LedgerAbsent
from claimant.testing.ledger_rows import SLOT, ended, started
import psycopg
url, starts = sys.argv[1], int(sys.argv[2])
at = time.time() + 0.5
children = []
for number in range(starts):
    pid = os.fork()
    if pid:
        children.append(pid)
        continue
    try:
        time.sleep(max(0, at - time.time()))
        spooled = Spooled(open_ledger(url, namespace="shop"))
        run = started(run_id=os.urandom(16).hex(), key=f"n={number}")
        for request in (LedgerNow(), Begin(run)):
            try:
                spooled.call(request)
            except LedgerAbsent:
                pass
        time.sleep(1.0)  # the work: nobody needs a connection meanwhile
        try:
            spooled.call(ended(run))
        except LedgerAbsent:
            pass
        spooled.close()
        os._exit(0 if spooled.kept == 0 else 3)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(4)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print(codes.count(0), codes.count(3), codes.count(4))
"""


def test_two_hundred_starts_in_a_second_share_a_small_server(
    private_postgres: Callable[..., Server], opened: Open
) -> None:
    """Each start and each end is recorded, though the server has room for a tenth of them; and none keeps a connection."""
    server = private_postgres(settings={"max_connections": str(ROOM)})
    admin_url = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
    init(admin_url)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute("CREATE ROLE worker LOGIN")
        admin.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO worker")
        url = (
            admin_url.replace("postgres@", "worker@", 1) + "?deadline=10s"
        )  # two hundred processes on few cores
        peak, stop = [0], threading.Event()

        def connected() -> int:
            [[count]] = admin.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = 'worker'"
            ).fetchall()
            return int(count)

        def watch() -> None:
            while not stop.wait(0.02):
                peak[0] = max(peak[0], connected())

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            said = subprocess.run(
                [sys.executable, "-c", FLEET, url, str(STARTS)],
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            )
        finally:
            stop.set()
            watching.join()
        assert said.stdout.split() == [str(STARTS), "0", "0"], said.stdout + said.stderr[-2000:]
        wait(lambda: connected() == 0, "the connections to be gone", 5)
    assert 0 < peak[0] <= ROOM
    rows = opened(admin_url).jobs()
    assert sum(row.runs for row in rows) == STARTS
    assert all(row.last_kind == "ran" for row in rows)


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


@pytest.mark.parametrize(
    ("used_for_ms", "kept_ms"),
    [(0, SHORTEST_IDLE_MS), (10, SHORTEST_IDLE_MS), (20_000, 2_000), (10**9, LONGEST_IDLE_MS)],
)
def test_who_has_used_the_ledger_for_long_keeps_its_connection_longer(used_for_ms: int, kept_ms: int) -> None:
    """A worker whose jobs start again and again does not connect anew for each of them."""
    assert idle_ms(used_for_ms) == kept_ms
