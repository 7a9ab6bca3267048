"""A worker of `test_real_input`: bills every page of invoices once, in an order of its own, as an application would."""

from __future__ import annotations

import random
import sqlite3
import sys
from typing import Any

from claimant import Claimant, Run, once
from claimant._model.outcome import Kind


def connect(path: str) -> sqlite3.Connection:
    conn = sqlite3.connect(path, timeout=30)
    conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("PRAGMA synchronous=NORMAL")
    return conn


def main(folder: str, seed: str, pages: str, size: str) -> None:
    database = f"{folder}/invoices.db"
    with Claimant(f"sqlite:{folder}/leases.db", ledger=f"sqlite:{folder}/ledger.db") as claims:

        @claims.job(
            "bill-page",
            key=["page"],
            stake="money",
            guard=once(f"sqlite:{database}"),
            lifetime="1s",
            on_loss="go-on",
        )
        def bill_page(run: Run, page: int) -> None:
            conn = connect(database)
            try:
                first = page * int(size)
                rows = conn.execute(
                    "SELECT id, cents FROM invoice WHERE id >= ? AND id < ?", (first, first + int(size))
                )
                for invoice, cents in run.beats(rows.fetchall()):

                    def debit(tx: Any, invoice: int = invoice, cents: int = cents) -> None:
                        tx.execute("INSERT INTO debit (invoice, cents) VALUES (?, ?)", (invoice, cents))
                        tx.execute("UPDATE account SET cents = cents - ?", (cents,))

                    run.once(conn, debit, operation=("invoice", invoice))
            finally:
                conn.close()

        todo = list(range(int(pages)))
        random.Random(int(seed)).shuffle(todo)
        while todo:
            outcome = bill_page(todo[0])
            if outcome.kind is Kind.RAN:
                todo.pop(0)
            else:
                todo.append(todo.pop(0))
        print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
