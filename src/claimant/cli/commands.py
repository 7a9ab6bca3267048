"""What all commands share in how they end: our errors become one line on standard error, and an exit code.

A command that scripts look at closely has codes of its own: `claimant run` answers everything of ours with 125,
because the other codes are its child's.
"""

from __future__ import annotations

from typing import Any

import click

from claimant._model.errors import ClaimantError


class Command(click.Command):
    """A command and its exit codes. A subclass with other figures is all that another convention needs."""

    failed = 1
    """Something was refused, or did not answer."""
    misused = 2
    """The command line, the environment or a file says what it cannot."""


class Commands(click.Group):
    """Turns the library's errors into one line on standard error and the command's exit code."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of ours is a sentence, not a traceback."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            misused = self._codes(error.ctx.command.name if error.ctx else None)[1]
            error.exit_code = misused  # type: ignore[misc] # click reads it from the instance
            raise
        except ClaimantError as error:
            from claimant._model.names import shown
            from claimant.cli.misconfigured import Misconfigured

            click.echo(f"claimant: {shown(str(error), 1_000)}", err=True)
            failed, misused = self._codes(ctx.invoked_subcommand)
            ctx.exit(misused if isinstance(error, Misconfigured) else failed)

    def _codes(self, name: str | None) -> tuple[int, int]:
        command = self.commands.get(name or "")
        return (command.failed, command.misused) if isinstance(command, Command) else (1, 2)
