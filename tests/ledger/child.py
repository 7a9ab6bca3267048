"""What a child process of these tests does: `python -m tests.ledger.child VERB URL …`; it prints JSON lines."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from claimant._model.records import Began, Begin
from claimant.ledger import init, open_ledger
from claimant.testing.ledger_rows import SLOT, ended, skipped, started


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def begin(url: str, at: str) -> None:
    """Begin the slot at the same moment as the others, then wait to be told to finish."""
    ledger = open_ledger(f"{url}?deadline=15s", namespace="shop")  # the machine may be busy
    ledger.now()
    run = started(slot=SLOT, run_id=os.urandom(16).hex(), holder=str(os.getpid()))
    time.sleep(max(0.0, float(at) - time.time()))
    reply = ledger.call(Begin(run))
    say([type(reply).__name__, *([reply.attempt, reply.overlapping] if isinstance(reply, Began) else [])])
    if sys.stdin.readline().strip() == "finish":
        ledger.call(ended(run, result="1"))
        say(run.run_id)
    ledger.close()


def create(url: str, at: str) -> None:
    """Make the ledger at the same moment as the others, and write one run."""
    time.sleep(max(0.0, float(at) - time.time()))
    if url.startswith("postgresql"):
        init(url)
    ledger = open_ledger(f"{url}?deadline=15s", namespace="shop")  # the machine may be busy
    run = started(run_id=os.urandom(16).hex())
    ledger.call(Begin(run))
    ledger.call(ended(run))
    ledger.close()
    say("made")


def churn(url: str) -> None:
    """Begin, end and skip until killed; say each run whose end was answered."""
    ledger = open_ledger(f"{url}?deadline=15s", namespace="shop")  # the machine may be busy
    while True:
        run = started(slot=os.urandom(8).hex(), run_id=os.urandom(16).hex())
        ledger.call(Begin(run))
        ledger.call(ended(run))
        say(run.slot)
        ledger.call(skipped())


def one(url: str, at: str = "0") -> None:
    """What a cron start does: one run, however crowded the server is; says how long the ledger took."""
    ledger = open_ledger(url, namespace="shop")
    run = started(run_id=os.urandom(16).hex())
    time.sleep(max(0.0, float(at) - time.time()))
    before = time.monotonic()
    try:
        ledger.call(Begin(run))
        ledger.call(ended(run))
        ledger.close()
    except Exception as error:
        say([type(error).__name__, time.monotonic() - before])
    else:
        say(["written", time.monotonic() - before])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
