"""Invariants of holders and their keeper: who trusts what, and who is told what, when.

Like every checker here it sees true time, the store's keys and all processes, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from claimant._model.holding import ENDED, State, Tenure
from claimant.sim.schedule import DEADLINE_MS
from claimant.sim.store import SimStore
from claimant.sim.world import World

if TYPE_CHECKING:
    from claimant.sim.process import Process


class Keeping:
    """Promises 1 and 6."""

    def __init__(self, world: World, store: SimStore) -> None:
        self.world = world
        self.store = store
        self.holders: dict[str, list[tuple[Process, int, Tenure]]] = {}

    def takes(self, process: Process, tenure: Tenure) -> None:
        """A tenure comes under the keeper's care."""
        process.tenures.append(tenure)
        process.known[id(tenure)] = (tenure.state.value, tenure.value)
        process.limits[id(tenure)] = (tenure.end_ms, tenure.stall_after_ms)
        if tenure.lifetime_ms < process.shortest_ms:
            process.shortest_ms = tenure.lifetime_ms
            process.excused[id(tenure)] = process.busy_until_ms
        self.holders.setdefault(tenure.key, []).append((process, process.life, tenure))
        self.trust(process)

    def told(self, process: Process, tenure: Tenure) -> None:
        """The holder is told of a change."""
        world = self.world
        world.count(f"told: {tenure.state.value}")
        before = process.known.get(id(tenure), ("", ""))[0]
        process.known[id(tenure)] = (tenure.state.value, tenure.value)
        if before in {state.value for state in ENDED}:
            world.broken("P6", f"a tenure that had ended ({before}) is {tenure.state.value} again")
        match tenure.state:
            case State.LOST if tenure.value not in process.gone and tenure.value not in process.gone_before:
                world.broken(
                    "P6", f"{tenure.name} is told that it lost its claim, and no answer ever said so"
                )
            case State.LOST if process.refused_by == tenure.value:
                world.broken(
                    "R11", f"{tenure.name} is told that it lost its claim to itself ({tenure.value!r})"
                )
            case State.ABSENT:
                over = tenure.trust_until_ms - process.host.offset_ms
                ends = tenure.accepted_ms + tenure.lifetime_ms - process.host.offset_ms
                if world.now < over:
                    world.broken(
                        "P6", f"{tenure.name} is told absent {over - world.now} ms before its window ends"
                    )
                elif (
                    world.now > max(ends, process.excused.get(id(tenure), 0)) + DEADLINE_MS
                    and process.thawed_ms < over
                ):
                    world.broken(
                        "P6", f"{tenure.name} is told absent {world.now - ends} ms after its lifetime ended"
                    )
            case _:
                pass

    def keeper_rests(self, process: Process) -> None:
        """The keeper has done what was due: nothing it learned may be kept from a holder."""
        world = self.world
        kept: list[Tenure] = []
        for tenure in process.tenures:
            if tenure.released:
                continue
            if process.known[id(tenure)] != (tenure.state.value, tenure.value):
                world.broken("R9", f"{tenure.name} became {tenure.state.value} and its holder was not told")
            if tenure.value in process.gone and tenure.state not in ENDED:
                world.broken(
                    "R9",
                    f"the store said that {tenure.value!r} is gone; its holder still has {tenure.state.value}",
                )
            if tenure.state not in ENDED:
                kept.append(tenure)
        process.tenures = kept
        self.trust(process)

    def trust(self, process: Process) -> None:
        """Promise 1: who trusts, holds; and nobody else trusts the same key."""
        for tenure in process.tenures:
            now = self.world.now + process.host.offset_ms
            if not tenure.trusted(now):
                continue
            self._alone(process, tenure)
            if tenure.value in self.store.took:
                self.world.count("trusted what the store had lost")
                continue
            entry = self.store.live(tenure.key)
            until = tenure.trust_until_ms - process.host.offset_ms
            if entry is None or entry.value != tenure.value:
                self.world.broken(
                    "O2",
                    f"{process.label} trusts {tenure.value!r} until {until}, and the store holds {entry}",
                )
            elif (expires := self.store.expires_ms(entry)) is not None and expires < until:
                self.world.broken(
                    "O2", f"{process.label} trusts until {until}, the store only until {expires}"
                )

    def _alone(self, process: Process, tenure: Tenure) -> None:
        holders = self.holders[tenure.key]
        if len(holders) == 1:
            return
        alive: list[tuple[Process, int, Tenure]] = []
        for other, life, theirs in holders:
            if other.life != life or theirs.ended:
                continue
            alive.append((other, life, theirs))
            if theirs is tenure or not theirs.trusted(self.world.now + other.host.offset_ms):
                continue
            took = self.store.took.get(theirs.value) or self.store.took.get(tenure.value)
            if took is None:
                self.world.broken("O2", f"{process.label} and {other.label} both trust {tenure.key}")
            else:
                self.world.count(f"two trusted, after: {took}")
        self.holders[tenure.key] = alive
