"""The guard on psycopg: a connection or a pool, plain and async.

psycopg's own transaction blocks are used, so that autocommit, isolation level and the caller's blocks all keep their
meaning, and commit() inside the effect is refused by psycopg itself.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from claimant._model.dialect import Dialect
from claimant._model.errors import Refused
from claimant._model.guarding import ConnectionGone, Reply, Statement, TransactionEnded
from claimant._sql.guard_texts import TEXTS
from claimant._sql.live import refuse_other
from claimant._sql.paramstyle import rendered
from claimant._sql.target import Target
from claimant.guards import sessions

# libpq's PQtransactionStatus
_IDLE, _ACTIVE, _IN_TRANSACTION, _IN_ERROR = 0, 1, 2, 3


@functools.cache
def _text_loader() -> Any:
    from psycopg.types.string import TextLoader

    class Text(TextLoader):
        """Text as text, in an SQL_ASCII database too."""

        def load(self, data: Any) -> str:
            return bytes(data).decode("utf-8", "replace")

    return Text


@functools.cache
def _rendered(text: str) -> bytes:
    return rendered(text, "format").encode()


def _has_rows(cursor: Any) -> bool:
    """Whether there is anything to fetch; `description` would make an object of each column to tell."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


class _Psycopg:
    """What both colours share. `spare`: connects anew, for a lost connection that came from no pool."""

    waits: bool
    release_tells = True

    def __init__(self, handle: Any, *, pool: bool, declared: Target, spare: Callable[[], Any] | None) -> None:
        self._pool: Any = handle if pool else None
        self._conn: Any = handle
        if pool:
            self._conn = None
        self._declared = declared
        self._spare = spare
        self._spared = False
        self._cursor: Any = None
        self._lost = False
        # What transaction() gives, and the block that entering it gives.
        self._outer: Any = None
        self._outer_block: Any = None
        self._inner: Any = None
        self._inner_block: Any = None
        self.mark = ""
        self.reopens = pool or spare is not None
        # What the caller has set on a connection of his own, a spare one does not know: it is for questions only.
        self.replays = pool
        self.joined = False
        if not pool:
            self.joined = self._status() in (_IN_TRANSACTION, _IN_ERROR)
            if self._status() == _ACTIVE or self._conn.pgconn.pipeline_status:
                raise Refused(
                    "CLM042",
                    "run.once() needs the connection to itself: it is in a pipeline block or busy with another query. Leave the "
                    "block first, or give run.once() a connection of its own",
                )

    @property
    def tx(self) -> Any:
        """The connection."""
        return self._conn

    @property
    def place(self) -> str:
        """Server and database."""
        info = self._conn.info
        return f"{info.host}:{info.port}/{info.dbname}"

    def _status(self) -> int:
        return int(self._conn.pgconn.transaction_status)

    def _ours(self) -> Any:
        """A cursor of our own kind on the connection in use, made once."""
        if self._cursor is None or self._cursor.connection is not self._conn:
            import psycopg
            from psycopg.rows import tuple_row

            kind: Any = psycopg.AsyncCursor if self.waits else psycopg.Cursor
            self._cursor = kind(self._conn, row_factory=tuple_row)
            # The caller's own adapters, and SQL_ASCII's bytes for text, are not for our rows.
            self._cursor.adapters.register_loader("text", _text_loader())
        return self._cursor

    def _look(self) -> None:
        info = self._conn.info
        name = info.dbname
        refuse_other(self._declared, Target(Dialect.POSTGRESQL, name, f"postgresql://{info.host}/{name}"))

    def _usable(self) -> bool:
        """Whether the caller's own connection can be used; else one is to be opened in its place."""
        if not self._conn.closed:
            return True
        if not self._lost:
            raise ConnectionGone("the connection is closed")
        if self._spare is None:
            raise ConnectionGone(
                "the connection is gone, and the guard was not declared with a URL to open another"
            )
        return False

    def _begun(self) -> None:
        if self._status() != _IN_TRANSACTION:
            raise Refused(
                "CLM045", "no transaction was open after BEGIN; an effect without one cannot be guarded"
            )

    def _committed(self) -> None:
        # A block whose connection died leaves silently.
        if self._outer_block.status.value != "committed":
            raise ConnectionGone("the connection was lost before the COMMIT was acknowledged")

    def _refuse_void(self) -> None:
        """The block of a transaction that is in error can only be undone, and the server would say so."""
        if self._status() == _IN_ERROR:
            from psycopg.errors import InFailedSqlTransaction

            raise InFailedSqlTransaction(
                "current transaction is aborted, commands ignored until it is rolled back"
            )

    def _undone(self) -> None:
        if self._status() != _IN_TRANSACTION:
            raise TransactionEnded

    def in_transaction(self) -> bool:
        """The server's last word."""
        return self._status() in (_IN_TRANSACTION, _IN_ERROR)

    def broken(self, _error: BaseException, /) -> bool:
        """Whether the connection in use is dead."""
        return self._conn is not None and bool(self._conn.closed)


