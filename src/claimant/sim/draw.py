"""From one integer to one schedule. Each seed turns some kinds of fault on and others off, so that rare pairs meet.

Faults end when the calm begins; what is drawn here decides how long a schedule takes, so it is kept small.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Any

from claimant._model.dialect import Dialect
from claimant._model.policy import Absent, Held, OnLoss
from claimant._model.slots import early_ms
from claimant._model.stake import Stake
from claimant.sim.coverage import STEPS
from claimant.sim.schedule import (
    DEMOTED_MS,
    Blow,
    Failover,
    Forgetting,
    Harm,
    Host,
    Interruption,
    Kind,
    Mode,
    Schedule,
    SimJob,
    Stroke,
    Window,
)

LIFETIMES_MS = (600, 600, 900, 1_500, 3_000)
WHOLE_SECONDS_MS = (3_000, 3_000, 4_000)
"""For servers that count whole seconds, and may be one short."""
EVERY_MS = 120_000
FAULTS = (
    "network",
    "windows",
    "ledger",
    "guard",
    "harm",
    "failover",
    "strokes",
    "cancels",
    "broker",
    "forgetting",
)
"""The kinds of fault that a schedule has or has not."""
FAULTY_MS = 4_500
"""Faults happen within so much time; the calm follows."""


def draw(seed: int, only: Collection[str] = ()) -> Schedule:
    """The schedule of a seed. `only`: exactly these kinds of fault, instead of those that the seed chooses."""
    rng = Random(seed * 2 + 1)  # noqa: S311 - schedules, not secrets
    hosts = tuple(
        Host(
            rng.randrange(0, 1_000_000),
            rng.choice((0, 0, 300, -2_000, 30_000, -3_600_000)),
            rng.randrange(0, FAULTY_MS),
            rng.choice((0, 0, 0, 2_000, -2_000)),
        )
        for _ in range(rng.choice((1, 2, 2, 3)))
    )
    processes = tuple(rng.randrange(len(hosts)) for _ in range(rng.choice((2, 2, 3))))
    count = rng.choice((1, 1, 2))
    kind = rng.choice((Kind.EXACT, Kind.EXACT, Kind.EXACT, Kind.EARLY, Kind.LATE))
    lifetimes = WHOLE_SECONDS_MS if kind is Kind.EARLY else LIFETIMES_MS
    jobs = tuple(_job(rng, number, len(processes), lifetimes) for number in range(count))
    faults = {kind for kind in FAULTS if rng.random() < 0.4}
    if only:
        faults = set(only)
    behind, failovers = _failovers(rng, len(processes)) if "failover" in faults else ({}, ())
    return Schedule(
        seed=seed,
        hosts=hosts,
        processes=processes,
        jobs=jobs,
        calm_ms=FAULTY_MS if faults else 0,
        phase_ms=_phase(rng),
        store_windows=_windows(rng, tuple(Mode)) if "windows" in faults else (),
        ledger_windows=_windows(rng, (Mode.REFUSE,)) if "ledger" in faults else (),
        kind=kind,
        failovers=failovers,
        **behind,
        blows=_blows(rng) if "harm" in faults else (),
        interruptions=_strokes(rng, len(processes)) if "strokes" in faults else (),
        network=rng.choice((0.02, 0.1, 0.3)) if "network" in faults else 0.0,
        ledger_loss=rng.choice((0.05, 0.2)) if "ledger" in faults else 0.0,
        dialect=rng.choice(tuple(Dialect)),
        guard_loss=rng.choice((0.05, 0.2)) if "guard" in faults else 0.0,
        ack_loss=0.3 if "broker" in faults else 0.0,
        ledger_failover=_forgetting(rng) if "forgetting" in faults else None,
        guard_failover=_forgetting(rng) if "forgetting" in faults else None,
        cancels=rng.choice((0.02, 0.1)) if "cancels" in faults else 0.0,
    )


def _phase(rng: Random) -> int:
    """Mostly so that a new slot begins (its early part included) while faults happen; never in the calm."""
    if rng.random() < 0.3:
        return rng.randrange(0, 20_000)
    return EVERY_MS - early_ms(EVERY_MS) - rng.randrange(0, FAULTY_MS - 1_500)


def _job(rng: Random, number: int, processes: int, lifetimes: tuple[int, ...]) -> SimJob:
    lifetime = rng.choice(lifetimes)
    guarded = rng.random() < 0.6
    slots = rng.random() < 0.5
    stake = Stake.MONEY if guarded else rng.choice((Stake.REBUILD, Stake.SCAN))
    at_most_once = slots and not guarded and rng.random() < 0.3
    first = rng.randrange(0, 1_000)
    starts = [(first, rng.randrange(processes))]
    starts += [
        (first + rng.choice((0, 0, 1, 40, 700)), rng.randrange(processes))
        for _ in range(rng.choice((0, 1, 1, 2)))
    ]
    starts += [(rng.randrange(0, FAULTY_MS), rng.randrange(processes)) for _ in range(rng.choice((0, 1)))]
    max_run = rng.choice((60_000, 60_000, 60_000, lifetime + 200))
    hangs = rng.random() < 0.2
    return SimJob(
        name=f"job{number}",
        stake=Stake.NOTIFY if at_most_once else stake,
        guarded=guarded,
        lifetime_ms=lifetime,
        max_run_ms=max_run,
        starts=tuple(sorted(starts)),
        again_ms=rng.choice((900, 1_500, 2_500)),
        key="" if slots else f"order_id={number + 41}",
        every_ms=EVERY_MS if slots else None,
        held=rng.choice((Held.SKIP, Held.SKIP, Held.WAIT, Held.STANDBY if slots else Held.WAIT)),
        held_wait_ms=rng.choice((300, 2_000)),
        absent=rng.choice((Absent.PROCEED, Absent.PROCEED, Absent.SKIP, Absent.WAIT)),
        absent_wait_ms=rng.choice((400, 2_000)),
        on_loss=rng.choice((OnLoss.GO_ON, OnLoss.STOP)),
        stall_after_ms=rng.choice((None, None, 400)) if not hangs else 400,
        attempts=rng.choice((1, 1, 2)),
        at_most_once=at_most_once,
        beats=rng.choice((1, 3, 8)),
        beat_ms=rng.choice((40, 150, 300)),
        boom=rng.choice((0.0, 0.0, 0.2)),
        joined=guarded and rng.random() < 0.3,
        hang=0.3 if hangs else 0.0,
        hang_ms=rng.choice((900, 2_500)),
        visibility_ms=None if slots or rng.random() < 0.4 else rng.choice((600, 1_500, 4_000)),
    )


def _windows(rng: Random, modes: tuple[Mode, ...]) -> tuple[Window, ...]:
    windows: list[Window] = []
    start = rng.randrange(0, 1_500)
    for _ in range(rng.choice((1, 1, 2, 3))):
        end = min(start + rng.choice((100, 600, 1_200, 3_000)), FAULTY_MS)
        windows.append(Window(rng.choice(modes), start, end))
        start = end + rng.choice((0, rng.randrange(1, 1_000)))
        if start >= FAULTY_MS:
            break
    return tuple(windows)


def _failovers(rng: Random, processes: int) -> tuple[dict[str, Any], tuple[Failover, ...]]:
    """A replica, how far it is behind, and the instant when it takes over."""
    at_ms = rng.randrange(300, FAULTY_MS * 3 // 4)
    cut = Window(Mode.SILENT, at_ms - rng.choice((300, 1_500, 4_000)), at_ms + 1)
    behind: dict[str, Any] = {
        "lag_ms": rng.choice((0, 5, 50, 800)),
        "cuts": (cut,) if rng.random() < 0.5 else (),
        "node_skews": (0, rng.choice((0, 0, 0, 700, 40_000, -5_000, -3_600_000))),
    }
    stale = tuple(number for number in range(processes) if rng.random() < 0.5) if rng.random() < 0.5 else ()
    stale_ms = min(rng.choice((500, 1_500, 4_000)), FAULTY_MS - DEMOTED_MS - at_ms) if stale else 0
    return behind, (Failover(at_ms, stale, stale_ms),)


def _forgetting(rng: Random) -> Forgetting | None:
    if rng.random() < 0.4:
        return None
    return Forgetting(rng.randrange(200, FAULTY_MS * 3 // 4), rng.choice((20, 300, 1_500)))


def _blows(rng: Random) -> tuple[Blow, ...]:
    return tuple(
        Blow(
            rng.randrange(0, FAULTY_MS * 3 // 4),
            rng.choice(tuple(Harm)),
            rng.randrange(4),
            rng.choice((300, 1_000, 3_000)),
        )
        for _ in range(rng.choice((1, 2, 3)))
    )


def _strokes(rng: Random, processes: int) -> tuple[Interruption, ...]:
    strokes: list[Interruption] = []
    kinds = (
        Stroke.CRASH,
        Stroke.CRASH,
        Stroke.FREEZE,
        Stroke.FREEZE,
        Stroke.FREEZE,
        Stroke.CANCEL,
        Stroke.FAULT,
    )
    for _ in range(rng.choice((1, 2, 3, 4))):
        stroke = rng.choice(kinds)
        ms = (
            rng.choice((5, 200, 800, 2_000, 4_000))
            if stroke is Stroke.FREEZE
            else rng.choice((1, 300, 2_000))
        )
        request = rng.choice(STEPS) if rng.random() < 0.7 else ""
        step = rng.randrange(1, 60) if request else int(rng.paretovariate(0.5) * 8) % 400 + 1
        strokes.append(Interruption(rng.randrange(processes), step, stroke, ms, request))
    return tuple(strokes)
