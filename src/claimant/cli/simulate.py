"""`claimant simulate`: search schedules of the simulator, or tell one. It prints what the simulator found."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from claimant.cli.commands import Command

if TYPE_CHECKING:
    from claimant.sim.simulate import Report, Search


@click.command(
    "simulate",
    cls=Command,
    short_help="Search seeded schedules of faults for one that breaks a promise.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@click.option(
    "--schedules",
    type=click.IntRange(min=1),
    default=2_000,
    show_default=True,
    help="How many seeds from there.",
)
@click.option(
    "--fault",
    "only",
    multiple=True,
    metavar="KIND",
    help="Exactly this kind of fault, which may be given again: network, windows, ledger, guard, harm, failover, strokes, "
    "cancels, broker, forgetting. [default: each seed chooses]",
)
@click.option("--processes", type=click.IntRange(min=1), default=None, help="[default: one for each core]")
@click.option("--report", is_flag=True, help="Also print how often each fault met each step.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--replay",
    type=click.IntRange(min=0),
    default=None,
    metavar="SEED",
    help="Tell the story of one schedule.",
)
@click.pass_context
def simulate(
    ctx: click.Context,
    seed: int,
    schedules: int,
    only: tuple[str, ...],
    processes: int | None,
    report: bool,
    as_json: bool,
    replay: int | None,
) -> None:
    """Run the shipped decisions in virtual time, with faults from a seed, and look for a broken promise.

    One integer is one schedule; the same seed has the same events, and the same hash, every time. Exit code 1 if a promise was broken, or
    if the search did not meet every fault at every step (small searches do not: say --report to see which).
    """
    from claimant.cli.config_options import near
    from claimant.sim.draw import FAULTS

    for kind in only:
        if kind not in FAULTS:
            raise click.UsageError(f"--fault {kind}: one of {', '.join(FAULTS)}{near(kind, FAULTS)}", ctx)
    if replay is not None:
        _replay(replay, only, as_json=as_json)
        return
    began = time.monotonic()
    found = _searched(seed, schedules, only, processes, quiet=as_json)
    took = time.monotonic() - began
    if as_json:
        import json

        click.echo(json.dumps(found.as_dict() | {"seed": seed, "seconds": round(took, 1)}))
    else:
        _tell(found, took, report=report)
    if not found.passed:
        sys.exit(1)


def _searched(
    seed: int, schedules: int, only: tuple[str, ...], processes: int | None, *, quiet: bool
) -> Search:
    from claimant.sim.parallel import search_all

    if quiet or not sys.stderr.isatty():
        return search_all(seed, schedules, only=only, processes=processes)
    with click.progressbar(length=schedules, label="schedules", file=sys.stderr, show_pos=True) as bar:
        return search_all(seed, schedules, only=only, processes=processes, progress=bar.update)


def _tell(found: Search, took: float, *, report: bool) -> None:
    figures = found.as_dict()
    click.echo(
        f"{found.schedules:,} schedules, {found.events:,} events, {figures['faults']:,} faults, {figures['virtual_hours']:,} virtual "
        f"hours in {took:.1f} s"
    )
    click.echo(
        f"{figures['two_holder_moments']:,} moments with two holders that both trust, {figures['duplicates_rejected']:,} duplicates "
        f"rejected, {figures['runs_without_claim']:,} runs without a claim"
    )
    if report:
        from claimant.sim.coverage import table

        click.echo("\n".join(table(found.counters)))
    for failed in found.failed:
        _tell_of(failed)
    if found.never_reached:
        click.echo(f"never reached ({len(found.never_reached)}): {', '.join(found.never_reached)}")
    click.echo(
        "passed"
        if found.passed
        else "NOT passed"
        if found.failed
        else "nothing broken, and not a pass: see never reached"
    )


def _tell_of(failed: Report) -> None:
    from claimant.sim.shrink import shrunk
    from claimant.sim.simulate import run
    from claimant.sim.telling import told

    click.echo(f"\nseed {failed.seed} broke a promise. As small as it could be made:\n")
    click.echo(told(shrunk(failed, lambda schedule: run(schedule.seed, schedule=schedule))))
    click.echo(f"\nthe whole of it: claimant simulate --replay {failed.seed}")


def _replay(seed: int, only: tuple[str, ...], *, as_json: bool) -> None:
    from claimant.sim.simulate import run
    from claimant.sim.telling import told

    report = run(seed, only=only)
    if as_json:
        import json

        violations = [[each.invariant, each.at_ms, each.text] for each in report.violations]
        figures = {"seed": seed, "hash": report.event_hash, "events": report.events, "violations": violations}
        click.echo(json.dumps(figures))
    else:
        click.echo(f"{told(report)}\n\nhash {report.event_hash}")
    if report.violations:
        sys.exit(1)