class PsycopgSession(_Psycopg):
    """psycopg.Connection or psycopg_pool.ConnectionPool."""

    waits = False

    def open(self) -> None:
        """The caller's connection, one from the pool, or one in place of a lost one."""
        if self._pool is not None:
            if self._lost:
                self._pool.check()
            self._conn = self._pool.getconn(timeout=min(self._pool.timeout, sessions.CONNECT_S))
        elif not self._usable() and self._spare is not None:
            self._conn, self._spared = self._spare(), True
        try:
            self._look()
        except BaseException:
            self.close(broken=False)
            raise

    def begin(self) -> None:
        """BEGIN, as the connection's settings say."""
        self._outer = self._conn.transaction()
        self._outer_block = self._outer.__enter__()
        self._begun()

    def execute(self, text: str, params: tuple[Any, ...]) -> Reply:
        """Carry `text` out on a cursor of our own kind."""
        cursor = self._ours()
        cursor.execute(_rendered(text), params)
        return Reply(cursor.fetchall() if _has_rows(cursor) else [], cursor.rowcount)

    def savepoint(self) -> None:
        """A block in the caller's transaction."""
        self._inner = self._conn.transaction()
        self._inner_block = self._inner.__enter__()

    def release(self) -> None:
        """Leave the block."""
        self._refuse_void()
        inner, self._inner = self._inner, None
        try:
            inner.__exit__(None, None, None)
        except Exception as error:
            raise _savepoint_gone(error) from error

    def rollback_to(self) -> None:
        """Leave the block, undoing it."""
        inner, self._inner = self._inner, None
        if inner is not None:
            _leave(inner, self._inner_block)
        self._undone()

    def flush(self) -> None:
        """Nothing is ever pending."""

    def commit(self) -> None:
        """COMMIT, and see that it was one."""
        outer, self._outer = self._outer, None
        outer.__exit__(None, None, None)
        self._committed()

    def rollback(self) -> None:
        """ROLLBACK."""
        outer, self._outer = self._outer, None
        if outer is not None and self._outer_block is not None:
            _leave(outer, self._outer_block)

    def close(self, *, broken: bool) -> None:
        """Back to the pool; the caller's own stays."""
        self._lost = self._lost or broken
        conn = self._conn
        if self._pool is not None and conn is not None:
            if broken:
                conn.close()
            self._pool.putconn(conn)
            self._conn = None
        elif self._spared and conn is not None:
            conn.close()

    def caller(self, _key: bytes, _run_id: str, /) -> PsycopgCaller | None:
        """The transaction that was joined."""
        return PsycopgCaller(self, self.mark) if self.joined else None

    def still(self) -> bool:
        """Whether the joined transaction is the open one."""
        if self._status() != _IN_TRANSACTION:
            return self.in_transaction()
        reply = self.execute(TEXTS[Dialect.POSTGRESQL][Statement.STILL], ())
        return bool(reply.rows[0][0] == self.mark)


