"""What a ledger that is absent should have recorded, kept in memory until it answers again.

Only what needs no reply is kept: ends, skips, closed slots. The caller is still told that the ledger is absent,
because what it does then is its own policy. What a process keeps ends with the process: at its orderly end it is
tried once more, for a few deadlines at most where nothing answers, and what is lost all the same is counted in one line of
the log.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from claimant._drive import clock
from claimant._drive.fork import on_fork
from claimant._drive.ports import LedgerPort
from claimant._model.errors import ClaimantError, LedgerAbsent
from claimant._model.records import (
    Begin,
    CloseSlot,
    Finish,
    LedgerReply,
    LedgerRequest,
    Skip,
    SlotState,
)
from claimant.ledger.book import Late
from claimant.ledger.patience import Unsettled

if TYPE_CHECKING:
    from claimant._model.rows import JobRow, RunRow, SkipRow, TallyRow

ROOM = 10_000
"""Requests that are kept at most; then the oldest skip goes first, because an end may close a slot."""
LAST_MS = 20_000
"""How long a process that ends writes what it kept, while the ledger answers."""
PORTION = 50
"""Requests that one caller writes on behalf of others, at most."""


_open: WeakSet[Spooled] = WeakSet()


class _Kept(NamedTuple):
    at_ms: int
    request: LedgerRequest


class Spooled:
    """A ledger that keeps what it could not write. `kept` and `dropped` say how many there are and were lost.

    `absent_since`: when the outage began that is not over yet, in ms on the holder's clock, or None. Of the errors that it
    raises only the first of an outage has `again` False.
    """

    absent_since: int | None
    """When the outage began that is still going on, on the holder's clock in ms; None while the ledger answers."""

    def __init__(self, ledger: LedgerPort, *, room: int = ROOM) -> None:
        self.host_local = ledger.host_local
        self.address = ledger.address
        self._ledger = ledger
        self.deadline_ms = ledger.deadline_ms
        self._room = room
        self.forget_kept()
        on_fork(self)
        _open.add(self)

    @property
    def kept(self) -> int:
        """Requests in memory, to be written once the ledger answers."""
        return len(self._ends) + len(self._skips)

    @property
    def dropped(self) -> int:
        """Requests that found no room, or that the ledger would not take."""
        return self._dropped

    def call(self, request: LedgerRequest) -> LedgerReply:
        """Carry out one request; keep it, if it can be kept, where the ledger is absent, and raise all the same."""
        if self.kept and isinstance(request, Begin | SlotState):
            self._write_kept()  # what is kept may close the very slot that is asked about
        try:
            reply = self._ledger.call(request)
        except LedgerAbsent as error:
            with self._lock:
                error.again = self.absent_since is not None
                if self.absent_since is None:
                    self.absent_since = clock.now_ms()
            # A skip that may have been counted is not counted again; an end is the same, written twice.
            if isinstance(request, Finish | CloseSlot) or (
                isinstance(request, Skip) and not isinstance(error, Unsettled)
            ):
                self._keep(_Kept(clock.now_ms(), request))
            raise
        self.absent_since = None
        if self.kept:
            self._write_kept()
        return reply

    def jobs(self, job: str | None = None) -> list[JobRow]:
        """See `LedgerPort.jobs`."""
        return self._ledger.jobs(job)

    def tallies(self, job: str | None = None) -> list[TallyRow]:
        """See `LedgerPort.tallies`."""
        return self._ledger.tallies(job)

    def now(self) -> int:
        """See `LedgerPort.now`."""
        return self._ledger.now()

    def runs(self, *, since: int = 0, job: str | None = None) -> list[RunRow]:
        """See `LedgerPort.runs`."""
        return self._ledger.runs(since=since, job=job)

    def skips(self, *, since: int = 0, job: str | None = None) -> list[SkipRow]:
        """See `LedgerPort.skips`."""
        return self._ledger.skips(since=since, job=job)

    def forget(self) -> None:
        """Drop everything: we are a forked child, and what is kept is our parent's to write."""
        self.forget_kept()
        self._ledger.forget()

    def forget_kept(self) -> None:
        """Start with nothing kept."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._ends: deque[_Kept] = deque()
        self._skips: deque[_Kept] = deque()
        self._dropped = 0
        self.absent_since = None

    def close(self) -> None:
        """Try once more to write what is kept, then close the ledger's connections."""
        self._write_last()
        self._ledger.close()

    def end(self) -> None:
        """The interpreter ends: try once more, and log how much is lost, if anything is."""
        if self.kept:
            self.close()
        lost = self.kept + self._dropped
        if lost:
            import logging  # by who has lost something, which most processes have not

            logging.getLogger("claimant").error(
                "the ledger %s was away until the end of this process: %s lost [ledger.lost]",
                self.address,
                "1 record of a run or skip is" if lost == 1 else f"{lost} records of runs and skips are",
            )
        self.forget_kept()

    def _write_last(self) -> None:
        if self.kept:
            self._write_kept(self._room, last=True)

    def _keep(self, kept: _Kept) -> None:
        with self._lock:
            (self._skips if isinstance(kept.request, Skip) else self._ends).append(kept)
            if self.kept > self._room:
                (self._skips or self._ends).popleft()
                self._dropped += 1

    def _write_kept(self, portion: int = PORTION, *, last: bool = False) -> None:
        """Write a portion, within one deadline in all. Never raises; who comes while another writes waits only if it is the `last`.

        The `last` gives each record a deadline, for `LAST_MS` in all: the first may have waited long for room in the server.
        """
        until_ms = clock.now_ms() + self.deadline_ms
        last_ms = clock.now_ms() + LAST_MS
        if not self._writing.acquire(timeout=self.deadline_ms / 1000 if last else 0):
            return
        try:
            for _ in range(portion):
                left_ms = until_ms - clock.now_ms()
                with self._lock:
                    queue = self._ends or self._skips
                    if not queue or left_ms <= 0:
                        return
                    kept = queue.popleft()
                try:
                    self._ledger.call(Late(kept.request, kept.at_ms, left_ms, last))
                    if last:
                        until_ms = min(clock.now_ms() + self.deadline_ms, max(until_ms, last_ms))
                except LedgerAbsent as error:
                    if not (queue is self._skips and isinstance(error, Unsettled)):
                        with self._lock:
                            queue.appendleft(kept)
                    return
                except ClaimantError:
                    # The ledger answers and will not take this one: it must not stop the rest for ever.
                    self._dropped += 1
                except RuntimeError:
                    # No thread can be started: the interpreter ends.
                    with self._lock:
                        queue.appendleft(kept)
                    return
        finally:
            self._writing.release()


@atexit.register
def _end() -> None:
    """What is still kept at the interpreter's end is written, or told as lost."""
    for spooled in list(_open):
        spooled.end()
