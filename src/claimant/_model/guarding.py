"""What a guard's flow asks of a database, and what it may be told.

A guard never speaks to a driver: it names a statement and an adapter carries it out on the caller's own connection.
Errors of the driver are thrown into the flow as they are; `Classify` says what one means.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar

from claimant._model.dialect import Dialect
from claimant._model.operation import Operation
from claimant._model.ops import Flow, Request
from claimant._model.record import record


class Statement(StrEnum):
    """What may be executed beside the user's own effect. Each dialect has one text for each."""

    IMMEDIATE = "immediate"
    """Take the write lock now (SQLite)."""
    PATIENCE = "patience"
    """How long this connection waits for a lock: one row with milliseconds (SQLite)."""
    BOUNDS = "bounds"
    """Bound lock waits and idle time until the end of the transaction. Params: lock, idle."""
    CLAIM = "claim"
    """Insert the guard row. Params: key, label, fingerprint, attempt, job. A count of 1 for the first."""
    CLAIM_BOUND = "claim bound"
    """BOUNDS and CLAIM at once. Params: lock, idle, then CLAIM's. One row: the transaction's identity, or NULL for a later one."""
    CLAIM_WITHIN = "claim within"
    """CLAIM under a bound of its own for its wait, or a stricter one that is set. Params: lock, lock, then CLAIM's. As CLAIM_BOUND."""
    LOOK = "look"
    """Params: key. At most one row: fingerprint, attempt, result, note."""
    KEEP = "keep"
    """Keep the result with the guard row. Params: result, note, key, attempt."""
    BEGUN = "begun"
    """One row: the identity of the open transaction, given one if it has none."""
    STILL = "still"
    """One row: the identity of the open transaction, or NULL."""
    REJECT = "reject"
    """Count a rejected attempt. Params: key, run, cause, job, operation, stake, hole."""
    MAKE_GUARD = "make guard"
    MAKE_REJECTION = "make rejection"
    TALLY = "tally"
    """Rejected attempts: job, stake, cause, hole, count, first, last. Params: job, job ('' for all)."""


@record
class Traits:
    """How the dialects differ, as far as the algorithm cares."""

    one_writer: bool
    """One writer at a time for the whole database: the write lock is taken first, and waited for by ourselves."""
    transaction_ids: bool
    """A transaction can be told from the next one by asking for its identity."""
    lock_bounds: bool
    """Lock waits and idle time can be bounded for one transaction."""
    makes_tables: bool
    """The guard's tables are made at first use."""


TRAITS = {
    Dialect.SQLITE: Traits(one_writer=True, transaction_ids=False, lock_bounds=False, makes_tables=True),
    Dialect.POSTGRESQL: Traits(one_writer=False, transaction_ids=True, lock_bounds=True, makes_tables=False),
}


class Trouble(StrEnum):
    """What a driver's error means for a guard."""

    UNIQUE = "unique"
    SERIALIZATION = "serialization"
    """40001: the whole transaction must be run again."""
    DEADLOCK = "deadlock"
    LOCK_TIMEOUT = "lock timeout"
    """A bounded wait for a lock ended; SQLite's "database is locked" too."""
    STALE = "stale"
    """SQLite: a transaction that has read cannot write any more (SQLITE_BUSY_SNAPSHOT)."""
    LOST = "lost"
    """The connection is gone; what was sent last may have been carried out."""
    UNSURE = "unsure"
    """The database could not say whether the last step was carried out (SQLite: an I/O error)."""
    MISSING_TABLE = "missing table"
    READ_ONLY = "read only"
    VOID = "void"
    """An earlier error made the transaction void, and nothing was done about it (25P02)."""
    OTHER = "other"


@record
class Diagnosis:
    """One error, classified. `violated`: for UNIQUE, the names that the database gave: schema, table, constraint."""

    trouble: Trouble
    violated: tuple[str, ...] = ()
    driver: bool = True
    """Whether it comes from a driver or the network at all, rather than from the user's own code."""
    text: str = ""
    """The error in one line, without any password."""


@record
class Reply:
    """Rows, and how many rows were changed (-1 where the driver does not say)."""

    rows: list[tuple[Any, ...]]
    count: int = -1


class TransactionEnded(Exception):
    """Thrown into the flow by an adapter that finds the transaction or savepoint gone."""


class ConnectionGone(Exception):
    """Thrown into the flow by an adapter whose connection is dead and was not reported so, or cannot be replaced."""


@record
class GuardRequest(Request):
    """A request to the session of one attempt."""

    waits: ClassVar[bool] = True


@record
class Open(GuardRequest):
    """Have a connection: from the engine or pool, the caller's own, or a new one after a loss. Reply: None."""


@record
class BeginOwned(GuardRequest):
    """Begin a transaction of our own. Reply: None."""


@record
class Execute(GuardRequest):
    """Carry out a statement, or a text with "?" for each of its params. Reply: Reply."""

    statement: Statement | str
    params: tuple[Any, ...] = ()


@record
class Savepoint(GuardRequest):
    """Set a savepoint. Reply: None."""


@record
class ReleaseSavepoint(GuardRequest):
    """Release it. `TransactionEnded` if it is gone. Reply: None."""


@record
class RollbackTo(GuardRequest):
    """Roll back to the savepoint and release it. Reply: None."""


@record
class Effect(GuardRequest):
    """Call the user's function, and send out what it left pending (ORM). What it raises is thrown in. Reply: its result."""


@record
class Commit(GuardRequest):
    """Commit our own transaction. An error of a lost connection means: perhaps committed. Reply: None."""


@record
class Rollback(GuardRequest):
    """Roll our own transaction back. Reply: None."""


@record
class Close(GuardRequest):
    """Give the connection back; `broken`: drop it. Never fails. Reply: None."""

    broken: bool = False


@record
class InTransaction(Request):
    """Whether the database itself has a transaction open, whatever any flag says. Reply: bool."""


@record
class Classify(Request):
    """What an error means. Reply: Diagnosis."""

    error: BaseException


@record
class Kept:
    """A result as it is kept with the guard row: JSON text, or why not. Both empty: there was none."""

    text: str | None = None
    note: str = ""


class NotReplayed(Exception):
    """The first attempt did not happen, and what replaced its connection is not for another one."""


@record
class Attempt:
    """One try at an operation. `run_id` is also the attempt's mark in the guard row.

    `joined`: inside the caller's transaction. `reopens`: a lost connection can be replaced; `replays`: and the effect may run on
    what replaced it, which knows nothing of what the caller had set on the lost one. `wait_ms`: how long a
    duplicate waits for the first; `longest_ms`: how long our transaction may be idle. `verify` looks at the live
    database and raises `Refused`. `violated`: is this the caller's own constraint? None: the guard row is the guard.
    `release_tells`: releasing the savepoint fails where the effect ended or voided the transaction, and leaves it as usable.
    `observe`: what the guard row would reject is done all the same, and counted.
    """

    operation: Operation
    run_id: str
    job: str
    stake: str
    hole: str
    traits: Traits
    joined: bool
    reopens: bool
    wait_ms: int
    longest_ms: int
    verify: Callable[[], Flow[None]]
    violated: Callable[[Diagnosis], bool] | None = None
    release_tells: bool = False
    observe: bool = False
    replays: bool = True