class AsyncPsycopgSession(_Psycopg):
    """psycopg.AsyncConnection or psycopg_pool.AsyncConnectionPool: the same, awaited."""

    waits = True

    async def open(self) -> None:
        """The caller's connection, one from the pool, or one in place of a lost one."""
        if self._pool is not None:
            if self._lost:
                await self._pool.check()
            self._conn = await self._pool.getconn(timeout=min(self._pool.timeout, sessions.CONNECT_S))
        elif not self._usable() and self._spare is not None:
            self._conn, self._spared = await self._spare(), True
        try:
            self._look()
        except BaseException:
            await self.close(broken=False)
            raise

    async def begin(self) -> None:
        """BEGIN, as the connection's settings say."""
        self._outer = self._conn.transaction()
        self._outer_block = await self._outer.__aenter__()
        self._begun()

    async def execute(self, text: str, params: tuple[Any, ...]) -> Reply:
        """Carry `text` out on a cursor of our own kind."""
        cursor = self._ours()
        await cursor.execute(_rendered(text), params)
        return Reply(await cursor.fetchall() if _has_rows(cursor) else [], cursor.rowcount)

    async def savepoint(self) -> None:
        """A block in the caller's transaction."""
        self._inner = self._conn.transaction()
        self._inner_block = await self._inner.__aenter__()

    async def release(self) -> None:
        """Leave the block."""
        self._refuse_void()
        inner, self._inner = self._inner, None
        try:
            await inner.__aexit__(None, None, None)
        except Exception as error:
            raise _savepoint_gone(error) from error

    async def rollback_to(self) -> None:
        """Leave the block, undoing it."""
        inner, self._inner = self._inner, None
        if inner is not None:
            await _leave_async(inner, self._inner_block)
        self._undone()

    async def flush(self) -> None:
        """Nothing is ever pending."""

    async def commit(self) -> None:
        """COMMIT, and see that it was one."""
        outer, self._outer = self._outer, None
        await outer.__aexit__(None, None, None)
        self._committed()

    async def rollback(self) -> None:
        """ROLLBACK."""
        outer, self._outer = self._outer, None
        if outer is not None and self._outer_block is not None:
            await _leave_async(outer, self._outer_block)

    async def close(self, *, broken: bool) -> None:
        """Back to the pool; the caller's own stays."""
        self._lost = self._lost or broken
        conn = self._conn
        if self._pool is not None and conn is not None:
            if broken:
                await conn.close()
            await self._pool.putconn(conn)
            self._conn = None
        elif self._spared and conn is not None:
            await conn.close()

    def caller(self, _key: bytes, _run_id: str, /) -> PsycopgCaller | None:
        """The transaction that was joined."""
        return PsycopgCaller(self, self.mark) if self.joined else None

    def still(self) -> bool:
        """Whether a transaction is open. Which one cannot be asked without waiting, so a later one counts too."""
        return self.in_transaction()


def _savepoint_gone(error: Exception) -> Exception:
    """What an error of the RELEASE means: no such savepoint, or no transaction that could have one, and it has ended."""
    return TransactionEnded() if getattr(error, "sqlstate", None) in ("3B001", "25P01") else error


def _leave(context: Any, block: Any) -> None:
    """Leave a block with a rollback; a commit that has failed has left it already."""
    import psycopg

    if block.status.value == "active":
        context.__exit__(psycopg.Rollback, psycopg.Rollback(block), None)


async def _leave_async(context: Any, block: Any) -> None:
    import psycopg

    if block.status.value == "active":
        await context.__aexit__(psycopg.Rollback, psycopg.Rollback(block), None)


class PsycopgCaller:
    """Asks for the identity of the open transaction."""

    def __init__(self, session: PsycopgSession | AsyncPsycopgSession, mark: str) -> None:
        self._session, self.mark = session, mark

    def __call__(self) -> bool:
        """Whether the joined transaction is still open; True where that cannot be told."""
        try:
            return self._session.still()
        except Exception:
            return True

    def on_commit(self, _callback: Callable[[], None], /) -> bool:
        """Psycopg has no such event."""
        return False


def spare_connection(declared: Target, *, waits: bool) -> Callable[[], Any | Awaitable[Any]] | None:
    """Opens a connection to the declared database, if it was declared by URL."""
    if not declared.url:
        return None

    def connect() -> Any:
        import psycopg

        kind = psycopg.AsyncConnection if waits else psycopg.Connection
        return kind.connect(declared.url, connect_timeout=int(sessions.CONNECT_S))

    return connect
