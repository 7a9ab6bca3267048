"""Planted bugs of a store, as a wrong adapter or a wrong server has them."""

from __future__ import annotations

from typing import Any

from claimant._model.ops import Granted, NotOurs, Released, StoreAbsent
from claimant.sim.store import Entry, SimStore


class OutOfMemory(SimStore):
    """A full server answers a create with an error before it looks whether the key is held."""

    def create(self, key: str, value: str, lifetime_ms: int) -> Any:
        if self.live(key) is not None and self.world.chance() < 0.2:
            return StoreAbsent("OOM command not allowed")
        return super().create(key, value, lifetime_ms)


class ReleasesWithoutLooking(SimStore):
    def release(self, key: str, value: str) -> Any:
        return Released() if self.entries.pop(key, None) else NotOurs()


class ForgetsTheLifetime(SimStore):
    def create(self, key: str, value: str, lifetime_ms: int) -> Any:
        reply = super().create(key, value, lifetime_ms)
        if isinstance(reply, Granted):
            self.entries[key].expires_ms = None
        return reply


class ReadsThenWrites(SimStore):
    def create(self, key: str, value: str, lifetime_ms: int) -> Any:
        entry = self.live(key)
        fresh = entry is not None and (entry.expires_ms or 0) - self.world.now > lifetime_ms * 9 // 10
        if entry is not None and fresh and entry.value != value:
            # The other's write landed between our read and our write.
            self.entries[key] = Entry(value, self.world.now + lifetime_ms)
            return Granted()
        return super().create(key, value, lifetime_ms)


class DeniesItself(SimStore):
    def create(self, key: str, value: str, lifetime_ms: int) -> Any:
        entry = self.live(key)
        return super().create(key, value, lifetime_ms) if entry is None else self._held(entry)


class RenewalCreates(SimStore):
    def renew(self, key: str, value: str, lifetime_ms: int) -> Any:
        if self.live(key) is None:
            self.entries[key] = Entry(value, self.world.now + lifetime_ms)
        return super().renew(key, value, lifetime_ms)
