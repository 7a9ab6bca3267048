"""What a store says of itself. The conformance suite holds each store to its sheet."""

from __future__ import annotations

from dataclasses import dataclass

from claimant._model.durations import LONGEST_LIFETIME_MS, SHORTEST_LIFETIME_MS


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One store's sheet (R15). Times are milliseconds.

    `resolution_ms`: steps in which the store measures a lifetime. `shared`: seen by other processes.
    `host_local`: seen by this host only. `survives_restart`: whether an acknowledged claim outlives a restart of
    the store: True, False, or None where it depends on the server's configuration. `deadline_clock` says who
    measures the deadline.
    """

    name: str
    shared: bool
    host_local: bool
    survives_restart: bool | None
    deadline_clock: str
    resolution_ms: int = 1
    shortest_ms: int = SHORTEST_LIFETIME_MS
    longest_ms: int = LONGEST_LIFETIME_MS
    early_ms: int = 0
    """By how much a lifetime may end earlier than asked: a store that counts whole seconds may be a second short."""
    late_ms: int = 0
    """By how much it may end later: a store that rounds up, or counts anew after it has restarted."""
    early_removal: bool | None = False
    """Whether the store may drop a live claim (eviction): True, False, or None for "depends on the server"."""
