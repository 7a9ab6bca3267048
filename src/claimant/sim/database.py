"""The guard's database: transactions, row locks or one write lock, savepoints, and answers that get lost.

It knows the statements of `_model.guarding` by name, for both faces of the guard and both kinds of database. What
is committed stays; what is not is gone with its connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from claimant._model.dialect import Dialect
from claimant._model.guarding import (
    TRAITS,
    BeginOwned,
    Classify,
    Close,
    Commit,
    Diagnosis,
    Effect,
    Execute,
    InTransaction,
    Open,
    ReleaseSavepoint,
    Reply,
    Rollback,
    RollbackTo,
    Savepoint,
    Statement,
    TransactionEnded,
    Trouble,
)
from claimant.sim.schedule import Schedule
from claimant.sim.world import World

if TYPE_CHECKING:
    from claimant.sim.attempt import Attempt
    from claimant.sim.process import Task

SLOW = (Execute, Commit, Effect, Rollback)
"""Requests that take time of their own; the others are answered at once."""
CLAIMS = (Statement.CLAIM, Statement.CLAIM_BOUND, Statement.CLAIM_WITHIN)
NEED_TABLES = (*CLAIMS, Statement.LOOK, Statement.REJECT, Statement.KEEP)


class DatabaseError(Exception):
    """What a driver raises."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.value)
        self.trouble = trouble


@dataclass(slots=True)
class Transaction:
    """What is written and not committed."""

    number: int
    rows: dict[bytes, tuple[bytes, str]] = field(default_factory=dict)
    effects: list[tuple[bytes, int]] = field(default_factory=list)
    rejections: list[tuple[bytes, str, str]] = field(default_factory=list)
    tables: bool = False
    savepoint: tuple[dict[bytes, tuple[bytes, str]], int, int] | None = None


@dataclass(slots=True, eq=False)
class Connection:
    """One attempt's connection. `broken`: the server or the network has ended it."""

    attempt: Attempt
    transaction: Transaction | None = None
    broken: bool = False
    last_ms: int = 0
    lock_ms: int = 0
    idle_ms: int = 0
    waiting: int = 0


