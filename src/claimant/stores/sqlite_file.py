"""One embedded lease file: made by whoever comes first, opened with care, moved aside when it is corrupt.

`synchronous=OFF` is right here and would be wrong in a ledger: a killed process loses nothing (the kernel has the
pages), and a power cut ends every holder too; what it leaves corrupt is moved aside, because a lease is not a record.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from claimant._drive.clock import now_ms

T = TypeVar("T")

OURS = 0x636C_6D31
"""SQLite's application_id of a lease file ("clm1"): a file without it is somebody else's, and left alone."""
VERSION = 1
SCHEMA = (
    """CREATE TABLE IF NOT EXISTS leases (
        key TEXT PRIMARY KEY, value TEXT NOT NULL, lifetime_ms INTEGER NOT NULL,
        domain TEXT NOT NULL, until_ms INTEGER NOT NULL, renewals INTEGER NOT NULL) WITHOUT ROWID""",
    # What was seen of leases of another time domain: until when they are believed, on our clock.
    """CREATE TABLE IF NOT EXISTS sightings (
        key TEXT NOT NULL, domain TEXT NOT NULL, value TEXT NOT NULL, renewals INTEGER NOT NULL,
        until_ms INTEGER NOT NULL, PRIMARY KEY (key, domain)) WITHOUT ROWID""",
    f"PRAGMA application_id={OURS}",
    f"PRAGMA user_version={VERSION}",
)
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_inherited: list[sqlite3.Connection] = []
"""Connections of a parent process. Closing one in the child would spoil the parent's locks, so they are kept."""


class FileAbsent(Exception):
    """The file cannot be used now. The message says why, and what to do."""


class LeaseFile:
    """A connection to one lease file, opened when first needed. Used by one thread at a time, by its owner's care."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def begin(self, until_ms: int) -> sqlite3.Connection:
        """A write transaction on the file that is at the path now. Raises `FileAbsent` or `sqlite3.Error`."""
        while True:
            connection = self.connection(until_ms)
            patiently(partial(connection.execute, "BEGIN IMMEDIATE"), until_ms, self.path)
            if self._identity == _identity(self.path):
                return connection
            # It was moved aside or removed under us: what we would write, nobody would read.
            connection.execute("ROLLBACK")
            self.close()
            if now_ms() >= until_ms:
                raise FileAbsent(f"{self.path} keeps being replaced")

    def connection(self, until_ms: int) -> sqlite3.Connection:
        """The open connection; opens it, and makes the file, if need be."""
        if self._connection is None:
            self._open(until_ms)
        assert self._connection is not None
        return self._connection

    def _open(self, until_ms: int) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made by us rather than by SQLite, so that it is never readable by others, not even for a moment.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600))
        except OSError as error:
            raise FileAbsent(
                f"the lease file {self.path} cannot be written ({error.strerror}); give this user a folder of its own, "
                "for instance sqlite:/var/lib/app/leases.db"
            ) from None
        self._identity = _identity(self.path)
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            patiently(lambda: _prepare(connection, self.path), until_ms, self.path)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def move_aside(self, until_ms: int) -> None:
        """The file is corrupt: rename it, once, however many processes find out at the same time."""
        found, self._identity = self._identity, None
        self._close()
        folder = _Folder(self.path.parent, until_ms)
        try:
            if found is None or _identity(self.path) != found:
                return  # another process was faster, and what is there now is new
            if not _may_move(self.path):
                raise FileAbsent(
                    f"{self.path} is corrupt and not marked as a lease file, so it is left alone; name another file"
                )
            aside = f"{self.path}.corrupt-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
            # The journal goes first: a new file beside an old journal would be filled from it.
            for suffix in ("-wal", "-shm", ""):
                with suppress(FileNotFoundError):
                    Path(f"{self.path}{suffix}").replace(f"{aside}{suffix}")
        except OSError as error:
            raise FileAbsent(
                f"{self.path} is corrupt and cannot be moved aside ({error.strerror}); remove it"
            ) from None
        finally:
            folder.close()
        import logging  # which hardly any process needs here, and which costs more than the rest

        logging.getLogger("claimant").error(
            "claimant: the lease file %s was corrupt; it was moved to %s and made anew. Leases that it held are forgotten: "
            "work may overlap once, guards are not affected",
            self.path,
            aside,
        )

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        self._close()
        self._identity = None

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        self._close()

    def forget(self) -> None:
        """We are a forked child: never touch the parent's connection."""
        if self._connection is not None:
            _inherited.append(self._connection)
        self._connection = None
        self._identity = None


def patiently(act: Callable[[], T], until_ms: int, path: Path) -> T:
    """`act()`, again while another process writes. SQLite's own waiting starves one of several for seconds (PERF)."""
    while True:
        try:
            return act()
        except sqlite3.Error as error:
            if code_of(error) not in _BUSY:
                raise
        if now_ms() >= until_ms:
            raise FileAbsent(
                f"another process is writing to {path} and did not finish in time; it may be frozen"
            )
        breathe()


def breathe() -> None:
    """Let another process finish: 50 to 500 µs, never in step with anybody."""
    time.sleep(random.uniform(50e-6, 500e-6))  # noqa: S311 - nobody gains from guessing it


def code_of(error: sqlite3.Error) -> int:
    """SQLite's primary result code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether the file's content is broken."""
    return code_of(error) in _CORRUPT


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the file ours if it is empty, and refuse it if it is somebody else's."""
    connection.execute("PRAGMA synchronous=OFF")
    if not _is_ours(connection, path, "BEGIN"):
        connection.execute("PRAGMA journal_mode=WAL")
        _is_ours(connection, path, "BEGIN IMMEDIATE", SCHEMA)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise FileAbsent(
            f"{path} was made by another version of claimant (format {version}); give this one its own file"
        )


def _is_ours(connection: sqlite3.Connection, path: Path, begin: str, schema: Sequence[str] = ()) -> bool:
    """Whether the file is marked as ours; if it is empty, run `schema`. One look, so that no maker comes between."""
    connection.execute(begin)
    try:
        marked = bool(connection.execute("PRAGMA application_id").fetchone()[0] == OURS)
        if not marked and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise FileAbsent(f"{path} is somebody else's database; give the leases a file of their own")
        for statement in () if marked else schema:
            connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return marked


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _may_move(path: Path) -> bool:
    """Whether the broken file is ours, as far as can be told: its header names us, or is blank, as after a crash of the host.

    Anything else may be what somebody wrote, and a store that was named by mistake must not take it away.
    """
    with path.open("rb") as file:
        header = file.read(100)
    if header.startswith(b"SQLite format 3\0"):
        return header[68:72] == OURS.to_bytes(4, "big")
    return not header.strip(b"\0")


class _Folder:
    """A lock on a folder, so that two processes do not move one file at once."""

    def __init__(self, folder: Path, until_ms: int) -> None:
        self._descriptor = -1
        if os.name != "posix":
            return  # an open file cannot be moved by another process anyway
        locking: Any = import_module("fcntl")
        self._descriptor = os.open(folder, os.O_RDONLY)
        while True:
            try:
                locking.flock(self._descriptor, locking.LOCK_EX | locking.LOCK_NB)
                return
            except OSError:
                if now_ms() >= until_ms:
                    self.close()
                    raise FileAbsent(f"another process is moving a corrupt file in {folder}") from None
            breathe()

    def close(self) -> None:
        """Unlock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
