"""The body of a command's job: start it, wait for it, and stop it where its lease, or its time, is over.

What a lost or unknown claim means is the job's declared policy, as it is for any body; a command never beats, so what
it may take at most is `max_run`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from claimant import LeaseLost, Run
from claimant._drive import clock
from claimant.cli.child import KILLED_S, Child, Signals, signal_name

LONGEST_GRACE_S = 5.0
DYING_MS = 200
"""How long the others of a command have to end after a signal that went to all of them, before they count as left behind."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126


class CommandFailed(Exception):
    """It ended with another code than 0, or could not be started. `code`: what the shell would show."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Interrupted(BaseException):
    """It was asked to end, and did. No failure of the work: the slot stays open. `code`: what the shell would show."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def grace_s(lifetime_ms: int) -> float:
    """How long a command that is stopped may take before it is killed, in seconds: within the lifetime in any case."""
    return min(LONGEST_GRACE_S, lifetime_ms / 4_000)


class Patience:
    """What a start waits on while there is no command yet: an end that is asked for ends the wait. See `stoppable`."""

    def __init__(self, signals: Signals, supervisor: Supervisor) -> None:
        self._signals = signals
        self._supervisor = supervisor

    def wait(self, timeout: float) -> bool:
        """Wait for `timeout` seconds at most. Whether to give up."""
        until_ms = clock.now_ms() + round(timeout * 1_000)
        while not (asked := self._signals.ending is not None and self._supervisor.run is None):
            left_ms = until_ms - clock.now_ms()
            if left_ms <= 0:
                break
            self._signals.wait(left_ms / 1_000)
        return asked


class Supervisor:
    """Runs one command as a job's body. `stops`: whether a run without an answer from the store has to stop."""

    run: Run | None = None
    """The run, once there is one."""
    claim = "none"
    """What had become of its claim when the command ended."""

    def __init__(
        self,
        command: Sequence[str],
        signals: Signals,
        *,
        lifetime_ms: int,
        max_run_ms: int,
        stops: bool,
        observed: bool,
        lease_key: str,
        say: Callable[[str], None],
    ) -> None:
        self._command = command
        self._signals = signals
        self._grace_s = grace_s(lifetime_ms)
        self._look_s = min(max(lifetime_ms / 20_000, 0.05), 0.25)
        self._max_run_ms = max_run_ms
        self._stops = stops
        self._observed = observed
        self._lease_key = lease_key
        self._say = say

    def __call__(self, run: Run) -> None:
        """The body. Raises `CommandFailed`, `Interrupted` or `LeaseLost`."""
        self.run = run
        try:
            self._supervised(run)
        finally:
            self.claim = run.lease.cause or "kept"

    def _supervised(self, run: Run) -> None:
        asked = self._signals.ending
        if asked is not None:
            raise Interrupted(f"{signal_name(asked)} before the command was started", 128 + asked)
        child = self._started(run)
        try:
            self._watched(child, run)
            self._left_behind(child)
        except BaseException:
            # Whatever it was: nothing of the command outlives its claim.
            self._stop(child)
            raise
        finally:
            child.close()
        if child.interrupted:
            raise Interrupted(f"ended with {_ending(child)} after {_names(child.forwarded)}", child.code)
        if child.code:
            raise CommandFailed(_ending(child), child.code)

    def _started(self, run: Run) -> Child:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:  # it is where it was closed  # pyright: ignore[reportUnnecessaryComparison]
                    stream.flush()
        try:
            return Child(self._command, self._environ(run), self._signals)
        except ValueError:
            raise CommandFailed("the command is empty", NOT_FOUND) from None
        except FileNotFoundError:
            raise CommandFailed(f"{self._command[0]}: not found", NOT_FOUND) from None
        except OSError as error:
            raise CommandFailed(f"{self._command[0]}: {error.strerror}", NOT_EXECUTABLE) from None

    def _environ(self, run: Run) -> Mapping[str, str]:
        told = {
            "NAME": run.lease.name,
            "RUN_ID": run.run_id,
            "OPERATION": run.operation,
            "SLOT": run.slot,
            "LEASE": self._lease_key,
            "DEADLINE": _instant(clock.epoch_ms() + self._max_run_ms),
        }
        # What an outer run was told is not about this one.
        environ = {
            name: value for name, value in os.environ.items() if name.removeprefix("CLAIMANT_") not in told
        }
        return environ | {f"CLAIMANT_{name}": value for name, value in told.items() if value}

    def _watched(self, child: Child, run: Run) -> None:
        end_ms = clock.now_ms() + self._max_run_ms
        while not child.wait(self._look_s):
            if self._observed:
                continue
            if clock.now_ms() >= end_ms:
                raise LeaseLost("stopped: max-run has passed", cause="over", name=run.lease.name)
            run.beat()
            if run.lease.cause is None:
                self._still_time(run)

    def _still_time(self, run: Run) -> None:
        """Stop while there is time to stop: the end of the trust window is too late for the whole of it."""
        if self._stops and run.lease.remaining() <= self._grace_s + self._look_s:
            raise LeaseLost(
                "stopped: the store has not answered, and the claim is about to end",
                cause="absent",
                name=run.lease.name,
            )

    def _left_behind(self, child: Child) -> None:
        # What was told to end as well needs a moment for it, and is not left behind meanwhile.
        until_ms = clock.now_ms() + (DYING_MS if child.forwarded else 0)
        while child.left() and clock.now_ms() < until_ms:
            time.sleep(0.01)
        if child.left():
            self._say(
                "the command has ended, and processes that it started have not: they are stopped, because the claim covers "
                "them too (setsid starts what must outlive it)"
            )
            self._stop(child)

    def _stop(self, child: Child) -> None:
        left = child.stop(self._grace_s)
        if left:
            self._say(
                f"killed, and still there {KILLED_S:.0f} s later: {', '.join(map(str, left))}. They do nothing of their own any more, but "
                "the system does not let go of them"
            )


def _instant(epoch_ms: int) -> str:
    """The UTC instant as text."""
    moment = datetime.fromtimestamp(epoch_ms / 1_000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _ending(child: Child) -> str:
    killed = child.killed_by
    return f"exit code {child.code}" if killed is None else f"killed by {signal_name(killed)}"


def _names(numbers: Sequence[int]) -> str:
    return ", ".join(map(signal_name, numbers)) or "a key"
