"""A worker of `test_two_groups`: it shares a lease store and a database with the others, and nothing else."""

from __future__ import annotations

import json
import sys

import psycopg

from claimant import Claimant, Run, once


def main(store: str, database: str, orders: str) -> None:
    with Claimant(store, ledger=database, namespace="shop") as claims:

        @claims.job("debit", key=["order_id"], stake="money", guard=once(database), held="wait:20s")
        def debit(run: Run, order_id: int) -> str:
            with psycopg.connect(database) as conn:
                return run.once(
                    conn, lambda tx: tx.execute("INSERT INTO debit VALUES (%s, 1)", (order_id,))
                ).kind.value

        @claims.job("report", every="24h", stake="rebuild", held="standby")
        def report(run: Run) -> str:
            return "made"

        print(json.dumps({"report": report().as_dict()}), flush=True)
        for order in range(int(orders)):
            print(json.dumps({"order": order, "outcome": debit(order).as_dict()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
