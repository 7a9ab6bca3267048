"""The guard on a Django database connection, over PostgreSQL or SQLite.

Django's own `atomic` blocks are used, so that it knows what is open, what was rolled back and which on-commit hooks are
still to be called. An effect may use the ORM on the same alias: it is the same connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from claimant._model.dialect import Dialect
from claimant._model.errors import Refused
from claimant._model.guarding import Reply, Statement, TransactionEnded
from claimant._sql.guard_texts import TEXTS
from claimant._sql.live import refuse_other
from claimant._sql.paramstyle import rendered
from claimant._sql.target import Target
from claimant.guards.on_sqlite3 import Sqlite3Caller

DIALECTS = {"postgresql": Dialect.POSTGRESQL, "sqlite": Dialect.SQLITE}
_IN_TRANSACTION, _IN_ERROR = 2, 3
"""libpq's PQtransactionStatus."""


def wrapper_of(handle: Any) -> Any:
    """The connection that `django.db.connection`, or an alias of `connections`, stands for on this thread."""
    from django.db import connections

    wrapper = connections[handle.alias]
    given = handle if type(handle).__name__ != "ConnectionProxy" else wrapper
    if given is not wrapper:
        raise Refused(
            "CLM042",
            f"run.once() was given a Django connection that is not connections[{handle.alias!r}] of this thread, and Django would "
            "open its transaction on that one. Pass django.db.connection, or connections[alias]",
        )
    return wrapper


def dialect_of(wrapper: Any) -> Dialect:
    """The connection's database. Raises `Refused` (CLM040) for one that cannot guard an effect yet."""
    dialect = DIALECTS.get(wrapper.vendor)
    if dialect is None:
        raise Refused(
            "CLM040",
            f"the Django connection {wrapper.alias!r} is of {wrapper.vendor}: only SQLite and PostgreSQL can guard an effect in "
            "this version",
        )
    if wrapper.vendor == "postgresql" and wrapper.Database.__name__ != "psycopg":
        raise Refused(
            "CLM042",
            f"the Django connection {wrapper.alias!r} speaks to PostgreSQL by {wrapper.Database.__name__}, and the guard needs "
            "psycopg 3: pip install 'claimant[postgres]'. Django uses it as soon as it is there",
        )
    return dialect


