"""From what `claimant run` was told to a job, its one start, and an exit code."""

from __future__ import annotations

import sys
from signal import Signals as Signal
from typing import Any, NamedTuple

from claimant import Claimant, LeaseLost, Outcome, Refused, Run
from claimant._drive import clock
from claimant._drive.stopping import Stopping, stoppable
from claimant._model.errors import ClaimantError
from claimant._model.events import Event
from claimant._model.names import job_key, shown
from claimant._model.outcome import Claim, Kind
from claimant._model.policy import Absent, Mode
from claimant.cli.child import Signals
from claimant.cli.supervise import CommandFailed, Interrupted, Patience, Supervisor
from claimant.embedded import in_a_container
from claimant.guards import Attested
from claimant.ledger import Spooled

LOST, OVER, REFUSED = 75, 124, 125
STAKES = """
  rebuild  a derived result is overwritten with an identical one; a lease is enough
  scan     wasted compute and some contention downstream; a lease is usually enough
  append   rows with a natural identity; add --guard TEXT
  notify   a person gets two messages; add --delivery at-least-once or at-most-once
  money    money moves; add --guard TEXT: never on the lease alone"""
"""The five stakes, with what the command line wants for them."""
ENDS = frozenset({"run.failed", "run.stopped", "run.absent", "run.unknown"})
SKIPPED = (Kind.DONE, Kind.HELD, Kind.ABSENT)


class Wanted(NamedTuple):
    """What the command line, the environment and the files say, settled. None: nothing says."""

    name: str
    command: tuple[str, ...]
    store: str | None
    ledger: str | None
    namespace: str | None
    stake: str
    guard: str | None
    delivery: str | None
    every: Any
    cron: str | None
    tz: str | None
    slot: str | None
    force: bool
    attempts: int | None
    lifetime: Any
    max_run: Any
    on_loss: str | None
    on_absent: str | None
    skip_exit: int
    quiet: bool
    observe: bool
    ping: str | None
    as_json: bool


def in_options(text: str) -> str:
    """A refusal's advice as options of the command line: `every=` is --every, `absent="skip"` is --on-absent skip."""
    import re

    def option(found: re.Match[str]) -> str:
        name, value = found[1], (found[2] or "").strip("'\"")
        flag = {"absent": "on-absent", "name": "NAME"}.get(name, name.replace("_", "-"))
        return f"--{flag} {value}".rstrip()

    words = "absent|attempts|cron|delivery|every|ledger|lifetime|max_run|on_loss|stake|store|tz"
    return re.sub(rf"\b(?:Claimant )?({words})=('[^']*'|\"[^\"]*\"|(?=[ ,;:.)]|$))", option, text)


def say(text: str) -> None:
    """One line on standard error."""
    print(f"claimant: {text}", file=sys.stderr, flush=True)


class Ended(NamedTuple):
    """What one start came to. `kind`: an outcome's, or "failed", "refused" or "fault", which are none."""

    code: int
    kind: str
    reason: str
    outcome: Outcome[None]

    @property
    def skipped(self) -> bool:
        """Whether nothing was wrong and nothing was run: somebody else's turn, or another time's."""
        kind = self.outcome.kind
        return self.kind == kind and (
            kind in SKIPPED or (kind is Kind.UNKNOWN and self.outcome.run_id is None)
        )


def start(wanted: Wanted, signals: Signals) -> int:
    """Start the command once, as its job. The exit code. What is refused is one line."""
    began = clock.now_ms()
    try:
        claims = _claimant(wanted)
        try:
            ended = _started(claims, wanted, signals)
        finally:
            claims.close()
            if isinstance(claims.ledger, Spooled):
                claims.ledger.end()  # what is lost is told now, and not after the summary
    except ClaimantError as error:
        ended = Ended(REFUSED, "refused", str(error), _raised(wanted, None, str(error)))
        say(in_options(shown(str(error), 1_000)))
    except Exception as error:  # a fault of ours: a monitor hears of it as well, and a machine that reads
        from traceback import format_exc

        from claimant.cli.hiding import text_shown

        reason = f"a fault of claimant itself: {type(error).__name__}"
        ended = Ended(REFUSED, "fault", reason, _raised(wanted, None, reason))
        print(text_shown(format_exc()), end="", file=sys.stderr, flush=True)
    pinged = None
    if wanted.ping and not ended.skipped:
        from claimant.cli.ping import ping

        wrong = ping(wanted.ping, failed=ended.kind != Kind.RAN)
        pinged = not wrong
        if wrong:
            say(f"the ping was not delivered: {shown(wrong, 300)}")
    if wanted.as_json:
        _summary(wanted, ended, clock.now_ms() - began, pinged)
    return ended.code


