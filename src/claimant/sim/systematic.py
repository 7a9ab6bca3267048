"""Not by chance but one by one: every stroke at every yield of a job's start, every fate for every store request.

A small schedule is run once undisturbed; then once for each place where something can go wrong in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from claimant._model.dialect import Dialect
from claimant._model.stake import Stake
from claimant.sim.network import FATES
from claimant.sim.process import Flows
from claimant.sim.schedule import Host, Interruption, Mode, Schedule, SimJob, Stroke, Window
from claimant.sim.simulate import Report, run

CALM_MS = 6_000


def small(
    dialect: Dialect = Dialect.SQLITE,
    *,
    slot: bool = True,
    joined: bool = False,
    windows: tuple[Window, ...] = (),
) -> Schedule:
    """One guarded job, started by one process and soon after by another; then again until it is done."""
    job = SimJob(
        name="debit",
        stake=Stake.MONEY,
        guarded=True,
        lifetime_ms=900,
        max_run_ms=60_000,
        starts=((10, 0), (250, 1)),
        again_ms=700,
        key="" if slot else "order_id=42",
        every_ms=120_000 if slot else None,
        joined=joined,
        beats=4,
        beat_ms=250,
    )
    hosts = (Host(1_000), Host(77_000, 400))
    return Schedule(7, hosts, (0, 1), (job,), CALM_MS, phase_ms=5_000, store_windows=windows, dialect=dialect)


def bases() -> Iterator[Schedule]:
    """Small schedules on a healthy store and in each kind of outage."""
    yield small()
    yield small(Dialect.POSTGRESQL, slot=False)
    yield small(Dialect.POSTGRESQL, joined=True)
    for mode in Mode:
        yield small(windows=(Window(mode, 0, 700),))
        yield small(slot=False, windows=(Window(mode, 200, 1_500),))


def strokes_everywhere(
    base: Schedule, stroke: Stroke, ms: int, *, flows: Flows | None = None
) -> Iterator[Report]:
    """`base` with one stroke: at the first yield of its first process, at the second, and so on to the last."""
    for step in range(1, run(base.seed, schedule=base).steps[0] + 1):
        yield run(
            base.seed, schedule=replace(base, interruptions=(Interruption(0, step, stroke, ms),)), flows=flows
        )


def fates_everywhere(base: Schedule, *, flows: Flows | None = None) -> Iterator[Report]:
    """`base` with one store request lost, late, or the like: each request, each fate."""
    for number in range(1, run(base.seed, schedule=base).requests + 1):
        for fate in FATES:
            yield run(base.seed, schedule=replace(base, fates=((number, fate),)), flows=flows)
