"""What a lease file's rows mean: who holds, on whose clock, and until when.

A row of another time domain (a reboot, a container with a clock of its own) is neither live nor dead. Its countdown
starts again on our clock when we first see it, is written down as a *sighting*, and every renewal starts it anew.
Sightings are kept beside the row, one for each domain, so that two domains never restart each other's countdown.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from claimant._drive.ports import LeaseRow
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
    StoreReply,
    StoreRequest,
    Vacant,
)

SWEEP_EVERY = 256
"""Creates between two clean-ups of leases that have lapsed; the first one cleans up too."""

SWEEP = (
    """INSERT OR REPLACE INTO sightings
       SELECT key, :domain, value, renewals, :now + lifetime_ms FROM leases AS l
       WHERE l.domain <> :domain AND NOT EXISTS (
           SELECT 1 FROM sightings AS s
           WHERE s.key = l.key AND s.domain = :domain AND s.value = l.value AND s.renewals = l.renewals)""",
    "DELETE FROM leases WHERE domain = :domain AND until_ms <= :now",
    """DELETE FROM leases AS l
       WHERE l.domain <> :domain AND EXISTS (
           SELECT 1 FROM sightings AS s
           WHERE s.key = l.key AND s.domain = :domain AND s.value = l.value AND s.renewals = l.renewals
           AND s.until_ms <= :now)""",
    "DELETE FROM sightings WHERE key NOT IN (SELECT key FROM leases)",
)


class Rows:
    """Answers requests inside somebody else's transaction. Used by one thread at a time."""

    def __init__(self, now_ms: Callable[[], int], domain: Callable[[], str]) -> None:
        self._now_ms = now_ms
        self._domain_now = domain
        self._domain = ""
        self._creates = 0

    def forget(self) -> None:
        """We are a forked child, perhaps in another time domain."""
        self._domain = ""

    def listed(self, connection: sqlite3.Connection, prefix: str) -> list[LeaseRow]:
        """The live leases whose key starts with `prefix`; writes nothing."""
        self._domain = self._domain or self._domain_now()
        now = self._now_ms()
        names = connection.execute(
            "SELECT key FROM leases WHERE substr(key, 1, ?)=? ORDER BY key", (len(prefix), prefix)
        ).fetchall()
        found = [(name, self._live(connection, name, now)) for (name,) in names]
        return [LeaseRow(name, held.value, held.remaining_ms) for name, held in found if held is not None]

    def answer(self, connection: sqlite3.Connection, request: StoreRequest) -> StoreReply:
        """Carry out one request."""
        if not self._domain:
            self._domain = self._domain_now()
        now = self._now_ms()
        match request:
            case Create(key, value, lifetime_ms):
                return self._create(connection, key, value, lifetime_ms, now)
            case Renew(items):
                return tuple(
                    self._set(connection, item.key, item.value, item.lifetime_ms, now) for item in items
                )
            case Repair(key, value, lifetime_ms):
                return self._set(connection, key, value, lifetime_ms, now)
            case Release(key, value):
                held = self._live(connection, key, now)
                if held is None or held.value != value:
                    return NotOurs()
                connection.execute("DELETE FROM leases WHERE key=?", (key,))
                connection.execute("DELETE FROM sightings WHERE key=?", (key,))
                return Released()
            case Peek(key):
                # In a write transaction too: it is how the keeper learns whether claims are taken again.
                return self._live(connection, key, now) or Vacant()
        raise TypeError(f"{type(request).__name__} is not a request to a store")

    def _create(
        self, connection: sqlite3.Connection, key: str, value: str, lifetime_ms: int, now: int
    ) -> StoreReply:
        held = self._live(connection, key, now, seen=True)
        if held is not None:
            return Granted(recognised=True) if held.value == value else held
        row = (key, value, lifetime_ms, self._domain, now + lifetime_ms)
        connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, 0)", row)
        if self._creates % SWEEP_EVERY == 0:
            self._sweep(connection, now)
        self._creates += 1
        return Granted()

    def _set(
        self, connection: sqlite3.Connection, key: str, value: str, lifetime_ms: int, now: int
    ) -> RenewReply:
        held = self._live(connection, key, now)
        if held is None or held.value != value:
            return NotOurs()
        connection.execute(
            "UPDATE leases SET domain=?, until_ms=?, renewals=renewals+1 WHERE key=?",
            (self._domain, now + lifetime_ms, key),
        )
        return Renewed()

    def _live(self, connection: sqlite3.Connection, key: str, now: int, *, seen: bool = False) -> Held | None:
        """Who holds `key`; None if nobody does any more. `seen`: start the countdown of a foreign row, for good."""
        row = connection.execute(
            "SELECT value, lifetime_ms, domain, until_ms, renewals FROM leases WHERE key=?", (key,)
        ).fetchone()
        if row is None:
            return None
        value, lifetime_ms, domain, until_ms, renewals = row
        if domain != self._domain:
            sight = connection.execute(
                "SELECT until_ms FROM sightings WHERE key=? AND domain=? AND value=? AND renewals=?",
                (key, self._domain, value, renewals),
            ).fetchone()
            until_ms = sight[0] if sight is not None else now + lifetime_ms
            if sight is None and seen:
                connection.execute(
                    "INSERT OR REPLACE INTO sightings VALUES (?, ?, ?, ?, ?)",
                    (key, self._domain, value, renewals, until_ms),
                )
        return Held(value, until_ms - now) if until_ms > now else None

    def _sweep(self, connection: sqlite3.Connection, now: int) -> None:
        """Remove what has lapsed, by the same rule as in `_live`."""
        args = {"domain": self._domain, "now": now}
        for statement in SWEEP:
            connection.execute(statement, args)
