"""`--store`, `--ledger` and `--namespace`, which every command takes, and what is configured where they are not given.

The files are read once for each command, and not at all for `--help` or `--version`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from claimant.cli.config import Settings

F = TypeVar("F", bound=Callable[..., Any])
_READ = "claimant.settings"


def configured(ctx: click.Context, name: str | None = None) -> Settings:
    """What is configured, for the job `name` where the command is about one. Says once what is ignored, and why.

    Raises `Misconfigured`.
    """
    from claimant.cli.config import settings

    found: Settings | None = ctx.meta.get(_READ)
    if found is None:
        found = ctx.meta[_READ] = settings()
        for warning in found.files.warnings():
            click.echo(f"claimant: {warning}", err=True)
    return found if name is None else found.of(name)


def _configured(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None or ctx.resilient_parsing or param.name is None:
        return value
    said: str | None = configured(ctx).value(param.name)
    return said


def places(command: F) -> F:
    """Add the three to a command that looks at jobs; what is not given is what is configured, or None."""
    return _added(command, _configured, "as configured, or this host's", "as configured, or all")


def places_of_a_run(command: F) -> F:
    """The same for a command that starts one."""
    return _added(command, _configured, "as configured, or this host's", "as configured, or none")


def places_given(command: F) -> F:
    """Add the three, and leave them at None where they are not given: nothing is read."""
    return _added(command, None, "", "")


def _added(command: F, callback: Callable[..., Any] | None, place: str, namespace: str) -> F:
    for name, metavar, text, otherwise in (
        ("--namespace", "TEXT", "Jobs of one namespace, where a store serves several.", namespace),
        ("--ledger", "URL", "The ledger: sqlite:PATH or postgresql://…", place),
        ("--store", "URL", "The lease store: sqlite:PATH, redis://… or valkey://…", place),
    ):
        said = f"{text} [default: {otherwise}]" if otherwise else text
        command = click.option(name, metavar=metavar, callback=callback, help=said)(command)
    return command
