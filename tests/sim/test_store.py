"""The simulated store keeps its word as real ones do, and breaks it as they do: two nodes, their clocks, and whole seconds."""

from __future__ import annotations

from typing import Any

import pytest

from claimant._model.ops import (
    Create,
    Granted,
    Held,
    NotOurs,
    Release,
    Released,
    Renew,
    Renewal,
    Renewed,
    StoreAbsent,
)
from claimant._model.value import LeaseValue
from claimant.sim.schedule import Blow, Failover, Harm, Host, Kind, Mode, Schedule, Window
from claimant.sim.store import SimStore
from claimant.sim.world import World

LIFE_MS = 3_000


def value(number: int) -> str:
    return LeaseValue(f"{number:032x}", LIFE_MS, f"p{number}").encode()


def store(**how: Any) -> SimStore:
    world = World(1)
    return SimStore(world, Schedule(1, (Host(),), (0,), (), 0, **how))


def create(on: SimStore, number: int) -> Any:
    return on.carry_out(Create("k", value(number), LIFE_MS, 0))


def renew(on: SimStore, number: int) -> Any:
    return on.carry_out(Renew((Renewal("k", value(number), LIFE_MS),), 0))[0]


def test_what_has_not_reached_the_replica_is_lost_with_its_primary() -> None:
    """Case b1: the second create succeeds, and the store knows whose claim it forgot."""
    on = store(lag_ms=5)
    assert create(on, 1) == Granted()
    on.fail_over(Failover(0))
    assert on.took == {value(1): "failover"}
    assert create(on, 2) == Granted()


def test_what_has_reached_it_is_still_there() -> None:
    """The claim is refused to others by the new primary too, and its holder goes on."""
    on = store(lag_ms=5)
    create(on, 1)
    on.world.now = 5
    on.fail_over(Failover(5))
    assert isinstance(create(on, 2), Held)
    assert renew(on, 1) == Renewed()
    assert on.took == {}


def test_a_cut_link_brings_nothing_until_it_heals() -> None:
    """However long ago it was written."""
    on = store(lag_ms=5, cuts=(Window(Mode.SILENT, 0, 1_000),))
    create(on, 1)
    on.world.now = 900
    on.fail_over(Failover(900))
    assert on.took == {value(1): "failover"}


@pytest.mark.parametrize(("skew_ms", "ends_ms"), [(40_000, None), (-3_600_000, LIFE_MS + 3_600_000)])
def test_deadlines_are_absolute_on_the_new_primarys_clock(skew_ms: int, ends_ms: int | None) -> None:
    """Cases b8 and b9: a clock that is ahead ends a confirmed claim, one that is behind makes it outlive everybody."""
    on = store(lag_ms=0, node_skews=(0, skew_ms))
    create(on, 1)
    on.fail_over(Failover(0))
    entry = on.live("k")
    assert (None if entry is None else on.expires_ms(entry)) == ends_ms
    assert (value(1) in on.took) == (ends_ms is None)
    assert (value(1) in on.stretched) == (ends_ms is not None)


def test_two_primaries_both_grant_and_the_old_one_is_found_out() -> None:
    """Case s3: who keeps to the old primary is granted what the new one has granted to somebody else, until it says what it is."""
    on = store(lag_ms=0)
    on.fail_over(Failover(0, stale=(1,), stale_ms=500))
    assert create(on, 1) == Granted()
    assert on.is_stale(1)
    assert on.carry_out_stale(Create("k", value(2), LIFE_MS, 0)) == Granted()
    assert on.took[value(2)] == "two primaries"
    on.world.now = 500
    assert isinstance(on.carry_out_stale(Create("k", value(3), LIFE_MS, 0)), StoreAbsent)
    on.world.now = 5_000
    assert not on.is_stale(1)


@pytest.mark.parametrize("phase_ms", range(0, 1_000, 100))
def test_whole_seconds_are_short_and_rounded_up(phase_ms: int) -> None:
    """An early store lives in (L - 1 s, L], a late one at least L; both as the sheet of such a store says."""
    for kind in (Kind.EARLY, Kind.LATE):
        on = store(kind=kind)
        on.world.now = phase_ms
        create(on, 1)
        entry = on.live("k")
        assert entry is not None
        lives = (on.expires_ms(entry) or 0) - phase_ms
        assert LIFE_MS - kind.early_ms <= lives <= LIFE_MS + kind.late_ms


def test_a_late_store_counts_anew_after_a_restart() -> None:
    """Case k: five seconds left of ten are ten again."""
    on = store(kind=Kind.LATE)
    create(on, 1)
    on.world.now = 2_000
    on.suffer(Blow(0, Harm.RESTART_KEPT), ("k",))
    entry = on.live("k")
    assert entry is not None
    assert on.expires_ms(entry) == 2_000 + LIFE_MS


def test_an_old_snapshot_brings_back_what_was_released() -> None:
    """Case d: a ghost, whose lifetime goes on; and what is younger than the snapshot is gone."""
    on = store()
    create(on, 1)
    on.keep_snapshot()
    assert on.carry_out(Release("k", value(1), 0)) == Released()
    on.carry_out(Create("other", value(2), LIFE_MS, 0))
    on.suffer(Blow(0, Harm.RESTART_OLD), ("k",))
    assert isinstance(create(on, 3), Held)
    assert on.took == {value(2): Harm.RESTART_OLD.value}
    on.world.now = LIFE_MS
    assert create(on, 3) == Granted()


def test_an_evicted_claim_is_gone_and_nobody_is_told() -> None:
    """Its holder learns it from its next renewal."""
    on = store()
    create(on, 1)
    on.suffer(Blow(0, Harm.EVICT), ("k",))
    assert on.took == {value(1): "evict"}
    assert renew(on, 1) == NotOurs()
