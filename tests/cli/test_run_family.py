"""Whom `claimant run` stops besides its command's group, whom it leaves alone, and that it always comes to an end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from claimant import Claimant
from tests.cli.commands import Started, alive, ended, gone, words
from tests.support.servers import wait

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and subreapers are Linux's")
SHORT = ("--lifetime", "1s")
LEFT = "the command has ended, and processes that it started have not"


@pytest.fixture
def rebuild(tmp_path: Path) -> list[str]:
    """The job of these tests, on places in this test's folder."""
    return [
        "rebuild",
        *("--store", f"sqlite:{tmp_path / 'leases.db'}", "--ledger", f"sqlite:{tmp_path / 'ledger.db'}"),
        *("--stake", "rebuild"),
    ]


def sh(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text)


# Process 1 of many containers: it adopts orphans, and reaps none of them.
_NEVER_REAPS = """
import ctypes, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
sys.exit(subprocess.Popen(sys.argv[1:]).wait())
"""
# Where we cannot adopt orphans ourselves.
_WITHOUT_ADOPTION = """
import sys
from claimant.cli import family, main
family.adopt = lambda *, orphans: None
main(sys.argv[1:])
"""


@pytest.mark.parametrize("adopts", [True, False])
def test_a_zombie_that_nobody_reaps_is_no_work(rebuild: list[str], tmp_path: Path, adopts: bool) -> None:
    """What was left behind has ended and stays a zombie of somebody else's: the run ends, and the claim is given back."""
    line = words(*rebuild, command=sh("sleep 60 & exit 3"))
    if not adopts:
        line = [sys.executable, "-c", _WITHOUT_ADOPTION, *line[3:]]
    started = Started(tmp_path, [sys.executable, "-c", _NEVER_REAPS, *line])
    code, _, errors = started.ended(timeout=20)
    assert code == 3
    assert LEFT in errors
    with Claimant(rebuild[2], ledger=rebuild[4]) as claims:
        assert claims.job("rebuild", stake="rebuild")(lambda run: "again")().value == "again"


OWN_GROUP = "timeout 60 sh -c 'echo $$ > pid; exec sleep 60'"


def test_max_run_stops_a_group_of_its_own(rebuild: list[str], tmp_path: Path) -> None:
    """timeout(1) makes one: it and what it runs are gone before the claim is given back."""
    started = Started(
        tmp_path, words(*rebuild, *SHORT, "--max-run", "1s", command=sh(f"{OWN_GROUP}; echo next"))
    )
    pid = int(started.marked("pid"))
    code, out, errors = started.ended()
    assert (code, out) == (124, ""), errors
    assert not alive(pid)


def test_kill_reaches_a_group_of_its_own(rebuild: list[str], tmp_path: Path) -> None:
    """A job of `set -m` that is deaf to TERM is killed after the grace."""
    text = "set -m; (trap '' TERM; echo $BASHPID > pid; while :; do sleep 0.05; done) & wait"
    started = Started(tmp_path, words(*rebuild, *SHORT, "--max-run", "1s", command=("bash", "-c", text)))
    pid = int(started.marked("pid"))
    assert started.ended()[0] == 124
    assert not alive(pid)


def test_a_signal_reaches_a_group_of_its_own(rebuild: list[str], tmp_path: Path) -> None:
    """The shell handles TERM once what it waits for has ended, which it does because it hears TERM as well."""
    started = Started(tmp_path, words(*rebuild, command=sh(f"trap 'exit 9' TERM; {OWN_GROUP}")))
    pid = int(started.marked("pid"))
    started.process.terminate()
    code, _, errors = started.ended(timeout=20)
    assert code == 9
    assert "claimant:" not in errors  # a shell says "Terminated"
    assert not alive(pid)


def test_what_is_left_in_a_group_of_its_own_is_stopped(rebuild: list[str], tmp_path: Path) -> None:
    """An orphan that has left the group is still the command's: it is ended before the claim is given back, and told."""
    started = Started(
        tmp_path, words(*rebuild, command=sh(f"{OWN_GROUP} & while [ ! -s pid ]; do sleep 0.02; done"))
    )
    code, _, errors = started.ended()
    pid = int((tmp_path / "pid").read_text())
    assert code == 0
    assert LEFT in errors
    assert not alive(pid)


