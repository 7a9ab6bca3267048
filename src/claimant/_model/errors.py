"""Errors, sorted by what the caller should do: fix the code, try later, or stop.

Contention is not among them: it is a value (`Outcome`). Every error carries the name of the job or lease it
is about, and survives pickling, because task queues send errors between processes. Those that send JSON keep the
class and `args`, so each error can be made again from its `args` alone.
"""

from __future__ import annotations

from typing import Any


class ClaimantError(Exception):
    """The root of every error that this library raises. `name` is the job or lease it is about, or ""."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))

    def __str__(self) -> str:
        return self.message


def _rebuild(kind: type[ClaimantError], args: tuple[Any, ...], state: dict[str, Any]) -> ClaimantError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class Refused(ClaimantError):
    """Fix the code: what was declared or passed cannot be made safe. `code` is a stable `CLM…` rule code."""

    def __init__(self, code: str, message: str, *, name: str = "") -> None:
        super().__init__(f"{code}: {message}", name=name)
        self.args = (code, message)
        self.code = code


class NotDone(ClaimantError):
    """Try later: the work did not happen, or is not known to have happened.

    `retry_in` is a short back-off in seconds (never the holder's whole remaining lifetime); `reason` is the
    outcome's kind and reason in words.
    """

    def __init__(self, message: str, *, retry_in: float = 1.0, reason: str = "", name: str = "") -> None:
        super().__init__(message, name=name)
        self.retry_in = retry_in
        self.reason = reason


class LeaseLost(ClaimantError):
    """Stop: `beat()` found that the claim may no longer be trusted and the job's `on_loss` says stop.

    `cause` is one of "lost", "absent", "stalled", "over".
    """

    def __init__(self, message: str, *, cause: str = "", name: str = "") -> None:
        super().__init__(message, name=name)
        self.cause = cause


class LedgerAbsent(NotDone):
    """Try later: the ledger did not answer. `again`: nor did it to this process's request before this one."""

    again: bool = False


class LedgerCorrupt(ClaimantError):
    """Decide: the ledger's file or schema is not what it must be. It is never repaired or moved by itself."""