class DjangoSession:
    """One connection of `django.db.connections`."""

    waits = False
    release_tells = False
    reopens = True
    replays = True

    def __init__(self, wrapper: Any, declared: Target) -> None:
        self._wrapper = wrapper
        self._declared = declared
        self._raw: Any = None
        self._outer: Any = None
        self._inner: Any = None
        self._hooks_run = False
        self.mark = ""
        self.place = ""
        self.joined: bool = wrapper.in_atomic_block or not _autocommit(wrapper)

    @property
    def tx(self) -> Any:
        """The connection."""
        return self._wrapper

    def open(self) -> None:
        """Connect, if Django has not, and look at what was had."""
        wrapper = self._wrapper
        wrapper.ensure_connection()
        self._raw = wrapper.connection
        if not self.joined and self.in_transaction():
            raise Refused(
                "CLM045",
                f"a transaction is open on the Django connection {wrapper.alias!r} that Django does not know of (a BEGIN by "
                "statement?), so it could not say what was committed. Use transaction.atomic() instead",
            )
        if self._declared.alias not in ("", wrapper.alias):
            raise Refused(
                "CLM044",
                f"the guard was declared for django:{self._declared.alias}, and run.once() was given the connection "
                f"{wrapper.alias!r}: the effect would land in another database than its guard. Pass "
                f"connections[{self._declared.alias!r}], or declare django:{wrapper.alias}",
            )
        if wrapper.vendor == "sqlite":
            self.place = f"sqlite:{wrapper.settings_dict['NAME']}"
            return
        info = self._raw.info
        self.place = f"{info.host}:{info.port}/{info.dbname}"
        address = f"postgresql://{info.host}/{info.dbname}"
        refuse_other(self._declared, Target(Dialect.POSTGRESQL, info.dbname, address))

    def begin(self) -> None:
        """An outermost `atomic` block. On SQLite the flow takes the write lock first, and the block is put around that."""
        if self._wrapper.vendor != "sqlite":
            self._outer = self._entered(durable=True)

    def _adopt(self) -> None:
        """Put Django's outermost block around the transaction that the flow has begun by statement."""
        if self._outer is not None or self.joined or not self.in_transaction():
            return
        wrapper = self._wrapper
        # What an outermost block begins with: it has begun.
        wrapper._start_transaction_under_autocommit = lambda: None  # noqa: SLF001
        try:
            self._outer = self._entered(durable=True)
        finally:
            del wrapper._start_transaction_under_autocommit  # noqa: SLF001

    def execute(self, text: str, params: tuple[Any, ...]) -> Reply:
        """Carry `text` out on a cursor of Django's."""
        with self._wrapper.cursor() as cursor:
            cursor.execute(rendered(text, "format"), params)
            rows = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            return Reply(rows, cursor.rowcount)

    def savepoint(self) -> None:
        """An `atomic` block within."""
        self._adopt()
        self._inner = self._entered(durable=False)

    def release(self) -> None:
        """Leave the inner block; it is gone where the transaction has ended meanwhile."""
        self._refuse_void()
        if not self.in_transaction():
            raise TransactionEnded
        inner, self._inner = self._inner, None
        try:
            inner.__exit__(None, None, None)
        except Exception as error:
            raw = error.__cause__ or error
            if getattr(raw, "sqlstate", "") == "3B001" or "no such savepoint" in str(raw):
                raise TransactionEnded from error
            raise

    def rollback_to(self) -> None:
        """Leave the inner block, undoing it."""
        inner, self._inner = self._inner, None
        if inner is not None:
            _undo(inner)

    def flush(self) -> None:
        """Nothing is ever pending; whether the effect has left a block that can only be rolled back is seen here."""
        self._refuse_void()

    def commit(self) -> None:
        """Leave the outermost block."""
        self._adopt()
        self._refuse_void()
        outer, self._outer = self._outer, None
        try:
            outer.__exit__(None, None, None)
        except Exception as error:
            if self._hooks_run:
                error.add_note("claimant: raised by an on_commit hook; the effect was committed before it")
            raise

    def rollback(self) -> None:
        """Leave the blocks, from the inner to the outermost, undoing them."""
        self.rollback_to()
        outer, self._outer = self._outer, None
        if outer is not None:
            _undo(outer)
        elif self.in_transaction():
            self.execute("ROLLBACK", ())

    def close(self, *, broken: bool) -> None:
        """It stays open as Django's settings say; a dead one is closed, and opened anew by its next use."""
        if broken and not self.joined:
            with contextlib.suppress(Exception):
                self._wrapper.close()

    def in_transaction(self) -> bool:
        """The database's own word for it."""
        raw = self._wrapper.connection
        if raw is None:
            return False
        if self._wrapper.vendor == "sqlite":
            return bool(raw.in_transaction)
        status = raw.info.transaction_status
        return int(status) in (_IN_TRANSACTION, _IN_ERROR)

    def broken(self, _error: BaseException, /) -> bool:
        """Whether the connection that was in use is dead; Django may have another one by now."""
        return self._raw is not None and self._wrapper.vendor != "sqlite" and bool(self._raw.closed)

    def caller(self, key: bytes, run_id: str, /) -> BlockCaller | ManualCaller | Sqlite3Caller | None:
        """The block that was joined, or the transaction of who has switched autocommit off."""
        if not self.joined:
            return None
        if self._wrapper.in_atomic_block:
            return BlockCaller(self._wrapper)
        if self._wrapper.vendor == "sqlite":
            return Sqlite3Caller(self._raw, key, run_id)
        return ManualCaller(self)

    def still(self) -> bool:
        """Whether the joined transaction is the open one."""
        if not self.in_transaction():
            return False
        return bool(self.execute(TEXTS[Dialect.POSTGRESQL][Statement.STILL], ()).rows[0][0] == self.mark)

    def _entered(self, *, durable: bool) -> Any:
        from django.db import transaction

        block: Any = transaction.atomic(using=self._wrapper.alias, durable=durable)
        block.__enter__()
        self._raw = self._wrapper.connection
        if durable:
            self._hooks_run = False
            transaction.on_commit(self._committed, using=self._wrapper.alias)
        return block

    def _committed(self) -> None:
        self._hooks_run = True

    def _refuse_void(self) -> None:
        """Django would roll our block back without a word: an inner one without a savepoint has failed, or it was closed."""
        if self._wrapper.needs_rollback:
            from django.db.transaction import TransactionManagementError

            raise TransactionManagementError(
                "an error was caught inside the effect that had made its transaction void, or the connection was closed in it: it "
                "can only be rolled back. Let the error out of the effect, or put an atomic block of its own around what may fail"
            )


def _autocommit(wrapper: Any) -> bool:
    """Whether Django commits each statement by itself while no block is open, or will when it has connected."""
    return bool(wrapper.settings_dict["AUTOCOMMIT"] if wrapper.connection is None else wrapper.autocommit)


def _undo(block: Any) -> None:
    """Leave an `atomic` block as an error does."""
    error = RuntimeError("rolled back by the guard")
    block.__exit__(RuntimeError, error, None)


class BlockCaller:
    """Asks whether the caller's atomic block, the one that was joined, is still open, by a hook that goes with it."""

    def __init__(self, wrapper: Any) -> None:
        from django.db import transaction

        self._wrapper = wrapper
        self._callbacks: list[Callable[[], None]] = []
        transaction.on_commit(self._committed, using=wrapper.alias, robust=True)

    def _committed(self) -> None:
        for callback in self._callbacks:
            callback()

    def __call__(self) -> bool:
        """Whether that block is still open: its hooks are dropped with its rollback, and called by its commit."""
        waiting: list[tuple[Any, ...]] = self._wrapper.run_on_commit
        return any(self._committed in entry for entry in waiting)

    def on_commit(self, callback: Callable[[], None], /) -> bool:
        """Call `callback` after the outermost block's commit; never after a rollback."""
        self._callbacks.append(callback)
        return True


class ManualCaller:
    """Asks PostgreSQL, where autocommit is off and no block is open: Django has no hooks then."""

    def __init__(self, session: DjangoSession) -> None:
        self._session = session

    def __call__(self) -> bool:
        """Whether the joined transaction is still open; True where that cannot be told."""
        try:
            return self._session.still()
        except Exception:
            return True

    def on_commit(self, _callback: Callable[[], None], /) -> bool:
        """Django refuses hooks in manual transaction management."""
        return False