def test_a_session_of_its_own_is_left_alone(rebuild: list[str], tmp_path: Path) -> None:
    """A session (setsid) says that it is to outlive the command: neither its end nor a signal of ours reaches it."""
    text = (
        "setsid sh -c 'echo $$ > pid; exec sleep 60' & while [ ! -s pid ]; do sleep 0.02; done; exec sleep 60"
    )
    started = Started(tmp_path, words(*rebuild, command=sh(text)))
    pid = int(started.marked("pid"))
    try:
        started.process.terminate()
        assert started.process.wait(20) == 128 + signal.SIGTERM
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        assert started.ended()[2] == ""


@pytest.mark.parametrize("jobs", ["", "set -m; "], ids=["our group", "a group of its own"])
def test_whom_the_command_did_not_start_is_left_alone(rebuild: list[str], tmp_path: Path, jobs: str) -> None:
    """A shell starts something, and becomes `claimant run`: that is our child, and none of our command's."""
    text = f'{jobs}sleep 60 >/dev/null 2>&1 & echo $! > stranger; exec "$@"'
    line = words(*rebuild, *SHORT, "--max-run", "1s", command=sh("(sleep 60 & exit 0); sleep 60"))
    started = Started(tmp_path, ["bash", "-c", text, "bash", *line])
    pid = int(started.marked("stranger"))
    try:
        assert started.ended()[0] == 124
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_signals_are_sent_on_while_the_rest_is_stopped(rebuild: list[str], tmp_path: Path) -> None:
    """The last of the group hears them as well, and a command that had failed by then has failed."""
    rest = "trap '' TERM; trap 'echo got > heard; exit' USR1; echo $$ > left; while :; do sleep 0.05; done"
    started = Started(
        tmp_path,
        words(*rebuild, command=sh(f'sh -c "{rest}" & while [ ! -s left ]; do sleep 0.02; done; exit 3')),
    )
    assert started.process.stderr is not None
    assert LEFT in started.process.stderr.readline()
    started.process.terminate()
    started.process.send_signal(signal.SIGUSR1)
    code, _, _ = started.ended()
    assert (code, started.marked("heard")) == (3, "got")
    with Claimant(rebuild[2], ledger=rebuild[4]) as claims:
        assert claims.ledger.jobs()[0].last_kind == "failed"


def test_a_process_may_be_called_anything(rebuild: list[str], tmp_path: Path) -> None:
    """Its name stands in the table before its state: one that looks like a zombie's line is none."""
    named = tmp_path / "a) Z 1 1 (b"
    named.write_text("#!/bin/sh\ntrap '' TERM\necho $$ > pid\nwhile :; do sleep 0.05; done\n")
    named.chmod(0o755)
    started = Started(
        tmp_path,
        words(*rebuild, *SHORT, command=sh(f"'{named}' & while [ ! -s pid ]; do sleep 0.02; done; exit 3")),
    )
    code, _, errors = started.ended()
    assert code == 3
    assert LEFT in errors
    gone(int((tmp_path / "pid").read_text()))


# The system does not let go of what was killed: a disk that does not answer, for a process in its middle.
_HELD = """
import sys
from claimant.cli import child, family, main
child.KILLED_S = 0.2
family.group_exists = lambda group: True
family.living = lambda group, strangers: [4_000_000]
main(sys.argv[1:])
"""


def test_what_cannot_be_killed_is_not_waited_for_for_ever(rebuild: list[str], tmp_path: Path) -> None:
    """After KILL there is a limit, and a line with what is still there."""
    line = words(*rebuild, *SHORT, "--max-run", "1s", command=("sleep", "60"))
    said = ended([sys.executable, "-c", _HELD, *line[3:]], tmp_path)
    assert said.returncode == 124
    assert "killed, and still there" in said.stderr
    assert "4000000" in said.stderr


def test_orphans_are_no_longer_ours_once_the_command_has_ended(rebuild: list[str], tmp_path: Path) -> None:
    """A daemon's parent is, in the end, whoever is the parent of orphans here: we are gone, and it lives."""
    text = "setsid sh -c 'echo $$ > pid; exec sleep 60' >/dev/null 2>&1 & while [ ! -s pid ]; do sleep 0.02; done"
    started = Started(tmp_path, words(*rebuild, command=sh(text)))
    assert started.ended() == (0, "", "")
    pid = int((tmp_path / "pid").read_text())
    try:
        wait(lambda: alive(pid), "the daemon to live", 1)
    finally:
        os.kill(pid, signal.SIGKILL)
