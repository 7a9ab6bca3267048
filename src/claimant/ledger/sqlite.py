"""The embedded ledger: one SQLite file for the processes of one host.

Its clock is the host's wall clock. It repairs and moves nothing: a file that is not a ledger is left as it is and
reported. Commits that close a slot reach the disk before they are answered; others survive a crash of the
process, and only a power cut may take the last of them (see `book.is_durable`).

Measured on a virtual disk with a cheap fsync, two cores, medians: a begin 0.19 ms (NORMAL), an end that closes a slot
0.16 to 0.26 ms (FULL), one that closes nothing 0.06 ms, a skip 0.05 ms; with a million runs a begin and an end together
0.45 ms. FULL costs one fsync, which is milliseconds on a spinning disk, so only what must not be forgotten pays it.
Eight threads wrote 4,900 runs a second over one connection behind a lock, and 2,000 with a connection each: SQLite admits
one writer anyway, and a lock of ours wakes the next thread where SQLite's makes it poll.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from claimant._drive import clock
from claimant._drive.fork import on_fork
from claimant._model.durations import in_words
from claimant._model.errors import ClaimantError, LedgerCorrupt, Refused
from claimant._model.records import (
    CloseSlot,
    Finish,
    LedgerNow,
    LedgerReply,
    LedgerRequest,
    SlotState,
)
from claimant.ledger import forks, schema
from claimant.ledger.book import Late, is_durable, is_last, steps
from claimant.ledger.pages import Sql
from claimant.ledger.patience import Patience, absent

if TYPE_CHECKING:
    from claimant._model.rows import JobRow, RunRow, SkipRow, TallyRow
    from claimant.ledger.reading import Query, Survey

T = TypeVar("T")

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_READ_MS = 30_000
"""Reading for people may take this long."""


class SqliteLedger:
    """A `LedgerPort` on a file. `epoch_ms` is the host's wall clock, replaceable for tests."""

    host_local = True

    def __init__(
        self, path: Path, *, namespace: str, deadline_ms: int, epoch_ms: Callable[[], int] = clock.epoch_ms
    ) -> None:
        self.path = path
        self.address = f"sqlite:{path}"
        self.namespace = namespace
        self.deadline_ms = deadline_ms
        self._epoch_ms = epoch_ms
        self._instant = [0]
        self._held: list[sqlite3.Connection] = []
        weakref.finalize(self, _close_all, self._held)
        self.forget()
        on_fork(self)
        forks.close_before_fork(self)

    def __repr__(self) -> str:
        return f"<SqliteLedger {self.address}>"

    # -- the port

    def call(self, request: LedgerRequest) -> LedgerReply:
        """Carry out one request. Raises `LedgerAbsent`, or `LedgerCorrupt` for a file that is not a ledger of ours."""
        if isinstance(request, LedgerNow):
            return self._epoch_ms()
        within_ms = request.within_ms if isinstance(request, Late) else self.deadline_ms
        try:
            return self._asked(
                within_ms, lambda until_ms: self._transact(request, until_ms), last=is_last(request)
            )
        except (LedgerCorrupt, Refused) as error:
            if isinstance(request, Finish | CloseSlot):
                # The body has run: its own result must not be hidden by what became of the record.
                raise absent(self.address, str(error)) from error
            raise

    def now(self) -> int:
        """The host's wall clock, epoch ms."""
        return self._epoch_ms()

    def jobs(self, job: str | None = None) -> list[JobRow]:
        """See `LedgerPort.jobs`."""
        from claimant.ledger import reading  # which no start needs

        return self._read(lambda query: reading.jobs(query, self.namespace, job))

    def tallies(self, job: str | None = None) -> list[TallyRow]:
        """See `LedgerPort.tallies`."""
        from claimant.ledger import reading  # which no start needs

        return self._read(lambda query: reading.tallies(query, self.namespace, job))

    def runs(self, *, since: int = 0, job: str | None = None) -> list[RunRow]:
        """See `LedgerPort.runs`."""
        from claimant.ledger import reading  # which no start needs

        return self._read(lambda query: reading.runs(query, self.namespace, since, job))

    def skips(self, *, since: int = 0, job: str | None = None) -> list[SkipRow]:
        """See `LedgerPort.skips`."""
        from claimant.ledger import reading  # which no start needs

        return self._read(lambda query: reading.skips(query, self.namespace, since, job))

    def survey(self, job: str | None = None, *, namespace: str | None = None) -> Survey:
        """What `status` shows, of one namespace or of all (None), within one deadline. Raises `LedgerAbsent`."""
        from claimant.ledger import reading  # which no start needs

        return self._read(lambda query: reading.survey(query, namespace, job), self.deadline_ms)

    def init(self, within_ms: int) -> None:
        """Make the file and its tables, as the first call would."""
        self._asked(within_ms, self._opened)

    def forget(self) -> None:
        """We are a forked child: leave our parent's connection alone and start without one."""
        for inherited in self._held:
            forks.leave_alone(inherited)
        self._held.clear()
        self._lock = threading.Lock()
        self._parted_by: int | None = None
        self._file: tuple[int, int] | None = None
        self._synchronous = ""
        self._patience = Patience(self.address)

    def close(self) -> None:
        """Close the file. A later call opens it again."""
        with self._lock:
            self._drop()

    # -- fork: SQLite forbids to carry an open file across one

    def before_fork(self) -> None:
        """Close the file, and keep it closed until the fork is over."""
        if self._lock.acquire(timeout=self.deadline_ms / 1000):
            self._parted_by = threading.get_ident()
            self._drop()

    def after_fork(self) -> None:
        """In the parent: the file may be opened again."""
        if self._parted_by == threading.get_ident():
            self._parted_by = None
            self._lock.release()

    # -- asking

    def _asked(self, within_ms: int, work: Callable[[int], T], *, last: bool = False) -> T:
        """Do `work(until_ms)` alone in this process, with every way to fail turned into one of ours."""
        if not last:
            self._patience.admit()
        until_ms = clock.now_ms() + within_ms
        if not self._lock.acquire(timeout=within_ms / 1000):
            self._patience.gave_up()
            raise absent(
                self.address, f"other threads of this process kept it busy for {in_words(within_ms)}"
            )
        try:
            result = work(until_ms)
        except _StillBusy:
            reason = f"another process kept it locked for {in_words(within_ms)}"
            self._patience.spent(reason)
            raise absent(self.address, reason) from None
        except sqlite3.Error as error:
            self._drop()
            self._patience.answered()
            raise self._told(error) from error
        except OSError as error:
            self._patience.answered()
            raise absent(self.address, self._denied(error)) from error
        except ClaimantError:
            self._patience.answered()
            raise
        except BaseException:
            self._drop()
            self._patience.gave_up()
            raise
        else:
            self._patience.answered()
            return result
        finally:
            self._lock.release()

    def _transact(self, request: LedgerRequest, until_ms: int) -> LedgerReply:
        connection = self._opened(until_ms)

        def work() -> LedgerReply:
            self._instant[0] = self._epoch_ms()
            return _run_steps(connection, self.namespace, request)

        if isinstance(request, SlotState):
            return _retried(work, until_ms)
        self._make_synchronous(connection, "FULL" if is_durable(request) else "NORMAL")
        return _in_transaction(connection, work, until_ms)

    def _read(self, read: Callable[[Query], T], within_ms: int = _READ_MS) -> T:
        def work(until_ms: int) -> T:
            connection = self._opened(until_ms)
            self._instant[0] = self._epoch_ms()
            return _retried(lambda: _in_snapshot(connection, read), until_ms)

        return self._asked(within_ms, work)

    # -- the file

    def _opened(self, until_ms: int) -> sqlite3.Connection:
        """The connection to the file that is there now; a file that was replaced under our feet is opened anew."""
        if self._held:
            try:
                now = self.path.stat()
            except FileNotFoundError:
                now = None
            if now is not None and (now.st_dev, now.st_ino) == self._file:
                return self._held[0]
            self._drop()
        _make_file(self.path)
        found = self.path.stat()
        # No time-out of SQLite's: its busy handler starves one of several processes for seconds. Ours is `_retried`.
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            # Nothing here runs Python: SQLite would take a KeyboardInterrupt that arrives in a Python function for an
            # error of the statement, and swallow it.
            instant: Any = partial(getitem, self._instant, 0)
            connection.create_function("claimant_now", 0, instant)
            self._prepare(connection, until_ms)
        except BaseException:
            connection.close()
            raise
        self._held.append(connection)
        self._file, self._synchronous = (found.st_dev, found.st_ino), ""
        return connection

    def _prepare(self, connection: sqlite3.Connection, until_ms: int) -> None:
        known = _retried(lambda: _version(connection), until_ms)
        older = known is not None and schema.is_older(known)
        if known is not None and not older:
            schema.checked_version(known, self.address)
        mode = _retried(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0], until_ms)
        if mode != "wal":
            raise absent(
                self.address,
                f"its file system does not allow the write-ahead log (journal mode {mode!r}); keep the ledger on a local disk",
            )
        if known is None or older:

            def make() -> None:
                # Another process may have been here since.
                found = _version(connection) or ()
                steps_up = (
                    schema.migration("sqlite", schema.version_of(found)) if schema.is_older(found) else ()
                )
                for text in steps_up or schema.statements("sqlite"):
                    connection.execute(text)
                schema.checked_version(_version(connection) or (), self.address)

            self._make_synchronous(connection, "FULL")
            _in_transaction(connection, make, until_ms)

    def _make_synchronous(self, connection: sqlite3.Connection, level: str) -> None:
        if self._synchronous != level:
            connection.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level

    def _drop(self) -> None:
        self._file, self._synchronous = None, ""
        _close_all(self._held)

    # -- what went wrong

    def _told(self, error: sqlite3.Error) -> ClaimantError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _CORRUPT:
            return LedgerCorrupt(
                f"the ledger {self.path} is damaged or is not a ledger ({error}). It holds what was completed, so it was not "
                "touched: restore it from a backup, or move it away yourself to begin anew (slots that were done will then run again)"
            )
        if code == sqlite3.SQLITE_ERROR and "no such" in str(error):
            return LedgerCorrupt(
                f"the ledger {self.path} lacks a table or column of its schema ({error}); it was not touched. Restore it from "
                "a backup, or name another file"
            )
        if code in (
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_AUTH,
        ):
            return absent(self.address, self._denied(error))
        if code == sqlite3.SQLITE_FULL:
            return absent(self.address, f"its disk is full ({error})")
        return absent(self.address, str(error))

    def _denied(self, error: Exception) -> str:
        return (
            f"it cannot be opened for writing ({error}). Give this user write access to {self.path.parent} and the ledger's "
            "files in it, or name another file: sqlite:PATH"
        )


