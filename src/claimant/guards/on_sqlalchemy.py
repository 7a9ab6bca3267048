"""The guard on SQLAlchemy: an engine, a connection, an ORM session or what makes sessions, over SQLite or PostgreSQL.

SQLAlchemy's own transaction and savepoint objects are used, so that it knows what was rolled back. AUTOCOMMIT is refused:
there is no transaction to be had on it, and a guard row would be committed without its effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from claimant._model.dialect import Dialect
from claimant._model.errors import Refused
from claimant._model.guarding import Reply, TransactionEnded
from claimant._sql.handles import Make
from claimant._sql.live import refuse_other
from claimant._sql.paramstyle import rendered
from claimant._sql.target import Target, of_engine
from claimant.guards.callers import CoreCaller, SessionCaller
from claimant.guards.opening import within


class SqlAlchemySession:
    """A plain SQLAlchemy handle. The async ones are carried out by this too, inside `run_sync`."""

    waits = False
    release_tells = False
    reopens = True
    replays = True

    def __init__(self, handle: Any, make: Make, declared: Target) -> None:
        self._engine = handle if make is Make.ENGINE else None
        self._maker = handle if make is Make.MAKER else None
        self._session: Any = handle if make is Make.SESSION else None
        self.conn: Any = handle if make is Make.CONNECTION else None
        self._declared = declared
        self._root: Any = None
        self._nested: Any = None
        self.mark = ""
        self.place = declared.address
        self.joined: bool = make in (Make.SESSION, Make.CONNECTION) and handle.in_transaction()
        if self._engine is not None:
            refuse_autocommit(self._engine)

    @property
    def tx(self) -> Any:
        """The session where there is one, else the connection."""
        return self.conn if self._session is None else self._session

    def open(self) -> None:
        """A connection from the engine, or the one below the session."""
        if self._engine is not None:
            self.conn = _connect(self._engine)
        elif self._maker is not None:
            self._session = self._maker()
        try:
            if self._session is not None:
                self._open_session()
            self._look()
        except BaseException:
            if not self.joined:
                self.rollback()
            self.close(broken=False)
            raise

    def _look(self) -> None:
        """Look at what was had: the right database, with real transactions."""
        refuse_autocommit(self.conn)
        given = of_engine(self.conn.engine)
        refuse_other(self._declared, given)
        self.place = given.address
        if getattr(self.conn.connection.driver_connection, "autocommit", False) is True:
            raise no_transactions("its driver connection has autocommit on, below SQLAlchemy")

    def _open_session(self) -> None:
        if not self._session.in_transaction():
            self._session.begin()
        self.conn = self._session.connection()

    def begin(self) -> None:
        """Begin, if the session has not."""
        if self._session is None:
            self._root = self.conn.begin()

    def _live(self) -> Any:
        """The connection in use: a session has another one after its commit."""
        return self.conn if self._session is None else self._session.connection()

    def execute(self, text: str, params: tuple[Any, ...]) -> Reply:
        """Carry `text` out as the driver would be given it."""
        conn = self._live()
        result = conn.exec_driver_sql(rendered(text, conn.dialect.paramstyle), params or None)
        count = result.rowcount
        rows = [tuple(row) for row in result] if result.returns_rows else []
        result.close()
        return Reply(rows, count)

    def savepoint(self) -> None:
        """One that SQLAlchemy knows of."""
        self._nested = (self.conn if self._session is None else self._session).begin_nested()

    def release(self) -> None:
        """Release it, sending out what is pending; it is gone where the transaction has ended meanwhile."""
        if not self._nested.is_active:
            raise TransactionEnded
        try:
            self._nested.commit()
        except Exception as error:
            raw = getattr(error, "orig", error)
            if getattr(raw, "sqlstate", "") == "3B001" or "no such savepoint" in str(raw):
                raise TransactionEnded from error
            raise
        self._nested = None

    def rollback_to(self) -> None:
        """Undo what was done since."""
        nested, self._nested = self._nested, None
        if nested is not None:
            nested.rollback()

    def flush(self) -> None:
        """Have violations show inside the guard, not at the commit."""
        if self._session is not None:
            self._session.flush()

    def commit(self) -> None:
        """COMMIT."""
        if self._session is None:
            self._root.commit()
        else:
            self._session.commit()

    def rollback(self) -> None:
        """ROLLBACK of whatever is open."""
        if self._session is not None:
            self._session.rollback()
        elif self.conn is not None:
            self.conn.rollback()

    def close(self, *, broken: bool) -> None:
        """Give back what was taken; the caller's own stays."""
        try:
            if self._maker is not None and self._session is not None:
                (self._session.invalidate if broken else self._session.close)()
            elif self._engine is not None and self.conn is not None:
                if broken and not self.conn.closed:
                    self.conn.invalidate()
                self.conn.close()
        except Exception:
            return

    def in_transaction(self) -> bool:
        """The driver's word for it: SQLAlchemy counts transactions that were never begun."""
        return bool(getattr(self._live().connection.driver_connection, "in_transaction", False))

    def broken(self, error: BaseException, /) -> bool:
        """Whether SQLAlchemy has given the connection up."""
        invalidated = self.conn is not None and not self.conn.closed and self.conn.invalidated
        return bool(getattr(error, "connection_invalidated", False) or invalidated)

    def caller(self, _key: bytes, _run_id: str, /) -> CoreCaller | SessionCaller | None:
        """The transaction that was joined."""
        if not self.joined:
            return None
        return CoreCaller(self.conn) if self._session is None else SessionCaller(self._session)


