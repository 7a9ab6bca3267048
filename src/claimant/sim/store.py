"""A lease store as `_model.ops` describes it, in memory: a primary, perhaps a replica behind it, and the harm they suffer.

It is what a correct adapter on a correct server does. Deadlines are absolute on a node's wall clock, as Redis replicates
them; three kinds of server are known (`Kind`). Invariants are not checked here.
"""

from __future__ import annotations

from collections import deque
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
    StoreAbsent,
    StoreRequest,
    StoreUnknown,
    Vacant,
)
from claimant._model.value import decode
from claimant.sim.schedule import DEMOTED_MS, Blow, Failover, Harm, Kind, Schedule
from claimant.sim.world import World

FOREIGN_VALUE = "somebody-else's"
STEP_MS = {Harm.CLOCK_AHEAD: 61_000, Harm.CLOCK_BACK: -3_600_000}
"""How far a wall clock steps: the cases i and b9 of RELIABILITY."""
SHORTEST_LATE_MS = 2_000
"""The shortest lifetime of a server that is late (etcd)."""


@dataclass(slots=True)
class Entry:
    """One key: its value, and when it lapses on the wall clock of its node (None: never)."""

    value: str
    expires_ms: int | None


@dataclass(slots=True)
class Node:
    """One server: its keys, and its wall clock."""

    entries: dict[str, Entry]
    skew_ms: int = 0