class GuardDatabase:
    """One database. `effects` and `rejected` are what it has committed."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self.world = world
        self.schedule = schedule
        self.traits = TRAITS[schedule.dialect]
        self.rows: dict[bytes, tuple[bytes, str]] = {}
        self.effects: dict[bytes, list[int]] = {}
        self.rejected: set[tuple[bytes, str, str]] = set()
        self.tables = schedule.dialect is Dialect.POSTGRESQL
        self.connections: dict[int, Connection] = {}
        self.waiters: list[tuple[Connection, Task, int, Execute]] = []
        self.transactions = 0
        self.forgot = False
        """Whether it has failed over to a copy that was behind."""
        self._copy: tuple[
            dict[bytes, tuple[bytes, str]], dict[bytes, list[int]], set[tuple[bytes, str, str]]
        ] = (
            {},
            {},
            set(),
        )

    # -- from the process ----------------------------------------------------------------------------------------

    def ask(self, task: Task, request: Any, wait: Any) -> Any:
        """Answer at once, or later (`wait`)."""
        attempt = task.attempt
        assert attempt is not None
        connection = self.connections.get(attempt.number)
        if connection is None:
            connection = self.connections[attempt.number] = Connection(attempt)
        match request:
            case Classify(error):
                return self._diagnosed(error)
            case InTransaction():
                return connection.transaction is not None
        world = self.world
        slow = isinstance(request, SLOW)
        loss = self.schedule.guard_loss
        lost = (
            bool(loss)
            and not isinstance(request, Close)
            and world.now < self.schedule.calm_ms
            and world.chance() < loss
        )
        if not slow and not lost:
            try:
                return self.carry_out(connection, request)
            except (DatabaseError, TransactionEnded) as error:
                task.wait(request)
                world.at(world.now, task.deliver, task.wait_id, None, error)
                return wait
        task.wait(request)
        connection.last_ms = max(connection.last_ms, world.now + 1 + world.below(2))
        if lost:
            self._lose(task, connection, request)
        else:
            world.at(connection.last_ms, self._land, task, task.wait_id, connection, request)
        return wait

    def _lose(self, task: Task, connection: Connection, request: Any) -> None:
        """The connection breaks under this request, before or after it was carried out."""
        world = self.world
        after = isinstance(request, Commit) and world.chance() < 0.6
        world.count(f"guard: {'answer' if after else 'connection'} lost at {request.__class__.__name__}")
        world.at(connection.last_ms, self._break, connection, request if after else None)
        world.at(
            connection.last_ms + 1 + world.below(50),
            task.deliver,
            task.wait_id,
            None,
            DatabaseError(Trouble.LOST),
        )

    def _break(self, connection: Connection, last: Any) -> None:
        if last is not None and connection.transaction is not None:
            self.carry_out(connection, last)
        self._undo(connection)
        connection.broken = True

    def keep_copy(self) -> None:
        """What a copy has that is behind from now on."""
        effects = {key: list(attempts) for key, attempts in self.effects.items()}
        self._copy = (dict(self.rows), effects, set(self.rejected))

    def fail_over(self) -> None:
        """The copy takes over; every connection breaks."""
        world = self.world
        world.count("guard failover")
        world.note("guard", "fails over")
        lost = len(self.rows) != len(self._copy[0])
        self.forgot = self.forgot or lost or self.rejected != self._copy[2]
        world.count("guard failover: rows lost", int(lost))
        self.rows, self.effects, self.rejected = self._copy
        for connection in list(self.connections.values()):
            self._break(connection, None)

    def died(self, attempts: list[int]) -> None:
        """A process died: its connections drop, after what they had sent has arrived."""
        for number in attempts:
            connection = self.connections.get(number)
            if connection is not None:
                self.world.at(max(self.world.now, connection.last_ms), self._break, connection, None)

    def frozen(self, attempts: list[int]) -> None:
        """A process is frozen: where idle transactions are bounded, its own are ended when the bound has passed."""
        for number in attempts:
            connection = self.connections.get(number)
            if connection is not None and connection.transaction is not None and connection.idle_ms:
                self.world.at(
                    self.world.now + connection.idle_ms, self._idle, connection, connection.transaction.number
                )

    def _idle(self, connection: Connection, number: int) -> None:
        frozen = connection.attempt.process.frozen
        if frozen and connection.transaction is not None and connection.transaction.number == number:
            self.world.count("guard: idle transaction ended")
            self._break(connection, None)

    # -- on the server -------------------------------------------------------------------------------------------

    def _land(self, task: Task, wait_id: int, connection: Connection, request: Any) -> None:
        world = self.world
        try:
            reply = self.carry_out(connection, request)
        except (DatabaseError, TransactionEnded) as error:
            world.at(world.now, task.deliver, wait_id, None, error)
            return
        if reply is None and isinstance(request, Execute) and request.statement in CLAIMS:
            # Somebody's uncommitted row is in the way: wait for the end of their transaction, within the bound.
            world.count("guard: waits for another transaction")
            connection.waiting += 1
            self.waiters.append((connection, task, wait_id, request))
            world.at(
                world.now + connection.lock_ms, self._give_up, connection, task, wait_id, connection.waiting
            )
            return
        if isinstance(request, Effect):
            boom = connection.attempt.effect_boom
            if boom is not None:
                world.at(world.now, task.deliver, wait_id, None, boom)
                return
        world.at(world.now + 1, task.deliver, wait_id, reply)

    def _give_up(self, connection: Connection, task: Task, wait_id: int, waiting: int) -> None:
        mine = [waiter for waiter in self.waiters if waiter[0] is connection]
        if mine and connection.waiting == waiting:
            self.waiters = [waiter for waiter in self.waiters if waiter[0] is not connection]
            self.world.count("guard: lock timeout")
            task.deliver(wait_id, None, DatabaseError(Trouble.LOCK_TIMEOUT))

    def carry_out(self, connection: Connection, request: Any) -> Any:
        """One request on one connection. Raises what a driver raises."""
        match request:
            case Open():
                connection.broken = False
                return None
            case Close():
                self._undo(connection)
                return None
            case _ if connection.broken:
                raise DatabaseError(Trouble.LOST)
            case BeginOwned():
                if not self.traits.one_writer:
                    self._begin(connection)
                return None
            case Execute():
                return self._execute(connection, request)
            case Rollback():
                self._undo(connection)
                return None
        transaction = connection.transaction
        if transaction is None:
            raise TransactionEnded
        match request:
            case Savepoint():
                transaction.savepoint = (
                    dict(transaction.rows),
                    len(transaction.effects),
                    len(transaction.rejections),
                )
            case ReleaseSavepoint():
                transaction.savepoint = None
            case RollbackTo():
                if transaction.savepoint is None:
                    raise TransactionEnded
                transaction.rows = transaction.savepoint[0]
                del transaction.effects[transaction.savepoint[1] :]
                del transaction.rejections[transaction.savepoint[2] :]
            case Effect():
                transaction.effects.append((connection.attempt.operation, connection.attempt.number))
            case Commit():
                self._commit(connection, transaction)
        return None

    def _begin(self, connection: Connection) -> None:
        self.transactions += 1
        connection.transaction = Transaction(self.transactions)

    def _execute(self, connection: Connection, request: Execute) -> Reply | None:
        statement, params, transaction = request.statement, request.params, connection.transaction
        if not isinstance(statement, Statement):
            return Reply([])
        match statement:
            case Statement.PATIENCE:
                return Reply([(5_000,)])
            case Statement.IMMEDIATE:
                if any(each.transaction is not None for each in self.connections.values()):
                    self.world.count("guard: database locked")
                    raise DatabaseError(Trouble.LOCK_TIMEOUT)
                self._begin(connection)
                return Reply([])
        if transaction is None:
            raise DatabaseError(Trouble.OTHER)
        if statement in NEED_TABLES and not (self.tables or transaction.tables):
            raise DatabaseError(Trouble.MISSING_TABLE)
        match statement:
            case Statement.BOUNDS:
                connection.lock_ms, connection.idle_ms = (int(bound.removesuffix("ms")) for bound in params)
                return Reply([])
            case Statement.MAKE_GUARD | Statement.MAKE_REJECTION:
                transaction.tables = True
            case Statement.BEGUN | Statement.STILL:
                return Reply([(str(transaction.number),)])
            case Statement.CLAIM:
                return self._claim(transaction, params)
            case Statement.CLAIM_BOUND:
                connection.lock_ms, connection.idle_ms = (
                    int(bound.removesuffix("ms")) for bound in params[:2]
                )
                return self._claim(transaction, params[2:])
            case Statement.CLAIM_WITHIN:
                connection.lock_ms = int(params[0].removesuffix("ms"))
                return self._claim(transaction, params[2:])
            case Statement.LOOK:
                row = transaction.rows.get(params[0]) or self.rows.get(params[0])
                return Reply([] if row is None else [(row[0], row[1], None, None)])
            case Statement.REJECT:
                transaction.rejections.append((params[0], params[1], params[2]))
            case _:
                pass
        return Reply([], 1)

    def _claim(self, transaction: Transaction, params: tuple[Any, ...]) -> Reply | None:
        key, _, fingerprint, attempt = params[:4]
        if key in self.rows or key in transaction.rows:
            return Reply([(None,)] if self.traits.transaction_ids else [], 0)
        for other in self.connections.values():
            if (
                other.transaction is not None
                and other.transaction is not transaction
                and key in other.transaction.rows
            ):
                return None
        transaction.rows[key] = (fingerprint, attempt)
        return Reply([(str(transaction.number),)] if self.traits.transaction_ids else [], 1)

    def _commit(self, connection: Connection, transaction: Transaction) -> None:
        world = self.world
        self.rows.update(transaction.rows)
        self.tables = self.tables or transaction.tables
        for key, attempt in transaction.effects:
            self.effects.setdefault(key, []).append(attempt)
            world.note(f"a{attempt}", "effect committed")
        for line in transaction.rejections:
            self.rejected.add(line)
            world.note(f"a{connection.attempt.number}", f"rejection counted: {line[2]}")
        self._ended(connection)

    def _undo(self, connection: Connection) -> None:
        if connection.transaction is not None:
            self._ended(connection)

    def _ended(self, connection: Connection) -> None:
        connection.transaction = None
        connection.waiting += 1
        waiters, self.waiters = self.waiters, []
        for other, task, wait_id, request in waiters:
            if other is not connection:
                self.world.at(self.world.now, self._land, task, wait_id, other, request)

    @staticmethod
    def _diagnosed(error: BaseException) -> Diagnosis:
        if isinstance(error, DatabaseError):
            return Diagnosis(error.trouble, text=error.trouble.value)
        return Diagnosis(Trouble.OTHER, driver=False, text=type(error).__name__)
