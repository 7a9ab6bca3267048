"""What is said of a start that somebody else's claim, or a closed slot, stands in the way of."""

from __future__ import annotations

from claimant._model.durations import in_words
from claimant._model.events import Event


def held_text(holder: str, remaining_ms: int | None) -> str:
    """Who holds, and for how long at most. `remaining_ms`: None where no lifetime will ever end it."""
    left = "no end (immortal)" if remaining_ms is None else f"{in_words(remaining_ms)} left"
    return f"held by {holder}, {left}"


def would_skip(name: str, slot: str | None, would: str, why: str) -> Event:
    """What would have happened instead of this start, were anything enforced."""
    return Event(
        "run.would_skip",
        name,
        f"runs, because mode='observe' stops nothing; it would have been skipped as {would}: {why}",
        "warning",
        {"slot": slot, "would": would},
    )
