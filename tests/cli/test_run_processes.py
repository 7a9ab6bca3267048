"""`claimant run` and what it starts: signals, groups, process 1, lost and absent stores."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from claimant import Claimant
from claimant._model.names import job_key
from claimant.testing.faults import SOMEBODY
from tests.cli.commands import Started, alive, environ, gone, words
from tests.face.outside import ask
from tests.support.servers import Server, wait

SHORT = ("--lifetime", "1s")


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """The embedded kind, in this test's folder."""
    return ["--store", f"sqlite:{tmp_path / 'leases.db'}", "--ledger", f"sqlite:{tmp_path / 'ledger.db'}"]


def sh(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text)


# A shell, a child of it and a grandchild, each of which says its process id.
FAMILY = "sh -c 'sleep 60 & echo $! > grandchild; echo $$ > child; wait' & echo $$ > shell; wait"
STUBBORN = "trap 'echo TERM > heard' TERM; echo $$ > pid; i=0; while [ $i -lt 1200 ]; do sleep 0.05; i=$((i+1)); done"


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT"])
def test_a_signal_reaches_the_whole_family(places: list[str], tmp_path: Path, name: str) -> None:
    """Shell, child and grandchild end; the exit code is the shell's; the slot stays open, because nothing has failed."""
    number = getattr(signal, f"SIG{name}")
    started = Started(
        tmp_path, words("rebuild", *places, "--stake", "rebuild", "--slot", "s", command=sh(FAMILY))
    )
    pids = [int(started.marked(each)) for each in ("shell", "child", "grandchild")]
    started.process.send_signal(number)
    code, _, errors = started.ended()
    assert code == 128 + number, errors
    gone(*pids)
    with Claimant(places[1], ledger=places[3]) as claims:
        [row] = claims.ledger.jobs()
        assert (row.last_kind, row.failed) == ("stopped", 0)
        again = claims.job("rebuild", stake="rebuild")(lambda run: run.slot)
        assert again.at("s")().value == "s"


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_signals_of_the_users_own_are_sent_on(
    places: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    """USR1 and USR2 mean what the command makes of them, and end nothing of ours."""
    text = f"trap 'echo got > heard' {number.name.removeprefix('SIG')}; echo $$ > pid; while [ ! -e heard ]; do sleep 0.05; done; exit 4"
    started = Started(tmp_path, words("rebuild", *places, "--stake", "rebuild", command=sh(text)))
    started.marked("pid")
    started.process.send_signal(number)
    assert started.ended()[0] == 4
    with Claimant(places[1], ledger=places[3]) as claims:
        assert claims.ledger.jobs()[0].last_kind == "failed"


def test_a_command_that_ends_well_after_term_is_a_success(places: list[str], tmp_path: Path) -> None:
    """A graceful end is an end: exit code 0, recorded as done."""
    text = "trap 'exit 0' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    started = Started(tmp_path, words("rebuild", *places, "--stake", "rebuild", command=sh(text)))
    started.marked("pid")
    started.process.terminate()
    assert started.ended()[0] == 0
    with Claimant(places[1], ledger=places[3]) as claims:
        assert claims.ledger.jobs()[0].last_kind == "ran"


def test_a_signal_before_the_command_starts_none(places: list[str], tmp_path: Path) -> None:
    """TERM while the claim is waited for: nothing is started, the exit code says so, and the claim is given back."""
    frozen = subprocess.Popen(
        [sys.executable, "-c", _SLOW_STORE.format(*words("x", command=()))],
        cwd=tmp_path,
        env=environ(PLACES="\n".join(places)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert frozen.stdout is not None
    assert frozen.stdout.readline() == "claiming\n"
    frozen.terminate()
    _, errors = frozen.communicate(timeout=20)
    assert frozen.returncode == 128 + signal.SIGTERM, errors
    assert not (tmp_path / "started").exists()
    with Claimant(places[1], ledger=places[3]) as claims:
        assert claims.job("rebuild", stake="rebuild")(lambda run: 1)().value == 1


def test_an_end_is_not_waited_for_where_a_store_is(places: list[str], tmp_path: Path) -> None:
    """TERM while an absent store is waited for: the wait is over at once, and nothing is started."""
    started = Started(
        tmp_path,
        words(
            *(
                "rebuild",
                "--store",
                "redis://127.0.0.1:1/0?deadline=100ms",
                *places[2:],
                "--stake",
                "rebuild",
            ),
            *("--on-absent", "wait:5m"),
            command=("touch", "started"),
        ),
    )
    assert started.process.stderr is not None
    assert "the lease store is absent" in started.process.stderr.readline()
    started.process.terminate()
    assert started.ended(timeout=20)[0] == 128 + signal.SIGTERM
    assert not (tmp_path / "started").exists()


# A signal between the look at what has arrived and the start of the command.
_BETWEEN = """
import os, signal
from claimant.cli.child import Child, Signals
with Signals() as signals:
    os.kill(os.getpid(), signal.{})
    assert signals.arrived
    child = Child(["sleep", "60"], dict(os.environ), signals)
    while not child.wait(0.05):
        pass
    print(child.code, child.interrupted)
"""


@pytest.mark.parametrize(("name", "asked"), [("SIGTERM", True), ("SIGUSR1", False)])
def test_no_signal_is_lost_before_the_command_is_there(name: str, asked: bool) -> None:
    """What arrives just before the command is started is sent on to it."""
    said = subprocess.run(
        [sys.executable, "-c", _BETWEEN.format(name)],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert said.stdout == f"{128 + getattr(signal, name)} {asked}\n", said.stderr


# The whole command, with a store that takes its time: the signal arrives meanwhile.
_SLOW_STORE = """
import os, sys, time
from claimant.stores.sqlite import SqliteStore
from claimant.cli import main
port = SqliteStore.blocking
def slow(self):
    made = port(self)
    call = made.call
    def later(request):
        if type(request).__name__ == "Create":
            print("claiming", flush=True)
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                time.sleep(0.05)
        return call(request)
    made.call = later
    return made
SqliteStore.blocking = slow
main(["run", "rebuild", *os.environ["PLACES"].split("\\n"), "--stake", "rebuild", "--", "touch", "started"])
"""


def test_what_the_command_leaves_behind_is_stopped(places: list[str], tmp_path: Path) -> None:
    """The claim covers the group: what outlives its leader is ended before the claim is given back, and told."""
    text = (
        "(trap '' TERM; sleep 60 & echo $! > left; wait) & while [ ! -e left ]; do sleep 0.02; done; exit 3"
    )
    started = Started(tmp_path, words("rebuild", *places, "--stake", "rebuild", *SHORT, command=sh(text)))
    left = int(started.marked("left"))
    code, _, errors = started.ended()
    assert code == 3
    assert "processes that it started have not" in errors
    gone(left)


def test_a_killed_leader_takes_nobody_with_it_and_nobody_survives(places: list[str], tmp_path: Path) -> None:
    """The shell is killed outright: its child and grandchild are ended, and the run has failed."""
    started = Started(tmp_path, words("rebuild", *places, "--stake", "rebuild", command=sh(FAMILY)))
    shell, child, grandchild = (int(started.marked(each)) for each in ("shell", "child", "grandchild"))
    os.kill(shell, signal.SIGKILL)
    assert started.ended()[0] == 128 + signal.SIGKILL
    gone(child, grandchild)


def test_max_run_stops_a_command_that_ignores_term(places: list[str], tmp_path: Path) -> None:
    """TERM first, KILL a quarter of the lifetime later; exit code 124; the slot stays open."""
    started = Started(
        tmp_path,
        words("rebuild", *places, "--stake", "rebuild", *SHORT, "--max-run", "1s", command=sh(STUBBORN)),
    )
    pid = int(started.marked("pid"))
    code, _, errors = started.ended()
    assert (code, started.marked("heard")) == (124, "TERM")
    assert errors.endswith("exit code 124\n")
    gone(pid)


def hold(url: str, name: str) -> None:
    """Put somebody else's claim in the place of ours."""
    ask(url, "SET", job_key("", name, ""), SOMEBODY.encode(), "PX", 60_000)


def test_a_lost_claim_stops_an_append_within_the_lifetime(
    pg_dsn: str, valkey_url: str, tmp_path: Path
) -> None:
    """The store answers that somebody else holds: the command, deaf to TERM, is gone within a lifetime; exit code 75."""
    sqlite = f"sqlite:{tmp_path / 'ledger.db'}"
    places = ("--store", valkey_url, "--ledger", sqlite)
    started = Started(
        tmp_path,
        words(
            "load", *places, "--stake", "append", "--guard", "index", "--lifetime", "2s", command=sh(STUBBORN)
        ),
    )
    pid = int(started.marked("pid"))
    hold(valkey_url, "load")
    began = time.monotonic()
    gone(pid)
    assert time.monotonic() - began < 2.0
    code, _, errors = started.ended()
    assert code == 75
    assert started.marked("heard") == "TERM"
    assert "exit code 75" in errors


def test_a_lost_claim_lets_a_rebuild_go_on_with_a_warning(valkey_url: str, tmp_path: Path) -> None:
    """Where a duplicate only wastes work the command goes on, and one line says what has happened."""
    started = Started(
        tmp_path,
        words(
            *("load", "--store", valkey_url, "--ledger", f"sqlite:{tmp_path / 'ledger.db'}"),
            *("--stake", "rebuild", *SHORT),
            command=sh("echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done; echo done"),
        ),
    )
    started.marked("pid")
    hold(valkey_url, "load")
    seen = ""
    assert started.process.stderr is not None
    while "lease.lost" not in seen and "claim" not in seen:
        seen += started.process.stderr.readline()
    (tmp_path / "go").touch()
    code, out, _ = started.ended()
    assert (code, out) == (0, "done\n")
    with Claimant(valkey_url, ledger=f"sqlite:{tmp_path / 'ledger.db'}") as claims:
        [row] = claims.ledger.runs()
        assert (row.kind, row.claim) == ("ran", "lost")


def test_a_store_that_restarts_stops_nothing(private_valkey: Callable[..., Server], tmp_path: Path) -> None:
    """The command survives a store that goes and comes back empty, whatever its stake."""
    server = private_valkey()
    places = ("--store", server.url, "--ledger", f"sqlite:{tmp_path / 'ledger.db'}")
    started = Started(
        tmp_path,
        words(
            *("load", *places, "--stake", "append", "--guard", "index", *SHORT),
            command=sh("echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done; echo done"),
        ),
    )
    pid = int(started.marked("pid"))
    server.kill()
    until = time.monotonic() + 2.0  # two lifetimes
    while time.monotonic() < until:
        assert alive(pid)
        time.sleep(0.05)
    server.restart()
    key = job_key("", "load", "")
    wait(lambda: ask(server.url, "EXISTS", key) == 1, "the claim to be made anew", 20)
    (tmp_path / "go").touch()
    assert started.ended()[:2] == (0, "done\n")


def test_an_absent_store_stops_a_command_whose_policy_says_so_in_time(
    private_valkey: Callable[..., Server], tmp_path: Path
) -> None:
    """--on-absent skip: the command is gone before its lifetime is over, though the store says nothing at all."""
    server = private_valkey()
    places = ("--store", server.url, "--ledger", f"sqlite:{tmp_path / 'ledger.db'}")
    started = Started(
        tmp_path,
        words(
            "load",
            *places,
            "--stake",
            "scan",
            "--on-absent",
            "skip",
            "--lifetime",
            "3s",
            command=sh(STUBBORN),
        ),
    )
    pid = int(started.marked("pid"))
    server.pause()
    began = time.monotonic()
    gone(pid)
    assert time.monotonic() - began < 3.0
    code, _, errors = started.ended()
    server.resume()
    assert code == 75, errors


def test_a_killed_wrapper_leaves_a_claim_that_lapses(places: list[str], tmp_path: Path) -> None:
    """After SIGKILL nobody renews: the next start runs within the lifetime."""
    started = Started(
        tmp_path,
        words("rebuild", *places, "--stake", "rebuild", *SHORT, command=sh("echo $$ > pid; exec sleep 60")),
    )
    pid = int(started.marked("pid"))
    started.process.kill()
    started.process.wait()
    try:
        with Claimant(places[1], ledger=places[3]) as claims:
            again = claims.job("rebuild", stake="rebuild", held="wait:10s")(lambda run: "ran")
            assert again().value == "ran"
    finally:
        os.kill(pid, signal.SIGKILL)
        started.ended()


# What process 1 has to do with orphans, without being process 1: every user may be a subreaper (prctl(2)).
_SUBREAPER = """
import ctypes, os, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
from claimant.cli import main
main(sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a subreaper is Linux's")
def test_orphans_are_reaped(places: list[str], tmp_path: Path) -> None:
    """Whose parent has ended and who end themselves leave no zombie, while the command runs."""
    text = (
        "(setsid sleep 0.05 & exit 0); (sleep 0.05 & exit 0); sleep 0.4; "
        "ps -A -o ppid=,stat= | awk -v us=$PPID '$1 == us && $2 ~ /Z/' | wc -l > zombies"
    )
    line = words("rebuild", *places, "--stake", "rebuild", command=sh(text))
    started = Started(tmp_path, [sys.executable, "-c", _SUBREAPER, *line[3:]])
    assert started.ended() == (0, "", "")
    assert started.marked("zombies") == "0"


@pytest.mark.skipif(
    os.geteuid() != 0, reason="a PID namespace needs root; orphans are tested above, without one"
)
def test_process_one_forwards_signals_and_reaps_orphans(places: list[str], tmp_path: Path) -> None:
    """As process 1 of a container: TERM reaches the command, and no zombie is left while it runs."""
    text = (
        "(sleep 0.05 & exit 0); (sleep 0.05 & exit 0); sleep 0.4; ps -A -o stat= | grep -c Z > zombies; "
        "trap 'exit 9' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    )
    started = Started(
        tmp_path,
        [
            *("unshare", "--pid", "--fork", "--mount-proc"),
            *words("rebuild", *places, "--stake", "rebuild", command=sh(text)),
        ],
    )
    assert int(started.marked("pid")) < 100  # inside, numbers begin anew
    assert started.marked("zombies") == "0"
    [inside] = psutil.Process(started.process.pid).children()
    inside.terminate()
    assert started.ended()[0] == 9


def test_nohup_is_kept(places: list[str], tmp_path: Path) -> None:
    """A HUP that we were started deaf to stays unheard, by us and by the command."""
    text = "echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done; exit 6"
    started = Started(tmp_path, ["nohup", *words("rebuild", *places, "--stake", "rebuild", command=sh(text))])
    pid = int(started.marked("pid"))
    started.process.send_signal(signal.SIGHUP)
    os.kill(pid, signal.SIGHUP)
    (tmp_path / "go").touch()
    assert started.ended()[0] == 6


def test_pipes_break_as_ever(places: list[str], tmp_path: Path) -> None:
    """What Python ignores for itself, SIGPIPE, is as it was for the command."""
    started = Started(
        tmp_path,
        words(
            "rebuild",
            *places,
            "--stake",
            "rebuild",
            command=("bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"),
        ),
    )
    assert started.ended()[:2] == (0, "y\n141\n")


def test_the_terminal_is_the_commands_while_it_runs(places: list[str], tmp_path: Path) -> None:
    """In the foreground the command reads the keyboard, and Ctrl-C is its: it ends, nothing has failed."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        line = words(
            "rebuild", *places, "--stake", "rebuild", command=sh("read line; echo heard $line; exec sleep 60")
        )
        os.execve(line[0], line, environ())
    seen = b""

    def read_until(what: bytes) -> None:
        nonlocal seen
        until = time.monotonic() + 20
        while what not in seen:
            assert time.monotonic() < until, seen
            if select.select([master], [], [], 0.1)[0]:
                try:
                    seen += os.read(master, 4_096)
                except OSError:
                    return

    wait(lambda: os.tcgetpgrp(master) not in (pid, 0), "the terminal to be handed over", 20)
    os.write(master, b"hello\n")
    read_until(b"heard hello")
    os.write(master, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(master)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGINT
    with Claimant(places[1], ledger=places[3]) as claims:
        assert claims.ledger.jobs()[0].last_kind == "stopped"
