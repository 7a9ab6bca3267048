"""The `claimant` command: what an operator can see and set up. It prints what the library returns."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from claimant._model.errors import ClaimantError

F = TypeVar("F", bound=Callable[..., Any])


class Commands(click.Group):
    """Turns the library's errors into one line on standard error and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of ours is a sentence, not a traceback."""
        try:
            return super().invoke(ctx)
        except ClaimantError as error:
            from claimant._model.names import shown

            click.echo(f"claimant: {shown(str(error), 1_000)}", err=True)
            ctx.exit(1)


def places(command: F) -> F:
    """`--store`, `--ledger` and `--namespace`, which every command takes."""
    for option in (
        click.option(
            "--namespace",
            metavar="TEXT",
            envvar="CLAIMANT_NAMESPACE",
            help="Only this namespace. [default: all]",
        ),
        click.option(
            "--ledger",
            metavar="URL",
            envvar="CLAIMANT_LEDGER",
            help="The ledger: sqlite:PATH or postgresql://… [default: this host's]",
        ),
        click.option(
            "--store",
            metavar="URL",
            envvar="CLAIMANT_STORE",
            help="The lease store: sqlite:PATH, redis://… or valkey://… [default: this host's]",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="claimant", message="claimant %(version)s")
def main() -> None:
    """Leases make duplicate work rare; guards make duplicates harmless. See what your jobs do, and set things up."""


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
    click.echo(json.dumps(found.as_dict()) if as_json else "\n".join(found.lines()))
    if found.failed:
        sys.exit(1)


def _aside(text: str) -> None:
    click.echo(text, err=True)


@main.command(short_help="The claims that the store holds now.")
@places
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def leases(store: str | None, ledger: str | None, namespace: str | None, as_json: bool) -> None:
    """The claims that the store holds now: name, holder, time left."""
    from claimant.cli.reading import read_leases

    del ledger
    rows, nothing = read_leases(store, namespace, _aside)
    if as_json:
        click.echo(json.dumps([row.as_dict() for row in rows]))
        return
    click.echo("\n".join(row.line() for row in rows) or nothing)


@main.command(short_help="Make the tables of a ledger and of a guard.")
@places
@click.option("--guard", metavar="URL", help="Make a guard's tables in this database.")
@click.option("--sql", "show_sql", is_flag=True, help="Print the statements instead of running them.")
def init(
    store: str | None, ledger: str | None, namespace: str | None, guard: str | None, show_sql: bool
) -> None:
    """Make the tables of the ledger (--ledger URL) and of a guard (--guard URL). Safe to repeat."""
    from claimant.cli.reading import initialise

    del store, namespace
    for line in initialise(ledger, guard, show_sql=show_sql):
        click.echo(line)


@main.command(short_help="The main job in three acts, in half a minute.")
@places
def demo(store: str | None, ledger: str | None, namespace: str | None) -> None:
    """The main job in three acts, with real processes, in half a minute. Embedded unless --store and --ledger say otherwise."""
    from claimant.cli.demo import perform

    del namespace
    perform(store, ledger, click.echo)