def _close_all(held: list[sqlite3.Connection]) -> None:
    while held:
        with contextlib.suppress(sqlite3.Error):
            held.pop().close()


class _StillBusy(Exception):
    """Another process held the lock until the deadline."""


def _retried(work: Callable[[], T], until_ms: int) -> T:
    """Do `work` again while SQLite says busy: after 50 to 500 µs at first, so that no process is starved, later less often."""
    longest_s = 0.0005
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BUSY:
                raise
            if clock.now_ms() >= until_ms:
                raise _StillBusy from error
        time.sleep(random.uniform(longest_s / 10, longest_s))  # noqa: S311 - spreads retries, hides nothing
        longest_s = min(longest_s * 1.1, 0.01)


def _in_transaction(connection: sqlite3.Connection, work: Callable[[], T], until_ms: int) -> T:
    """`BEGIN IMMEDIATE`, so that what `work` reads is still true when it writes; all of it, or nothing."""
    _retried(lambda: connection.execute("BEGIN IMMEDIATE"), until_ms)
    try:
        result = work()
        _retried(lambda: connection.execute("COMMIT"), until_ms)
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _in_snapshot(connection: sqlite3.Connection, read: Callable[[Query], T]) -> T:
    """A deferred transaction: all of its statements see what the first one saw, and no writer waits for it."""
    connection.execute("BEGIN")
    try:
        return read(lambda sql: _execute(connection, sql))
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _run_steps(connection: sqlite3.Connection, namespace: str, request: LedgerRequest) -> LedgerReply:
    flow = steps(namespace, request, clock.now_ms())
    rows: Sequence[Sequence[Any]] | None = None
    while True:
        try:
            sql = next(flow) if rows is None else flow.send(rows)
        except StopIteration as stop:
            for write in stop.value.writes:
                _execute(connection, write)
            reply: LedgerReply = stop.value.reply
            return reply
        rows = _execute(connection, sql)


def _execute(connection: sqlite3.Connection, sql: Sql) -> list[Any]:
    return connection.execute(sql.text.replace("{lock}", ""), sql.params).fetchall()


def _version(connection: sqlite3.Connection) -> tuple[Any, ...] | None:
    """The row with the schema's version, as it is: None where there is no such table, () where the table is empty."""
    made = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'claimant_ledger'"
    ).fetchone()
    if made is None:
        return None
    # Not by name: the first version had one column.
    row: tuple[Any, ...] | None = connection.execute(
        "SELECT * FROM claimant_ledger ORDER BY version DESC LIMIT 1"
    ).fetchone()
    return row or ()


def _make_file(path: Path) -> None:
    """An empty file that only its owner may read, in folders that only their owner may enter, where they are missing."""
    missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    # Only a file that was not there is opened and closed: closing any handle of a file ends this process's locks on it.
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
