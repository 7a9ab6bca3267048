"""The `claimant` command: what an operator can see and set up. It prints what the library returns."""

from __future__ import annotations

import sys
from typing import Any

import click

from claimant.cli.commands import Commands
from claimant.cli.places import configured, places, places_given
from claimant.cli.run import run
from claimant.cli.simulate import simulate


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="What is not given as an option may stand in CLAIMANT_… variables and in claimant.toml: see claimant config.",
)
@click.version_option(package_name="claimant", message="claimant %(version)s")
def main() -> None:
    """Leases make duplicate work rare; guards make duplicates harmless. See what your jobs do, and set things up."""


main.add_command(run)
main.add_command(simulate)


@main.command(short_help="What each job does: one line per job, the worst first.")
@click.argument("name", required=False)
@places
@click.option(
    "--guard", metavar="URL", help="Also read the rejections that a guard's database counted itself."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(
    name: str | None,
    store: str | None,
    ledger: str | None,
    namespace: str | None,
    guard: str | None,
    as_json: bool,
) -> None:
    """One line per job, the worst first: running, skipping, failed or stopped; who holds it and why.

    NAME: that job, in full. Where the ledger does not answer, the claims are shown and the exit code is 1.
    """
    from claimant.cli.reading import read_status

    found = read_status(store, ledger, namespace, name, guard, _aside)
    if found.away:
        _aside(f"claimant: {found.away}")
    click.echo(_json(found.as_dict()) if as_json else "\n".join(found.lines()))
    if found.failed:
        sys.exit(1)


def _aside(text: str) -> None:
    click.echo(text, err=True)


def _json(found: Any) -> str:
    import json

    return json.dumps(found)


@main.command(short_help="The claims that the store holds now.")
@places
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def leases(store: str | None, ledger: str | None, namespace: str | None, as_json: bool) -> None:
    """The claims that the store holds now: name, holder, time left."""
    from claimant.cli.reading import read_leases

    del ledger
    rows, nothing = read_leases(store, namespace, _aside)
    if as_json:
        click.echo(_json([row.as_dict() for row in rows]))
        return
    click.echo("\n".join(row.line() for row in rows) or nothing)


@main.command(short_help="Make the tables of a ledger and of a guard.")
@places_given
@click.option("--guard", metavar="URL", help="Make a guard's tables in this database.")
@click.option("--sql", "show_sql", is_flag=True, help="Print the statements instead of running them.")
@click.pass_context
def init(
    ctx: click.Context,
    store: str | None,
    ledger: str | None,
    namespace: str | None,
    guard: str | None,
    show_sql: bool,
) -> None:
    """Make the tables of the ledger (--ledger URL) and of a guard (--guard URL). Safe to repeat.

    With neither of the two: those of the ledger that is configured.
    """
    from claimant.cli.reading import initialise

    del store, namespace
    if ledger is None and guard is None:
        ledger = configured(ctx).value("ledger")
    for line in initialise(ledger, guard, show_sql=show_sql):
        click.echo(line)


@main.command(short_help="Each configured value, and where it comes from.")
@click.argument("name", required=False)
@places_given
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def config(
    ctx: click.Context,
    name: str | None,
    store: str | None,
    ledger: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Each value that is configured, where it comes from, and which files were looked at. Nothing is asked or changed.

    NAME: for that job. Without it, the sections of all jobs are checked as well. A mistake is one line on standard
    error, with exit code 2. Passwords are not shown.
    """
    from claimant.cli.config_command import configuration

    found = configuration(configured(ctx, name), {"store": store, "ledger": ledger, "namespace": namespace})
    click.echo(_json(found.as_dict()) if as_json else "\n".join(found.lines()))


@main.command(short_help="The main job in three acts, in half a minute.")
@places_given
def demo(store: str | None, ledger: str | None, namespace: str | None) -> None:
    """The main job in three acts, with real processes, in half a minute. Embedded unless --store and --ledger say otherwise.

    What is configured is not used: it is probably at work.
    """
    from claimant.cli.demo import perform

    del namespace
    perform(store, ledger, click.echo)
