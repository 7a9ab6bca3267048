"""One command in a process group of its own: started, waited for, signalled and stopped, with everything it started.

It knows no lease and decides nothing: who waits for it does. Who belongs to it, `family` says. Linux and macOS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from claimant._drive import clock
from claimant.cli import family

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""What we are sent is meant for the work, and sent on to its group."""
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Those of them that ask for an end: before the command has started, it is not started at all."""
KILLED_S = 5.0
"""How long what was killed is waited for. It runs nothing of its own any more, but the system may not let go of it."""
LOOK_S = 0.05
"""How often a group that has been told to stop is looked at: nobody is told when the last of it is gone."""
# Python ignores these for itself, and what is ignored stays so in a child.
_RESTORED = [each for name in ("SIGPIPE", "SIGXFSZ") if (each := getattr(signal, name, None)) is not None]


def signal_name(number: int) -> str:
    """SIGTERM for 15; a real-time signal has a number only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Signals:
    """What arrived, in order, and a pipe that wakes whoever waits. Entered on the main thread, before anything else."""

    def __init__(self) -> None:
        self.arrived: list[int] = []
        self._before: dict[int, Any] = {}
        self._reader = self._writer = -1
        self._wakes_before = -1

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._wakes_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*FORWARDED, signal.SIGCHLD):
            before = signal.getsignal(number)
            # nohup, and a shell's background job, ignore some for the command as well: it inherits that.
            if before is not signal.SIG_IGN or number == signal.SIGCHLD:
                self._before[number] = signal.signal(number, self._noted)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._wakes_before)
        os.close(self._reader)
        os.close(self._writer)

    def _noted(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self.arrived.append(number)

    @property
    def ending(self) -> int | None:
        """The first that asked for an end, or None."""
        return next((number for number in self.arrived if number in ENDING), None)

    def wait(self, timeout_s: float) -> None:
        """Until something arrives, or `timeout_s` has passed."""
        if select.select([self._reader], [], [], max(timeout_s, 0))[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 4_096)


class Child:
    """The command and its group. `status` is its wait status once it has ended."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], signals: Signals) -> None:
        """Start it. Raises `OSError`, or `ValueError` for an empty name, where it cannot be: not found, not executable."""
        self._signals = signals
        # From the first on: what arrived while the claim was asked for is meant for the command as well.
        self._sent = 0
        self.forwarded: list[int] = []
        self.status: int | None = None
        self._childless = False
        self._strangers = family.children()
        family.adopt(orphans=True)
        self._terminal = _Terminal()
        try:
            self.pid = _spawned(command, environ)
        except BaseException:
            family.adopt(orphans=False)
            raise
        self._terminal.hand_to(self.pid)

    @property
    def code(self) -> int:
        """What a shell would call its end: its exit code, or 128 and the number of the signal that killed it."""
        assert self.status is not None
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    @property
    def killed_by(self) -> int | None:
        """The signal that ended it, if one did."""
        assert self.status is not None
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None

    @property
    def interrupted(self) -> bool:
        """Whether it ended after it was asked to, by us or from the terminal that it was given."""
        asked = any(number in ENDING for number in self.forwarded)
        typed = self._terminal.given and self.killed_by in (signal.SIGINT, signal.SIGQUIT)
        return self.code != 0 and (asked or typed)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end for `timeout_s` at most, and send on what arrives meanwhile. Whether it has ended."""
        if self._reaped():
            return True
        self._forward()
        self._signals.wait(timeout_s)
        self._forward()
        return self._reaped()

    def stop(self, grace_s: float) -> list[int]:
        """TERM to all of it, and KILL to what is left after `grace_s`. Returns when nothing is left.

        What the system does not let go of `KILLED_S` after that is returned.
        """
        self._kill_all(signal.SIGTERM)
        # What is stopped hears nothing until it goes on.
        self._kill_all(signal.SIGCONT)
        kill_ms = clock.now_ms() + round(grace_s * 1_000)
        end_ms = kill_ms + round(KILLED_S * 1_000)
        while left := self.left():
            if clock.now_ms() >= end_ms:
                break
            if clock.now_ms() >= kill_ms:
                self._kill_all(signal.SIGKILL)
            self._signals.wait(LOOK_S)
            self._forward()
        if self.status is None:
            self.status = signal.SIGKILL  # the wait status of what it will have ended by
        return left

    def left(self) -> list[int]:
        """Who of it lives: the command, and once it has ended, others that it started."""
        if not self._reaped():
            return [self.pid]
        # Orphans are our children. Who has no child has nothing to look for.
        if self._childless and not family.group_exists(self.pid):
            return []
        return family.living(self.pid, self._strangers)

    def close(self) -> None:
        """Take the terminal back, and leave orphans to whom they belong."""
        self._terminal.take_back()
        family.adopt(orphans=False)

    def _forward(self) -> None:
        arrived = self._signals.arrived
        while self._sent < len(arrived):
            number = arrived[self._sent]
            self._sent += 1
            if self.status is None:
                self.forwarded.append(number)
            if number in ENDING:
                self._kill_all(number)
            else:
                self._kill(number)

    def _kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _kill_all(self, number: int) -> None:
        """To the group, and to those that have left it for another one."""
        living = family.living(self.pid, self._strangers)
        self._kill(number)
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) != self.pid:
                    os.kill(pid, number)

    def _reaped(self) -> bool:
        """Collect what has ended: our command, orphans of its, and, where we are process 1, of everybody's."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                self._childless = False
            except ChildProcessError:
                pid, status = 0, 0
                self._childless = True
            if pid == 0:
                return self.status is not None
            if pid != self.pid:
                continue
            if os.WIFSTOPPED(status):
                self._terminal.stop_with(self._kill)
            else:
                self.status = status


def _spawned(command: Sequence[str], environ: Mapping[str, str]) -> int:
    try:
        return os.posix_spawnp(command[0], list(command), environ, setpgroup=0, setsigdef=_RESTORED)
    except OSError as error:
        script = _script(command[0]) if error.errno == errno.ENOEXEC else None
        if script is None:
            raise
    # A script without a first line that says what reads it: shells and execvp(3) give it to sh, and so does cron.
    line = ["/bin/sh", script, *command[1:]]
    return os.posix_spawn(line[0], line, environ, setpgroup=0, setsigdef=_RESTORED)


def _script(name: str) -> str | None:
    """Where the script `name` is; None for another machine's binary."""
    from pathlib import Path
    from shutil import which

    path = which(name)
    if path is not None:
        with contextlib.suppress(OSError), Path(path).open("rb") as file:
            return None if b"\0" in file.read(128) else path
    return None


class _Terminal:
    """The terminal, where we were in its foreground: the command is there while it runs."""

    def __init__(self) -> None:
        self.given = False
        self._ours = os.getpgrp()
        self._theirs = 0
        try:
            self._foreground = os.isatty(0) and os.tcgetpgrp(0) == self._ours
        except OSError:
            self._foreground = False

    def hand_to(self, group: int) -> None:
        """The keyboard's signals, and what is typed, are the command's."""
        self._theirs = group
        if self._foreground:
            self.given = self._set(group)
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGCONT)  # it may have asked for input before it was its turn

    def take_back(self) -> None:
        """They are ours again."""
        if self.given:
            self._set(self._ours)

    def stop_with(self, kill: Callable[[int], None]) -> None:
        """The command was stopped from the keyboard: stop as well, so that the shell has its prompt; go on together."""
        if not self.given:
            return
        self.take_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.hand_to(self._theirs)
        kill(signal.SIGCONT)

    def _set(self, group: int) -> bool:
        with _ignoring(signal.SIGTTOU):
            try:
                os.tcsetpgrp(0, group)
            except OSError:
                return False
        return True


@contextlib.contextmanager
def _ignoring(number: int) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)