def _claimant(wanted: Wanted) -> Claimant:
    if in_a_container():
        for what, given in (("store", wanted.store), ("ledger", wanted.ledger)):
            if given is None:
                raise Refused(
                    "CLM051",
                    f"no {what} is named, and this is a container: the embedded one would be seen by nobody else and end with it. "
                    f"Name one that your workers share, --{what} URL or CLAIMANT_{what.upper()}, or a file on a volume",
                )
    for what, given in (("store", wanted.store), ("ledger", wanted.ledger)):
        _tell_of_a_new_folder(what, given)
    if wanted.store is not None and wanted.store.startswith("memory:"):
        raise Refused(
            "CLM051",
            "a store in memory is seen by this one process, and each start is another: name a file, --store sqlite:leases.db, or "
            "what your hosts share",
        )
    claims = Claimant(
        wanted.store,
        ledger=wanted.ledger,
        namespace=wanted.namespace or "",
        mode="observe" if wanted.observe else "enforce",
    )
    claims._wiring.tell_only(_tell)  # noqa: SLF001 - a command has no log to write to: it has lines
    return claims


def _tell_of_a_new_folder(what: str, given: str | None) -> None:
    """A path with a slip of the pen makes a new file, which remembers nothing: say so where even its folder is new."""
    if given is None or not given.startswith("sqlite:"):
        return
    from pathlib import Path

    path = given.removeprefix("sqlite:").partition("?")[0]
    try:
        folder = Path("/" + path.lstrip("/") if path.startswith("//") else path).expanduser().parent
        there = folder.is_dir()
    except (OSError, RuntimeError):
        return  # whoever opens it says more
    if not there:
        say(
            f"the {what}'s folder {shown(str(folder))} is not there, and is made: what was recorded elsewhere is not known here"
        )


def _tell(event: Event) -> None:
    """What a person should know beside the command's own words. How it ended, its exit code says."""
    if event.level in ("warning", "error") and event.kind not in ENDS:
        say(f"{shown(event.name)}: {shown(event.text, 500)}" if event.name else shown(event.text, 500))


def _started(claims: Claimant, wanted: Wanted, signals: Signals) -> Ended:
    options: dict[str, Any] = {
        "lifetime": wanted.lifetime,
        "attempts": wanted.attempts,
        "max_run": wanted.max_run,
        "on_loss": wanted.on_loss,
        "absent": wanted.on_absent,
        "delivery": wanted.delivery,
        "every": wanted.every,
        "cron": wanted.cron,
        "tz": wanted.tz,
        "guard": _guard(wanted),
    }
    declares: Any = claims.job
    declared = declares(
        wanted.name,
        stake=wanted.stake,
        **{name: value for name, value in options.items() if value is not None},
    )

    stopped: list[LeaseLost] = []

    def body(run: Run) -> None:
        try:
            supervisor(run)
        except LeaseLost as lost:
            stopped.append(lost)
            raise

    job = declared(body)
    declaration = job._declared  # noqa: SLF001 - what was derived from the options
    supervisor = Supervisor(
        wanted.command,
        signals,
        lifetime_ms=declaration.lifetime_ms,
        max_run_ms=declaration.max_run_ms,
        stops=declaration.absent is not Absent.PROCEED,
        observed=claims.mode is Mode.OBSERVE,
        lease_key=job_key(claims.namespace, wanted.name, ""),
        say=lambda text: say(f"{shown(wanted.name)}: {text}"),
    )
    try:
        outcome = _carried_out(job, wanted, Patience(signals, supervisor))
    except Stopping:
        asked = signals.ending or 0
        reason = f"{Signal(asked).name} before the command was started"
        return Ended(128 + asked, Kind.STOPPED, reason, _raised(wanted, supervisor, reason))
    except CommandFailed as failed:
        if failed.code in (126, 127) and not str(failed).startswith(("exit code", "killed")):
            say(str(failed))
        return Ended(failed.code, "failed", str(failed), _raised(wanted, supervisor, str(failed)))
    except Interrupted as interrupted:
        reason = str(interrupted)
        return Ended(interrupted.code, Kind.STOPPED, reason, _raised(wanted, supervisor, reason))
    code = 0
    if stopped:
        code = OVER if stopped[0].cause == "over" else LOST
        say(f"{shown(wanted.name)}: {shown(str(stopped[0]), 500)}; exit code {code}")
    elif outcome.kind is not Kind.RAN:
        code = wanted.skip_exit
        if not wanted.quiet or outcome.kind not in SKIPPED:
            say(skip_line(claims, wanted, outcome))
    return Ended(code, outcome.kind, outcome.reason, outcome)


