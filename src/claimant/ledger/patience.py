"""How long a caller waits for the ledger: one deadline once, then hardly at all for a while.

A ledger that let a whole deadline pass will most likely let the next one pass too, and a job's start must not pay
for that again and again. One caller a second asks it all the same, so that its return is noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from claimant._drive import clock
from claimant._model.durations import in_words
from claimant._model.errors import LedgerAbsent

PAUSE_MS = 1_000
"""After a spent deadline: how long nobody asks."""


class Unsettled(LedgerAbsent):
    """The ledger fell silent after it was told to commit: the request may have been carried out."""


def absent(address: str, what: str, *, unsettled: bool = False) -> LedgerAbsent:
    """The error for a ledger that gave no answer. `what` says what was seen."""
    kind = Unsettled if unsettled else LedgerAbsent
    return kind(f"the ledger {address} did not answer: {what}", retry_in=PAUSE_MS / 1000, reason=what)


class Patience:
    """Admits callers. Safe for threads; each admitted caller reports `answered`, `spent` or `gave_up`."""

    def __init__(self, address: str, now_ms: Callable[[], int] = clock.now_ms) -> None:
        self._address = address
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._closed_until: int | None = None
        self._asking = False
        self._reason = ""

    def admit(self) -> None:
        """Return if the ledger may be asked now. Raises `LedgerAbsent` at once if it let a deadline pass a moment ago."""
        if self._closed_until is None:
            return
        with self._lock:
            if self._asking or self._now_ms() < (self._closed_until or 0):
                raise absent(
                    self._address, f"{self._reason}; it is asked again about every {in_words(PAUSE_MS)}"
                )
            self._asking = self._closed_until is not None

    def answered(self) -> None:
        """The ledger answered, with whatever."""
        if self._closed_until is not None:
            with self._lock:
                self._closed_until, self._asking = None, False

    def spent(self, reason: str) -> None:
        """A whole deadline passed without an answer."""
        with self._lock:
            self._closed_until, self._asking = self._now_ms() + PAUSE_MS, False
            self._reason = reason

    def gave_up(self) -> None:
        """The caller left without learning anything about the ledger."""
        if self._asking:
            with self._lock:
                self._asking = False
