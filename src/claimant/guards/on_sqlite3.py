"""The guard on a connection of the standard library's sqlite3, whatever its isolation_level or autocommit says.

Transactions are begun and ended by statement, because commit() and rollback() do nothing on some settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from claimant._model.guarding import Reply, TransactionEnded

_NAME = "claimant_guard"


class Sqlite3Session:
    """One sqlite3.Connection."""

    waits = False
    release_tells = True
    reopens = False
    replays = True

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self.mark = ""
        self.place = ""
        self.joined: bool = conn.in_transaction

    @property
    def tx(self) -> Any:
        """The connection itself."""
        return self._conn

    def open(self) -> None:
        """It is open."""

    def begin(self) -> None:
        """The flow begins by taking the write lock."""

    def execute(self, text: str, params: tuple[Any, ...]) -> Reply:
        """Carry `text` out, whatever row or text factories the connection has."""
        return execute(self._conn, text, params)

    def savepoint(self) -> None:
        """Set ours."""
        self.execute(f"SAVEPOINT {_NAME}", ())

    def release(self) -> None:
        """Release ours; it is gone where the transaction has ended meanwhile."""
        if not self._conn.in_transaction:
            raise TransactionEnded
        try:
            self.execute(f"RELEASE {_NAME}", ())
        except Exception as error:
            if "no such savepoint" in str(error):
                raise TransactionEnded from error
            raise

    def rollback_to(self) -> None:
        """Undo what was done since, and drop it."""
        self.execute(f"ROLLBACK TO {_NAME}", ())
        self.execute(f"RELEASE {_NAME}", ())

    def flush(self) -> None:
        """Nothing is ever pending."""

    def commit(self) -> None:
        """COMMIT."""
        self.execute("COMMIT", ())

    def rollback(self) -> None:
        """ROLLBACK, if SQLite has not done so by itself."""
        if self._conn.in_transaction:
            self.execute("ROLLBACK", ())

    def close(self, *, broken: bool) -> None:
        """It is the caller's."""

    def in_transaction(self) -> bool:
        """SQLite's own word for it."""
        return bool(self._conn.in_transaction)

    def broken(self, _error: BaseException, /) -> bool:
        """A file does not hang up."""
        return False

    def caller(self, key: bytes, run_id: str, /) -> Sqlite3Caller | None:
        """The transaction that was joined."""
        return Sqlite3Caller(self._conn, key, run_id) if self.joined else None


def execute(conn: Any, text: str, params: tuple[Any, ...]) -> Reply:
    """One statement on a cursor of our own."""
    import sqlite3

    factory = conn.text_factory
    if factory is not str:
        conn.text_factory = str
    try:
        cursor = sqlite3.Cursor(conn)
        cursor.row_factory = None
        cursor.execute(text, params)
        rows = cursor.fetchall() if cursor.description is not None else []
        return Reply(rows, cursor.rowcount)
    finally:
        if factory is not str:
            conn.text_factory = factory


class Sqlite3Caller:
    """Asks SQLite. Where a transaction is always open (autocommit=False), it looks for the guard row from outside too."""

    def __init__(self, conn: Any, key: bytes, run_id: str) -> None:
        self._conn, self._key, self._run_id = conn, key, run_id

    def __call__(self) -> bool:
        """Whether the joined transaction is still open; True where that cannot be told."""
        try:
            if not self._conn.in_transaction:
                return False
            if not self._key:
                return True
            if not self._seen(self._conn):
                return False
            return not self._seen_from_outside()
        except Exception:
            return True

    def on_commit(self, _callback: Callable[[], None], /) -> bool:
        """sqlite3 has no such event."""
        return False

    def _seen(self, conn: Any) -> bool:
        rows = execute(
            conn, "SELECT 1 FROM claimant_guard WHERE key = ? AND attempt = ?", (self._key, self._run_id)
        ).rows
        return bool(rows)

    def _seen_from_outside(self) -> bool:
        import sqlite3
        from contextlib import closing
        from pathlib import Path

        [(file,)] = execute(self._conn, "SELECT file FROM pragma_database_list WHERE name = 'main'", ()).rows
        with closing(sqlite3.connect(f"{Path(file).as_uri()}?mode=ro", uri=True, timeout=0)) as other:
            return self._seen(other)
