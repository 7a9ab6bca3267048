"""The demo's own database: one wallet and its debits, on SQLite or PostgreSQL. Not part of the library's promises."""

from __future__ import annotations

import sqlite3
from typing import Any

OPENING_CENTS = 100_000


class Wallet:
    """A balance, and one row per debit that landed. Two debits of one order are allowed by the table: only the guard forbids them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.embedded = url.startswith("sqlite:")

    def connect(self) -> Any:
        """A connection as an application would open it."""
        if self.embedded:
            return sqlite3.connect(self.url.removeprefix("sqlite:"), timeout=10)
        import psycopg

        return psycopg.connect(self.url)

    def create(self, conn: Any) -> None:
        """Make the tables, empty."""
        conn.execute("DROP TABLE IF EXISTS claimant_demo_wallet")
        conn.execute("DROP TABLE IF EXISTS claimant_demo_debit")
        conn.execute("CREATE TABLE claimant_demo_wallet (balance_cents INTEGER NOT NULL)")
        conn.execute("CREATE TABLE claimant_demo_debit (order_id TEXT NOT NULL, cents INTEGER NOT NULL)")
        conn.execute(self._sql("INSERT INTO claimant_demo_wallet VALUES (?)"), (OPENING_CENTS,))
        conn.commit()

    def drop(self, conn: Any, performance: str) -> None:
        """Take the tables away, and what the guard remembers of this performance's orders."""
        orders = f"debit-wallet(order\\_id={performance}/%"
        for table, column in (("claimant_guard", "label"), ("claimant_rejection", "operation")):
            conn.execute(self._sql(f"DELETE FROM {table} WHERE {column} LIKE ? ESCAPE '\\'"), (orders,))  # noqa: S608 - constants
        conn.execute("DROP TABLE IF EXISTS claimant_demo_wallet")
        conn.execute("DROP TABLE IF EXISTS claimant_demo_debit")
        conn.commit()

    def debit(self, tx: Any, order_id: str, cents: int) -> None:
        """The effect: two rows in the transaction that the guard is in."""
        tx.execute(self._sql("UPDATE claimant_demo_wallet SET balance_cents = balance_cents - ?"), (cents,))
        tx.execute(self._sql("INSERT INTO claimant_demo_debit VALUES (?, ?)"), (order_id, cents))

    def _sql(self, text: str) -> str:
        return text if self.embedded else text.replace("?", "%s")

    def balance(self, conn: Any) -> int:
        """What is left, in cents."""
        return int(conn.execute("SELECT balance_cents FROM claimant_demo_wallet").fetchone()[0])

    def debits(self, conn: Any) -> dict[str, int]:
        """How many debits landed, by order."""
        rows = conn.execute("SELECT order_id, count(*) FROM claimant_demo_debit GROUP BY order_id").fetchall()
        return {order: int(count) for order, count in rows}
