"""Whether a caller's SQLAlchemy transaction is still open, and word of its commit where SQLAlchemy gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CoreCaller:
    """The transaction of a Connection, known by its object."""

    def __init__(self, conn: Any) -> None:
        self._conn, self._transaction = conn, conn.get_transaction()

    def __call__(self) -> bool:
        """Whether that transaction is still the connection's."""
        return self._transaction is not None and self._conn.get_transaction() is self._transaction

    def on_commit(self, _callback: Callable[[], None], /) -> bool:
        """A Connection tells before its commit and not after it, which is no use."""
        return False


class SessionCaller:
    """The outermost transaction of an ORM session, known by its object."""

    def __init__(self, session: Any) -> None:
        self._session, self._transaction = session, session.get_transaction()

    def __call__(self) -> bool:
        """Whether that transaction is still the session's."""
        return self._transaction is not None and self._session.get_transaction() is self._transaction

    def on_commit(self, callback: Callable[[], None], /) -> bool:
        """Call `callback` after the outermost commit, once; never where that transaction is rolled back."""
        waiting = self._session.info.get(_WAITING)
        if waiting is None:
            # One pair of listeners for the session's life: SQLAlchemy iterates over them, so none may be taken away
            # while it tells them.
            waiting = self._session.info[_WAITING] = []
            _listen(self._session, waiting)
        waiting.append((self._transaction, callback))
        return True


_WAITING = "claimant: called after the commit"


def _listen(session: Any, waiting: list[tuple[Any, Callable[[], None]]]) -> None:
    from sqlalchemy import event

    def committed(_: Any) -> None:
        # Savepoints commit too, while the outermost transaction goes on.
        for entry in [entry for entry in waiting if not entry[0].is_active]:
            waiting.remove(entry)
            entry[1]()

    def ended(_: Any, which: Any) -> None:
        waiting[:] = [entry for entry in waiting if entry[0] is not which]

    event.listen(session, "after_commit", committed)
    event.listen(session, "after_transaction_end", ended)
