"""`claimant run`: one command as a job, with the exit codes of its contract. Everything else is the ordinary face."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from claimant._model.errors import ClaimantError
from claimant.cli.commands import Command
from claimant.cli.places import configured, places_of_a_run

if TYPE_CHECKING:
    from claimant.cli.starting import Wanted

OURS = 125


class RunCommand(Command):
    """Its other codes are its child's."""

    failed = OURS
    misused = OURS

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """What cannot be told, bad usage included, changes no exit code."""
        from claimant.cli.aside import step_aside

        step_aside()
        return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """NAME stands before "--": what follows is the command, and its first word must not become the name."""
        if "--" in args:
            named = self.make_parser(ctx).parse_args(args[: args.index("--")])[0].get("name")
            if not isinstance(named, str):
                raise click.UsageError(
                    "the job has no name. Write it before --: claimant run NAME --stake rebuild -- COMMAND",
                    ctx,
                )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; what nobody has foreseen is no exit code of the command either."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, ClaimantError):
            raise
        except KeyboardInterrupt:
            sys.exit(128 + 2)  # before there was anybody to send it on to
        except Exception:
            import traceback

            traceback.print_exc()
            sys.exit(OURS)


@click.command(
    "run",
    cls=RunCommand,
    short_help="Run a command as a job: one worker at a time, each slot once.",
    options_metavar="--stake STAKE [OPTIONS]",
)
@click.argument("name")
@places_of_a_run
@click.option(
    "--stake",
    metavar="STAKE",
    help="What one duplicate costs: rebuild, scan, append, notify or money. Has no default.",
)
@click.option(
    "--guard", metavar="TEXT", help="Where a second attempt is rejected: you attest it. For append and money."
)
@click.option("--delivery", metavar="HOW", help="For notify: at-least-once or at-most-once.")
@click.option("--every", metavar="DURATION", help="Each slot of this period once, e.g. 15m.")
@click.option("--cron", metavar="FIELDS", help='Each slot of this expression once, e.g. "0 3 * * *".')
@click.option("--tz", metavar="ZONE", help="The zone of --cron. [default: this host's]")
@click.option("--slot", metavar="TEXT", help="The occasion, as the trigger names it; done once.")
@click.option(
    "--force",
    is_flag=True,
    help="Run the slot although it is closed. Recorded; the claim is taken all the same.",
)
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=None,
    help="Failed runs that a slot allows. [default: 1]",
)
@click.option(
    "--lifetime", metavar="DURATION", help="Of the claim; renewed every third of it. [default: 30s]"
)
@click.option("--max-run", metavar="DURATION", help="Stop the command after that, with exit code 124.")
@click.option("--on-loss", metavar="HOW", help="go-on or stop, once the claim is lost. [default: by stake]")
@click.option(
    "--on-absent",
    metavar="HOW",
    help="proceed, skip or wait:5m while the store is absent. [default: by stake]",
)
@click.option(
    "-q/-v",
    "--quiet/--no-quiet",
    "quiet",
    default=None,
    help="No line for a skip, so that cron mails nothing.",
)
@click.option(
    "-E", "--skip-exit", type=click.IntRange(0, 255), metavar="N", help="Exit code of a skip. [default: 0]"
)
@click.option(
    "--observe/--no-observe", default=None, help="Stop nothing; count what would have been stopped."
)
@click.option("--ping", metavar="URL", help="GET this after a success, and URL/fail after a failure.")
@click.option("--json/--no-json", "as_json", default=None, help="End with one JSON object on standard error.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENTS]…")
@click.pass_context
def run(ctx: click.Context, /, name: str, command: tuple[str, ...], **flags: Any) -> None:
    """Run COMMAND as the job NAME: one worker at a time, each slot once, and everything recorded.

    Exit codes: the command's own (128+N for a signal); 0, or -E, for a skip, with one line on standard error;
    75 stopped because the claim was lost; 124 --max-run; 125 ours; 126 and 127 not executable, not found.
    """
    if not command:
        raise click.UsageError(
            "there is no command. Write it after --: claimant run NAME --stake rebuild -- COMMAND", ctx
        )
    if sys.platform == "win32":
        raise click.UsageError("claimant run needs process groups, which Windows does not have", ctx)
    from claimant.cli.child import Signals

    with Signals() as signals:
        from claimant.cli.starting import start

        code = start(_wanted(ctx, name, command, flags), signals)
    sys.exit(code)


def _known_stake(ctx: click.Context, stake: str) -> None:
    from claimant._model.stake import Stake
    from claimant.cli.config_options import near
    from claimant.cli.starting import STAKES

    words = tuple(each.value for each in Stake)
    if stake not in words:
        raise click.UsageError(
            f"--stake {stake!r} is not a stake{near(stake, words)}. One of:\n{STAKES}", ctx
        )


def _wanted(ctx: click.Context, name: str, command: Sequence[str], flags: dict[str, Any]) -> Wanted:
    from claimant.cli.starting import Wanted

    found = configured(ctx, name)

    def said(option: str, flag: str = "") -> Any:
        return found.value(option, flags[flag or option.replace("-", "_")])

    stake = said("stake")
    if stake is None:
        from claimant.cli.starting import STAKES

        raise click.UsageError(
            f"--stake says what one duplicate costs, and has no default. One of:\n{STAKES}", ctx
        )
    if flags["stake"] is not None:
        _known_stake(ctx, stake)
    every, cron, tz = found.schedule(flags["every"], flags["cron"], flags["tz"])
    if flags["slot"] is None and every is None and cron is None:
        for flag, does in (
            ("force", "runs a slot again that is closed"),
            ("attempts", "counts the failed runs of one slot"),
        ):
            if flags[flag]:
                raise click.UsageError(
                    f"--{flag} {does}, and this start has no slot. Add --every, --cron or --slot", ctx
                )
    return Wanted(
        name=name,
        command=tuple(command),
        store=flags["store"],
        ledger=flags["ledger"],
        namespace=flags["namespace"],
        stake=stake,
        guard=said("guard"),
        delivery=said("delivery"),
        every=every,
        cron=cron,
        tz=tz,
        slot=flags["slot"],
        force=flags["force"],
        attempts=said("attempts"),
        lifetime=said("lifetime"),
        max_run=said("max-run"),
        on_loss=said("on-loss"),
        on_absent=said("on-absent"),
        skip_exit=said("skip-exit") or 0,
        quiet=bool(said("quiet")),
        observe=bool(said("observe")),
        ping=said("ping"),
        as_json=bool(said("json", "as_json")),
    )