def _carried_out(job: Any, wanted: Wanted, patience: Patience) -> Outcome[None]:
    """`job.at(slot, force=…)()`, whose pauses end when an end is asked for. Raises `Stopping` then."""
    slot = job._slot(wanted.slot)  # noqa: SLF001 - as Job.at and Job.loop do it
    flow = job._start(Run, (), {}, slot=slot, force=wanted.force)  # noqa: SLF001
    found: Outcome[None] = job._wiring.run(flow, lambda table: stoppable(table, patience))  # noqa: SLF001
    return found


def _raised(wanted: Wanted, supervisor: Supervisor | None, reason: str) -> Outcome[None]:
    """What a start that ended otherwise than in an outcome came to, as far as an outcome can say it."""
    run = None if supervisor is None else supervisor.run
    return Outcome(
        Kind.STOPPED,
        Claim.NONE if supervisor is None else Claim(supervisor.claim),
        wanted.name,
        reason,
        slot=wanted.slot if run is None else run.slot,
        run_id=None if run is None else run.run_id,
    )


def _guard(wanted: Wanted) -> Attested | None:
    if wanted.guard is None and wanted.stake in ("append", "money"):
        raise Refused(
            "CLM021",
            f"{wanted.name}: --stake {wanted.stake} never rides on the lease alone: it can be lost while the command runs, and "
            "nobody is told. Make the command's effect reject a second attempt, and say where with --guard TEXT, e.g. --guard "
            "'unique index one_debit'. It is believed and shown, not checked",
            name=wanted.name,
        )
    return None if wanted.guard is None else Attested(wanted.guard)


def skip_line(claims: Claimant, wanted: Wanted, outcome: Outcome[None]) -> str:
    """Why the command did not run: who holds it, since when, for how long, how often in a row."""
    name = shown(wanted.name)
    if outcome.kind is not Kind.HELD:
        said = "given up before" if outcome.kind is Kind.DONE and not outcome.completed else "skipped"
        return f"{name} {said}: {shown(outcome.reason, 500)}"
    details = outcome.details
    holder, left = str(details["holder"] or "somebody unnamed"), details["remaining_ms"]
    words = [f"held by {shown(holder)}{_since(claims, wanted.name, holder)}"]
    words.append("its lease has no end (immortal)" if left is None else f"lease {_seconds(left)} left")
    in_row = details["skips_in_row"]
    streak = "" if in_row is None else f"; {_ordinal(int(in_row))} skip in a row"
    return f"{name} skipped: {', '.join(words)}{streak}"


def _since(claims: Claimant, name: str, holder: str) -> str:
    """How long the holder's run has lasted, as the ledger knows it; nothing where it does not say."""
    from datetime import UTC, datetime

    from claimant._model.durations import in_words

    try:
        now = claims.ledger.now()
        rows = [row for row in claims.ledger.jobs(name) if row.key == "" and row.running_since is not None]
    except ClaimantError:
        return ""
    for row in rows:
        if row.running_holder == holder and row.running_since is not None:
            at = datetime.fromtimestamp(row.running_since / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            return f" for {in_words(max(now - row.running_since, 0))}, since {at}"
    return ""


def _seconds(left: object) -> str:
    from claimant._model.durations import in_words

    return in_words(int(str(left)))


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _summary(wanted: Wanted, ended: Ended, took_ms: int, pinged: bool | None) -> None:
    import json

    found = ended.outcome.as_dict() | {
        "kind": str(ended.kind),
        "exit_code": ended.code,
        "command": list(wanted.command),
        "took_ms": took_ms,
        "pinged": pinged,
    }
    print(json.dumps(found), file=sys.stderr, flush=True)
