"""The main job on real input, with real processes that are killed and paused."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from claimant.ledger import open_ledger
from tests.face.invoice_worker import connect

PAGES, SIZE = 50, 200
FAULTS = 24


def start(folder: Path, seed: int) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tests.face.invoice_worker",
        str(folder),
        str(seed),
        str(PAGES),
        str(SIZE),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def test_ten_thousand_invoices_four_workers_kills_and_pauses(tmp_path: Path) -> None:
    """Each invoice is debited exactly once and none is missing, while workers are killed and paused past their lifetime."""
    conn = connect(str(tmp_path / "invoices.db"))
    conn.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL)")
    conn.execute(
        "CREATE TABLE debit (invoice INTEGER NOT NULL, cents INTEGER NOT NULL)"
    )  # two of one are allowed here
    conn.execute("CREATE TABLE account (cents INTEGER NOT NULL)")
    conn.execute("INSERT INTO account VALUES (0)")
    conn.executemany(
        "INSERT INTO invoice VALUES (?, ?)", [(number, 100 + number % 900) for number in range(PAGES * SIZE)]
    )
    conn.commit()

    chance = random.Random(20_261_130)
    seeds = iter(range(1_000))
    workers = [start(tmp_path, next(seeds)) for _ in range(4)]
    killed = paused = 0
    finished = 0
    try:
        for _ in range(FAULTS):
            time.sleep(chance.uniform(0.1, 0.4))
            at = chance.randrange(4)
            if workers[at].poll() is not None:
                finished += workers[at].returncode == 0
            elif chance.random() < 0.7:
                workers[at].kill()
                killed += 1
            else:
                os.kill(workers[at].pid, signal.SIGSTOP)
                time.sleep(1.2)  # past the lifetime of one second
                os.kill(workers[at].pid, signal.SIGCONT)
                paused += 1
                continue
            workers[at].communicate()
            workers[at] = start(tmp_path, next(seeds))
        for worker in workers:
            said, _ = worker.communicate(timeout=120)
            assert (worker.returncode, said.split()) == (0, ["finished"])
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.communicate()

    assert killed >= 5
    assert paused >= 2
    debits = Counter(invoice for (invoice,) in conn.execute("SELECT invoice FROM debit"))
    assert set(debits) == set(range(PAGES * SIZE))
    assert set(debits.values()) == {1}
    total = conn.execute("SELECT sum(cents) FROM invoice").fetchone()[0]
    assert conn.execute("SELECT cents FROM account").fetchone()[0] == -total
    rejected = conn.execute("SELECT count(*) FROM claimant_rejection").fetchone()[0]
    # The last four workers alone attempt every invoice, and kills add more: no rejection is lost.
    assert rejected >= 3 * PAGES * SIZE
    conn.close()
    ledger = open_ledger(f"sqlite:{tmp_path / 'ledger.db'}")
    assert sum(row.runs for row in ledger.jobs("bill-page")) >= 4 * PAGES
    ledger.close()
