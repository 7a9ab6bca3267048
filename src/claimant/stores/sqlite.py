"""The embedded store: leases in a file of this host, for its processes. Faster than any server, and one host only.

Deadlines count on the boot-time clock. A row of another time domain (a reboot, a container with a clock of its own)
is neither live nor dead: its countdown starts again on our clock when we first see it, and every renewal that we
see starts it anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from claimant._drive import clock
from claimant._drive.fork import on_fork
from claimant._drive.ports import LeaseRow
from claimant._model.capability import Capabilities
from claimant._model.errors import NotDone, Refused
from claimant._model.ops import Renew, StoreAbsent, StoreReply, StoreRequest, StoreUnknown
from claimant.stores.sqlite_file import FileAbsent, LeaseFile, is_corrupt, patiently
from claimant.stores.sqlite_place import checked_place, domain
from claimant.stores.sqlite_rows import Rows
from claimant.stores.sqlite_turns import Turns

if TYPE_CHECKING:
    from claimant.stores.offloaded import Offloaded

CAPABILITIES = Capabilities(
    name="sqlite",
    shared=True,
    host_local=True,
    survives_restart=None,
    deadline_clock="the host's boot-time clock",
    resolution_ms=1,
    early_removal=False,
)


class SqliteStore:
    """The store in one file. `now_ms` and `domain` replace the clock and the time domain in tests."""

    capabilities = CAPABILITIES

    def __init__(
        self,
        place: str,
        deadline_ms: int = 250,
        *,
        now_ms: Callable[[], int] = clock.now_ms,
        domain: Callable[[], str] = domain,
    ) -> None:
        if not place or place.startswith(("//", ":memory:")):
            raise Refused(
                "CLM062",
                "write sqlite:leases.db or sqlite:/var/lib/app/leases.db; without a file, memory:NAME",
            )
        try:
            self._path = checked_place(Path(place).expanduser().absolute())
        except (
            OSError,
            RuntimeError,
        ) as error:  # a folder that may not be looked at, a name that is too long, ~nobody
            raise Refused(
                "CLM062",
                f"{place!r} cannot be a lease file here ({error}); name one in a folder of this user's own",
            ) from None
        self._now_ms = now_ms
        self._domain = domain
        self.deadline_ms = deadline_ms
        self.address = f"sqlite:{self._path}"

    def blocking(self) -> SqlitePort:
        """A port for threads."""
        return SqlitePort(self._path, self._now_ms, self._domain)

    def aio(self) -> Offloaded:
        """A port for asyncio. SQLite can only block, and one frozen writer blocks all: it gets a thread of its own."""
        from claimant.stores.offloaded import Offloaded

        return Offloaded(self.blocking(), "claimant-sqlite")


class SqlitePort:
    """The port for threads, which take turns."""

    capabilities = CAPABILITIES

    def __init__(self, path: Path, now_ms: Callable[[], int], domain: Callable[[], str]) -> None:
        self._turns = Turns(LeaseFile(path))
        self._rows = Rows(now_ms, domain)
        on_fork(self)

    def call(self, request: StoreRequest) -> StoreReply:
        """Carry out one request by its `until_ms`, in one transaction. What the file does is a reply."""
        until_ms: int = request.until_ms  # type: ignore[attr-defined]
        turns = self._turns
        if not turns.take(until_ms):
            return _absent(request, "other threads of this process used the lease file until the deadline")
        try:
            try:
                return self._in_transaction(request, until_ms)
            except sqlite3.Error as error:
                if not is_corrupt(error):
                    raise
                turns.file.move_aside(until_ms)
                return self._in_transaction(request, until_ms)
        except FileAbsent as error:
            return _absent(request, str(error))
        except sqlite3.Error as error:
            turns.file.close()
            return _absent(
                request, f"the lease file {turns.file.path} failed ({error}); see to its disk and permissions"
            )
        except OSError as error:
            return _absent(request, f"the lease file {turns.file.path} cannot be used ({error.strerror})")
        finally:
            turns.lock.release()

    def _in_transaction(self, request: StoreRequest, until_ms: int) -> StoreReply:
        connection = self._turns.file.begin(until_ms)
        try:
            reply = self._rows.answer(connection, request)
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        try:
            patiently(lambda: connection.execute("COMMIT"), until_ms, self._turns.file.path)
        except (sqlite3.Error, FileAbsent) as error:
            self._turns.file.close()
            reason = f"the lease file did not take the write for certain ({error})"
            return (
                tuple(StoreUnknown(reason) for _ in request.items)
                if isinstance(request, Renew)
                else StoreUnknown(reason)
            )
        return reply

    def scan(self, prefix: str, until_ms: int) -> Iterator[LeaseRow]:
        """The live leases whose key starts with `prefix`. Raises `NotDone` where the file cannot be read."""
        if not self._turns.take(until_ms):
            raise NotDone(
                "other threads of this process used the lease file until the deadline", retry_in=1.0
            )
        try:
            connection = self._turns.file.connection(until_ms)
            rows = patiently(lambda: self._rows.listed(connection, prefix), until_ms, self._turns.file.path)
        except (FileAbsent, sqlite3.Error) as error:
            raise NotDone(f"the lease store is absent: {error}", retry_in=1.0) from None
        finally:
            self._turns.lock.release()
        return iter(rows)

    def forget(self) -> None:
        """We are a forked child, perhaps in another time domain."""
        self._turns.forget()
        self._rows.forget()

    def close(self) -> None:
        """Close the file."""
        with self._turns.lock:
            self._turns.file.close()


def _absent(request: StoreRequest, reason: str) -> StoreReply:
    absent = StoreAbsent(reason)
    return tuple(absent for _ in request.items) if isinstance(request, Renew) else absent
