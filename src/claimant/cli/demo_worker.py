"""One worker of the demo, in a process of its own: three jobs as an application would declare them.

It reports what it sees as lines of JSON on standard output; the demo prints them and adds nothing.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from typing import Any

from claimant import Claimant, Run, once
from claimant.cli.demo_wallet import Wallet

PIECES = 8


def say(at: str, **what: Any) -> None:
    """Report one moment."""
    print(json.dumps({"at": at, **what}), flush=True)


def main(role: str, store: str, ledger: str, wallet_url: str, namespace: str, *orders: str) -> None:
    """Do one role: "report" once, "debit" orders, "paused" right before the debit, or "queue": one order for each line read."""
    wallet = Wallet(wallet_url)
    with Claimant(store, ledger=ledger, namespace=namespace) as claims:

        @claims.job("nightly-report", every="1h", stake="rebuild", lifetime="2s")
        def nightly_report(run: Run) -> int:
            say("running", slot=run.slot)
            done = 0
            for piece in run.beats(range(PIECES)):
                time.sleep(0.1)  # the work: one piece of the report
                done = piece + 1
            sys.stdin.readline()  # until the other worker has looked, however slow this machine is
            return done

        @claims.job(
            "debit-wallet",
            key=["order_id"],
            stake="money",
            guard=once(wallet_url),
            lifetime="2s",
            max_run="1m",
        )
        def debit_wallet(run: Run, order_id: str, cents: int) -> str:
            time.sleep(0.05)  # the repeatable part: look up the order, compute the total
            if role == "paused":
                say("checked", order=order_id, remaining=run.lease.remaining())
                sys.stdin.readline()
            with closing(wallet.connect()) as conn:
                answer = run.once(conn, lambda tx: wallet.debit(tx, order_id, cents))
            say("answered", order=order_id, kind=answer.kind.value)
            return answer.kind.value

        say("ready")
        if role == "report":
            outcome = nightly_report()
            say("outcome", **outcome.as_dict())
            return
        for order in orders:
            if role == "queue":
                sys.stdin.readline()
            started = time.monotonic()
            result = debit_wallet(order, 4200)
            say("outcome", order=order, took_ms=(time.monotonic() - started) * 1000, **result.as_dict())


if __name__ == "__main__":
    import logging

    logging.getLogger("claimant").setLevel(logging.CRITICAL)
    main(*sys.argv[1:])