class SimStore:
    """What clients speak to. `took` remembers values that were lost although their lifetime had not passed, and why."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self.world = world
        self.kind = schedule.kind
        self.lag_ms = schedule.lag_ms
        self.cuts = schedule.cuts
        here, there = schedule.node_skews
        self.entries: dict[str, Entry] = {}
        self.skew_ms = here
        self.replica: Node | None = None if schedule.lag_ms is None else Node({}, there)
        self.log: deque[tuple[int, str, Entry | None]] = deque()
        self.old: Node | None = None
        self.stale: tuple[int, ...] = ()
        self.stale_until_ms = 0
        self.term = 0
        """How often a replica has taken over."""
        self.took: dict[str, str] = {}
        self.stretched: set[str] = set()
        """Values whose lifetime has become longer than it was made with."""
        self.snapshot: dict[str, Entry] = {}
        self.restarted_ms = -1

    # -- what clients ask ----------------------------------------------------------------------------------------

    def live(self, key: str) -> Entry | None:
        """What is under `key` now."""
        entry = self.entries.get(key)
        if (
            entry is not None
            and entry.expires_ms is not None
            and entry.expires_ms <= self.world.now + self.skew_ms
        ):
            del self.entries[key]
            return None
        return entry

    def expires_ms(self, entry: Entry) -> int | None:
        """When it lapses, in true time, if no clock steps."""
        return None if entry.expires_ms is None else entry.expires_ms - self.skew_ms

    def carry_out(self, request: StoreRequest) -> Any:
        """Apply one request, now, and answer it."""
        match request:
            case Create(key, value, lifetime):
                reply = self.create(key, value, lifetime)
            case Renew(items):
                replies = tuple(self.renew(item.key, item.value, item.lifetime_ms) for item in items)
                for item in items:
                    self._replicate(item.key)
                return replies
            case Release(key, value):
                reply = self.release(key, value)
            case Repair(key, value, lifetime):
                reply = self.renew(key, value, lifetime)
            case Peek(key):
                entry = self.live(key)
                return Vacant() if entry is None else self._held(entry)
            case _:
                raise TypeError(f"no store request: {request!r}")
        self._replicate(key)
        return reply

    def create(self, key: str, value: str, lifetime_ms: int) -> Any:
        """Create if absent; our own value is recognised."""
        entry = self.live(key)
        if entry is None:
            self.entries[key] = Entry(value, self.deadline_ms(lifetime_ms))
            return Granted()
        return Granted(recognised=True) if entry.value == value else self._held(entry)

    def renew(self, key: str, value: str, lifetime_ms: int) -> RenewReply:
        """A full lifetime from now, if `value` is there."""
        entry = self.live(key)
        if entry is None or entry.value != value:
            return NotOurs()
        entry.expires_ms = self.deadline_ms(lifetime_ms)
        return Renewed()

    def release(self, key: str, value: str) -> Any:
        """Delete, if `value` is there."""
        entry = self.live(key)
        if entry is None or entry.value != value:
            return NotOurs()
        del self.entries[key]
        return Released()

    def deadline_ms(self, lifetime_ms: int) -> int:
        """When a lifetime that begins now will end, on the node's wall clock."""
        wall = self.world.now + self.skew_ms
        match self.kind:
            case Kind.EXACT:
                return wall + lifetime_ms
            case Kind.EARLY:
                return wall // 1_000 * 1_000 + lifetime_ms
            case Kind.LATE:
                return wall + granted_ms(lifetime_ms) + self.world.below(500)

    def _held(self, entry: Entry) -> Held:
        expires = self.expires_ms(entry)
        return Held(entry.value, None if expires is None else expires - self.world.now)

    def is_broken(self, entry: Entry, slack_ms: int) -> bool:
        """Whether a lifetime is missing or longer than the value says (plus slack)."""
        value, expires = decode(entry.value), self.expires_ms(entry)
        if expires is None:
            return True
        return (
            value is not None and expires - self.world.now > value.lifetime_ms + slack_ms + self.kind.late_ms
        )

    # -- two nodes -----------------------------------------------------------------------------------------------

    def _replicate(self, key: str) -> None:
        """What is under `key` now is on its way to the replica, behind all that was sent before."""
        if self.replica is None or self.lag_ms is None:
            return
        now = self.world.now
        arrives = now + self.lag_ms
        for cut in self.cuts:
            if cut.start_ms <= now < cut.end_ms:
                arrives = cut.end_ms + self.lag_ms
        if self.log and arrives < self.log[-1][0]:
            arrives = self.log[-1][0]
        entry = self.entries.get(key)
        self.log.append((arrives, key, None if entry is None else Entry(entry.value, entry.expires_ms)))

    def fail_over(self, failover: Failover) -> None:
        """The replica takes over with what has reached it; some clients keep to the old primary for a while."""
        replica, world = self.replica, self.world
        if replica is None:
            return
        self.term += 1
        world.count("failover")
        world.note("store", "fails over", failover)
        while self.log and self.log[0][0] <= world.now:
            _, key, entry = self.log.popleft()
            if entry is None:
                replica.entries.pop(key, None)
            else:
                replica.entries[key] = entry
        if self.log:
            world.count("failover: behind")
        before = self._true_ends()
        old = Node(self.entries, self.skew_ms)
        self.entries, self.skew_ms, self.replica = replica.entries, replica.skew_ms, None
        self.log.clear()
        self._compare(before, "failover")
        self.restarted_ms = world.now
        self.old, self.stale = old, failover.stale
        self.stale_until_ms = world.now + failover.stale_ms

    def is_stale(self, process: int) -> bool:
        """Whether `process` still speaks to the old primary."""
        return process in self.stale and self.world.now < self.stale_until_ms + DEMOTED_MS

    def carry_out_stale(self, request: StoreRequest) -> Any:
        """Apply a request on the old primary: what it grants is worth nothing, and nobody is told."""
        old, world = self.old, self.world
        assert old is not None
        if world.now >= self.stale_until_ms:
            world.count(f"answered by a node that is not the primary at {type(request).__name__}")
            return self.not_primary(request)
        world.count(f"answered by the old primary at {type(request).__name__}")
        self.entries, old.entries = old.entries, self.entries
        self.skew_ms, old.skew_ms = old.skew_ms, self.skew_ms
        try:
            reply = self.carry_out(request)
        finally:
            self.entries, old.entries = old.entries, self.entries
            self.skew_ms, old.skew_ms = old.skew_ms, self.skew_ms
        match request, reply:
            case Create(_, value), Granted():
                self.took[value] = "two primaries"
                world.count("granted by the old primary")
            case Renew(items), _:
                for item, each in zip(items, reply, strict=True):
                    if isinstance(each, Renewed):
                        self.took[item.value] = "two primaries"
        return reply

    def not_primary(self, request: StoreRequest) -> Any:
        """What an adapter makes of a demoted node: nothing was written, and what is not there proves nothing."""
        unknown = StoreUnknown("the server is not the primary any more")
        match request:
            case Renew(items):
                return tuple(unknown for _ in items)
            case Create():
                return StoreAbsent("READONLY")
            case _:
                return unknown

    # -- harm ----------------------------------------------------------------------------------------------------

    def keep_snapshot(self) -> None:
        """What a dump to the disk would hold now."""
        self.snapshot = {
            key: Entry(entry.value, entry.expires_ms)
            for key in list(self.entries)
            if (entry := self.live(key))
        }

    def suffer(self, blow: Blow, keys: tuple[str, ...]) -> None:
        """One harm, now."""
        world = self.world
        key = keys[blow.pick % len(keys)]
        entry = self.live(key)
        before = self._true_ends()
        match blow.harm:
            case Harm.FLUSH | Harm.RESTART_EMPTY:
                gone = list(self.entries)
                self.entries.clear()
                for name in gone:
                    self._replicate(name)
            case Harm.RESTART_OLD:
                self.entries = {
                    name: Entry(kept.value, kept.expires_ms) for name, kept in self.snapshot.items()
                }
            case Harm.PERSIST if entry is not None:
                entry.expires_ms = None
            case Harm.EVICT if entry is not None:
                del self.entries[key]
                self._replicate(key)
            case Harm.FOREIGN if entry is None:
                self.entries[key] = Entry(FOREIGN_VALUE, None)
            case Harm.RESTART_KEPT:
                if self.kind is Kind.LATE:
                    self._refill()
            case Harm.CLOCK_AHEAD | Harm.CLOCK_BACK if self.kind is Kind.EXACT:
                self.skew_ms += STEP_MS[blow.harm]
            case _:
                return
        if blow.harm in (Harm.RESTART_EMPTY, Harm.RESTART_KEPT, Harm.RESTART_OLD):
            self.restarted_ms = world.now
        self._compare(before, blow.harm.value)
        world.count(f"harm: {blow.harm}")
        world.note("store", blow.harm.value, key)

    def _refill(self) -> None:
        for key in list(self.entries):
            entry = self.live(key)
            value = None if entry is None else decode(entry.value)
            if entry is not None and value is not None:
                entry.expires_ms = self.world.now + self.skew_ms + granted_ms(value.lifetime_ms)

    def _true_ends(self) -> dict[str, tuple[str, int | None]]:
        return {
            key: (entry.value, self.expires_ms(entry))
            for key in list(self.entries)
            if (entry := self.live(key)) is not None
        }

    def _compare(self, before: dict[str, tuple[str, int | None]], why: str) -> None:
        """What is gone or ends sooner than it did was taken; what ends later, or is there again, is stretched."""
        for key, (value, end) in before.items():
            entry = self.live(key)
            if entry is None or entry.value != value:
                self.took[value] = why
                continue
            now_ends = self.expires_ms(entry)
            if now_ends is not None and (end is None or now_ends < end):
                self.took[value] = why
        for key in list(self.entries):
            entry = self.live(key)
            if entry is None:
                continue
            value, end = before.get(key, ("", 0))
            now_ends = self.expires_ms(entry)
            if value != entry.value or now_ends is None or (end is not None and now_ends > end):
                self.stretched.add(entry.value)

    def tidy_foreign(self) -> None:
        """A person deletes what is not ours."""
        for key in [key for key, entry in self.entries.items() if entry.value == FOREIGN_VALUE]:
            del self.entries[key]


def granted_ms(lifetime_ms: int) -> int:
    """What a server that rounds lifetimes up grants."""
    return max(SHORTEST_LATE_MS, -(-lifetime_ms // 1_000) * 1_000)
