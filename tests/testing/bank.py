"""A database with one wallet, and a `Claimant` whose servers do not exist: nothing may touch them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from claimant import Claimant, once

DEBIT = "UPDATE wallet SET cents = cents - 5"


class Bank:
    """The wallet begins with 1,000 cents; `paid` takes an order once."""

    def __init__(self, url: str, connect: Callable[[], Any]) -> None:
        self.url, self.connect = url, connect
        self.orders = 0
        with self.open() as conn:
            conn.execute("CREATE TABLE wallet (cents BIGINT)")
            conn.execute("INSERT INTO wallet VALUES (1000)")
            conn.execute("CREATE TABLE paid (what TEXT NOT NULL)")
            conn.execute("CREATE UNIQUE INDEX one_payment ON paid (what)")
            conn.commit()
        self.claims = Claimant(
            "redis://127.0.0.1:1/0?deadline=50ms", ledger="postgresql://127.0.0.1:1/none?deadline=50ms"
        )

    @property
    def sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def open(self) -> Any:
        return closing(self.connect())

    def ask(self, sql: str) -> int:
        with self.open() as conn:
            return int(conn.execute(sql).fetchone()[0])

    def cents(self) -> int:
        return self.ask("SELECT cents FROM wallet")

    def payments(self) -> int:
        return self.ask("SELECT count(*) FROM paid")

    def new_order(self) -> int:
        self.orders += 1
        return self.orders

    def pay(self, tx: Any, what: object) -> None:
        tx.execute(f"INSERT INTO paid VALUES ('{what}')")

    def debit_by_itself(self) -> None:
        """An effect that no guard sees: another connection, and a commit of its own."""
        with self.open() as other:
            other.execute(DEBIT)
            other.commit()

    def job(self, body: Callable[..., Any], **options: Any) -> Any:
        given: dict[str, Any] = {"key": ["order"], "stake": "money", "guard": once(self.url)}
        return self.claims.job(f"debit-{len(self.claims.jobs)}", **given | options)(body)
