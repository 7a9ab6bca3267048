"""Slots: the occasions of a periodic job, as UTC instants on the ledger's clock.

Two hosts whose clocks differ compute the same slot, because neither uses its own clock.
"""

from __future__ import annotations

from datetime import UTC, datetime


def early_ms(every_ms: int) -> int:
    """How long before its instant a slot may start: a tenth of the period, at most 30 s."""
    return min(every_ms // 10, 30_000)


def latest(every_ms: int, now_epoch_ms: int) -> int:
    """The latest slot not after `now` + early, in epoch milliseconds: multiples of the period since 1970 UTC."""
    return (now_epoch_ms + early_ms(every_ms)) // every_ms * every_ms


def text(slot_epoch_ms: int) -> str:
    """The slot's identity: its UTC instant, e.g. "2026-11-30T21:00:00Z", with milliseconds only if it has any."""
    moment = datetime.fromtimestamp(slot_epoch_ms / 1000, UTC)
    precision = "milliseconds" if slot_epoch_ms % 1_000 else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")