class AsyncSqlAlchemySession:
    """An async handle: the plain session's steps, each inside SQLAlchemy's own `run_sync`."""

    waits = True
    release_tells = False
    reopens = True
    replays = True

    def __init__(self, handle: Any, make: Make, declared: Target) -> None:
        self._engine = handle if make is Make.ENGINE else None
        self._maker = handle if make is Make.MAKER else None
        self._handle: Any = None if self._engine is not None or self._maker is not None else handle
        self._make = make
        self._declared = declared
        if self._engine is not None:
            refuse_autocommit(self._engine.sync_engine)
        self._plain: SqlAlchemySession | None = None if self._handle is None else self._below(self._handle)
        self.joined = self._plain is not None and self._plain.joined
        self.mark = ""

    def _below(self, handle: Any) -> SqlAlchemySession:
        """The plain session of an async connection or session."""
        if hasattr(handle, "sync_session"):
            return SqlAlchemySession(handle.sync_session, Make.SESSION, self._declared)
        return SqlAlchemySession(handle.sync_connection, Make.CONNECTION, self._declared)

    @property
    def tx(self) -> Any:
        """The async session where there is one, else the async connection."""
        return self._handle

    @property
    def place(self) -> str:
        """The database."""
        return self._declared.address if self._plain is None else self._plain.place

    async def _run(self, step: Callable[[SqlAlchemySession], Any]) -> Any:
        plain = self._plain
        assert plain is not None
        return await self._handle.run_sync(lambda _: step(plain))

    async def open(self) -> None:
        """A connection or session from what makes them, and the plain one below it."""
        if self._engine is not None:
            self._handle = self._engine.connect()
            await self._handle.start()
            self._plain = self._below(self._handle)
        elif self._maker is not None:
            self._handle = self._maker()
            self._plain = self._below(self._handle)
        try:
            await self._run(SqlAlchemySession.open)
        except BaseException:
            await self.close(broken=False)
            raise

    async def begin(self) -> None:
        """Begin, if the session has not."""
        await self._run(SqlAlchemySession.begin)

    async def execute(self, text: str, params: tuple[Any, ...]) -> Reply:
        """Carry `text` out as the driver would be given it."""
        reply: Reply = await self._run(lambda plain: plain.execute(text, params))
        return reply

    async def savepoint(self) -> None:
        """One that SQLAlchemy knows of."""
        await self._run(SqlAlchemySession.savepoint)

    async def release(self) -> None:
        """Release it."""
        await self._run(SqlAlchemySession.release)

    async def rollback_to(self) -> None:
        """Undo what was done since."""
        await self._run(SqlAlchemySession.rollback_to)

    async def flush(self) -> None:
        """Have violations show inside the guard."""
        await self._run(SqlAlchemySession.flush)

    async def commit(self) -> None:
        """COMMIT."""
        await self._run(SqlAlchemySession.commit)

    async def rollback(self) -> None:
        """ROLLBACK of whatever is open."""
        await self._run(SqlAlchemySession.rollback)

    async def close(self, *, broken: bool) -> None:
        """Give back what was taken."""
        if self._engine is None and self._maker is None:
            return
        try:
            if broken:
                await self._handle.invalidate()
            await self._handle.close()
        except Exception:
            return

    def in_transaction(self) -> bool:
        """The driver's word for it."""
        return self._plain is not None and self._plain.in_transaction()

    def broken(self, error: BaseException, /) -> bool:
        """Whether SQLAlchemy has given the connection up."""
        return self._plain is not None and self._plain.broken(error)

    def caller(self, _key: bytes, _run_id: str, /) -> CoreCaller | SessionCaller | None:
        """The transaction that was joined."""
        return None if self._plain is None else self._plain.caller(_key, _run_id)


def _connect(engine: Any) -> Any:
    """A connection, within a bounded time where one has to be made over a network."""
    waiting: Any = getattr(engine.pool, "checkedin", None)
    if engine.dialect.name == Dialect.SQLITE or (waiting is not None and waiting() > 0):
        return engine.connect()
    return within(engine.connect, lambda late: late.close())


def refuse_autocommit(holder: Any) -> None:
    """Raise `Refused` (CLM045) where an engine or connection is set to AUTOCOMMIT."""
    level = holder.get_execution_options().get("isolation_level") or getattr(
        holder.dialect, "_on_connect_isolation_level", None
    )
    if level == "AUTOCOMMIT":
        raise no_transactions('isolation_level="AUTOCOMMIT"')


def no_transactions(why: str) -> Refused:
    """The refusal of a handle on which nothing is ever in a transaction."""
    return Refused(
        "CLM045",
        f"this SQLAlchemy handle has no transactions ({why}): each statement commits by itself, so the guard row would stand "
        'without its effect. Use an engine without it, or engine.execution_options(isolation_level="READ COMMITTED")',
    )
