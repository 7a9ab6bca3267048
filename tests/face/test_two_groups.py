"""Two groups of processes, in two folders, that share only a lease store and a PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psycopg

from claimant import guards
from claimant.ledger import init as init_ledger
from claimant.ledger import open_ledger

ORDERS = 12


def test_two_groups_that_share_only_a_store_and_a_database(
    redis_url: str, pg_dsn: str, tmp_path: Path
) -> None:
    """One of them makes the report, each order is debited once, and every other attempt was held, done or rejected."""
    init_ledger(pg_dsn)
    guards.init(pg_dsn)
    with psycopg.connect(pg_dsn) as conn:
        conn.execute("CREATE TABLE debit (order_id bigint NOT NULL, cents bigint NOT NULL)")
    root = Path(__file__).parents[2]
    workers = []
    for group in ("one", "two"):
        home = tmp_path / group
        home.mkdir()
        path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home), "PYTHONPATH": path}
        command = [sys.executable, "-m", "tests.face.group_worker", redis_url, pg_dsn, str(ORDERS)]
        workers += [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home, env=environment)
            for _ in range(2)
        ]
    said = [
        [json.loads(line) for line in worker.communicate(timeout=90)[0].splitlines()] for worker in workers
    ]
    assert [worker.returncode for worker in workers] == [0, 0, 0, 0]

    reports = Counter(lines[0]["report"]["kind"] for lines in said)
    assert reports == {"ran": 1, "done": 3}
    answers = Counter(line["outcome"]["answers"][0]["kind"] for lines in said for line in lines[1:])
    assert answers == {"applied": ORDERS, "duplicate": 3 * ORDERS}
    with psycopg.connect(pg_dsn) as conn:
        assert conn.execute("SELECT order_id FROM debit ORDER BY 1").fetchall() == [
            (order,) for order in range(ORDERS)
        ]
    assert sum(row.count for row in guards.rejections(pg_dsn, "debit")) == 3 * ORDERS
    ledger = open_ledger(pg_dsn, namespace="shop")
    assert sum(row.runs for row in ledger.jobs("debit")) == 4 * ORDERS
    ledger.close()
