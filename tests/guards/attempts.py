"""Attempts at one operation, as a run would make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from claimant._model.events import Event
from claimant._model.operation import Operation, identify
from claimant.guards import Context, Once, Said, once_aio, once_blocking

OPERATION = identify("debit-wallet", {"order_id": "42"})
CHARGE = "INSERT INTO notes (text) VALUES ('charged')"


def context(
    run_id: str, events: list[Event] | None = None, committed: Callable[[], None] | None = None
) -> Context:
    told: list[Event] = [] if events is None else events
    return Context("debit-wallet", "money", run_id, "", told.append, committed)


def charge(tx: Any) -> str:
    """An effect on a plain connection."""
    tx.execute(CHARGE)
    return "ok"


async def charge_aio(tx: Any) -> str:
    """The same, awaited."""
    await tx.execute(CHARGE)
    return "ok"


def core_charge(tx: Any) -> str:
    """The same on SQLAlchemy."""
    tx.exec_driver_sql(CHARGE)
    return "ok"


def attempt(
    guard: Once,
    handle: Any,
    effect: Callable[[Any], Any] = charge,
    run_id: str = "run-1",
    *,
    operation: Operation = OPERATION,
    events: list[Event] | None = None,
) -> Said[Any]:
    return once_blocking(guard, handle, effect, operation, context(run_id, events))


async def attempt_aio(
    guard: Once, handle: Any, effect: Callable[[Any], Any] = charge_aio, run_id: str = "run-1"
) -> Said[Any]:
    return await once_aio(guard, handle, effect, OPERATION, context(run_id))


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    """What others see."""
    with psycopg.connect(url, autocommit=True) as conn:
        return conn.execute(sql).fetchall()


def notes(url: str) -> int:
    return int(rows(url, "SELECT count(*) FROM notes")[0][0])
