"""The stake: what one duplicate costs. It has no default, because only the caller knows it."""

from __future__ import annotations

from enum import StrEnum

from claimant._model.errors import Refused


class Stake(StrEnum):
    """What one duplicate of the job costs. It decides whether a lease is enough."""

    REBUILD = "rebuild"
    """A derived result is overwritten with an identical one. A lease is enough."""
    SCAN = "scan"
    """Wasted compute, some contention downstream. A lease is usually enough."""
    APPEND = "append"
    """Rows with a natural identity. The guard exists; its rejection is handled."""
    NOTIFY = "notify"
    """A person gets two messages. The caller states which of two and none is worse."""
    MONEY = "money"
    """Money moves, or a provider is called that moves it. Never on the lease alone."""

    @property
    def needs_guard(self) -> bool:
        """Whether a job of this stake is refused without a guard."""
        return self in (Stake.APPEND, Stake.MONEY)

    @property
    def cheap(self) -> bool:
        """Whether a duplicate only wastes work, so that a lease alone is enough."""
        return self in (Stake.REBUILD, Stake.SCAN)


ROWS = (
    "rebuild: a derived result is overwritten with an identical one; a lease is enough",
    "scan:    wasted compute and some contention downstream; a lease is usually enough",
    "append:  rows with a natural identity; add guard=once(db, constraint=…) or guard=once(db)",
    'notify:  a person gets two messages; add delivery="at-least-once" or "at-most-once"',
    "money:   money moves; add guard=once(db): never on the lease alone",
)
"""The five rows, one line each, for refusals and `--help`."""


def checked_stake(value: object, *, name: str = "") -> Stake:
    """The stake that `value` names. Raises `Refused` (CLM020) with the five rows."""
    try:
        return Stake(value)  # type: ignore[arg-type]
    except ValueError:
        raise Refused(
            "CLM020",
            f"stake={value!r}: say what one duplicate of {name or 'this job'!r} costs. One of:\n  "
            + "\n  ".join(ROWS),
            name=name,
        ) from None
