"""A lease store as `_model.ops` describes it, in memory, with its own clock; and the harm that servers suffer.

It is what a correct adapter on a correct server does. Invariants are not checked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from claimant._model.ops import (
    Create,
    Granted,
    Held,
    NotOurs,
    Peek,
    Release,
    Released,
    Renew,
    Renewed,
    RenewReply,
    Repair,
    StoreRequest,
    Vacant,
)
from claimant._model.value import decode
from claimant.sim.schedule import Blow, Harm
from claimant.sim.world import World

STRETCH_MS = 3_600_000
FOREIGN_VALUE = "somebody-else's"


@dataclass(slots=True)
class Entry:
    """One key: its value, and when it lapses on the store's clock (None: never)."""

    value: str
    expires_ms: int | None


class SimStore:
    """One server. `took` remembers values that the server lost although their lifetime had not passed, and why."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.entries: dict[str, Entry] = {}
        self.took: dict[str, Harm] = {}
        self.restarted_ms = -1

    def live(self, key: str) -> Entry | None:
        """What is under `key` now."""
        entry = self.entries.get(key)
        if entry is not None and entry.expires_ms is not None and entry.expires_ms <= self.world.now:
            del self.entries[key]
            return None
        return entry

    def carry_out(self, request: StoreRequest) -> Any:
        """Apply one request, now, and answer it."""
        match request:
            case Create(key, value, lifetime):
                return self.create(key, value, lifetime)
            case Renew(items):
                return tuple(self.renew(item.key, item.value, item.lifetime_ms) for item in items)
            case Release(key, value):
                return self.release(key, value)
            case Repair(key, value, lifetime):
                return self.renew(key, value, lifetime)
            case Peek(key):
                entry = self.live(key)
                return Vacant() if entry is None else self._held(entry)
        raise TypeError(f"no store request: {request!r}")

    def create(self, key: str, value: str, lifetime_ms: int) -> Any:
        """Create if absent; our own value is recognised."""
        entry = self.live(key)
        if entry is None:
            self.entries[key] = Entry(value, self.world.now + lifetime_ms)
            return Granted()
        return Granted(recognised=True) if entry.value == value else self._held(entry)

    def renew(self, key: str, value: str, lifetime_ms: int) -> RenewReply:
        """A full lifetime from now, if `value` is there."""
        entry = self.live(key)
        if entry is None or entry.value != value:
            return NotOurs()
        entry.expires_ms = self.world.now + lifetime_ms
        return Renewed()

    def release(self, key: str, value: str) -> Any:
        """Delete, if `value` is there."""
        entry = self.live(key)
        if entry is None or entry.value != value:
            return NotOurs()
        del self.entries[key]
        return Released()

    def _held(self, entry: Entry) -> Held:
        return Held(entry.value, None if entry.expires_ms is None else entry.expires_ms - self.world.now)

    def is_broken(self, entry: Entry, slack_ms: int) -> bool:
        """Whether a lifetime is missing or longer than the value says (plus slack)."""
        value = decode(entry.value)
        if entry.expires_ms is None:
            return True
        return value is not None and entry.expires_ms - self.world.now > value.lifetime_ms + slack_ms

    def suffer(self, blow: Blow, keys: tuple[str, ...]) -> None:
        """One harm, now."""
        world = self.world
        key = keys[blow.pick % len(keys)]
        entry = self.live(key)
        match blow.harm:
            case Harm.FLUSH | Harm.RESTART_EMPTY:
                for name in list(self.entries):
                    if (lost := self.live(name)) is not None:
                        self.took[lost.value] = blow.harm
                self.entries.clear()
            case Harm.PERSIST if entry is not None:
                entry.expires_ms = None
            case Harm.STRETCH if entry is not None and entry.expires_ms is not None:
                entry.expires_ms += STRETCH_MS
            case Harm.FOREIGN if entry is None:
                self.entries[key] = Entry(FOREIGN_VALUE, None)
            case Harm.RESTART_KEPT:
                pass
            case _:
                return
        if blow.harm in (Harm.RESTART_EMPTY, Harm.RESTART_KEPT):
            self.restarted_ms = world.now
        world.count(f"harm: {blow.harm}")
        world.note("store", blow.harm.value, key)

    def tidy_foreign(self) -> None:
        """A person deletes what is not ours."""
        for key in [key for key, entry in self.entries.items() if entry.value == FOREIGN_VALUE]:
            del self.entries[key]
