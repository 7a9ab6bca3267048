"""`claimant run`: exit codes, what the command is told, and what is said of a start that did not run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from claimant import Claimant
from claimant.testing.faults import held_by_another
from tests.cli.commands import Started, ended, environ, words
from tests.cli.monitor import Monitor
from tests.support.servers import wait

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """The embedded kind, in this test's folder."""
    return ["--store", f"sqlite:{tmp_path / 'leases.db'}", "--ledger", f"sqlite:{tmp_path / 'ledger.db'}"]


@pytest.fixture
def claims(places: list[str]) -> Iterator[Claimant]:
    """The same places, from the other side."""
    with Claimant(places[1], ledger=places[3]) as made:
        yield made


@pytest.fixture
def run(places: list[str], tmp_path: Path) -> Run:
    """`claimant run NAME OPTIONS -- COMMAND`, to its end."""

    def start(*options: str, command: tuple[str, ...] = ("true",), **variables: str) -> Any:
        return ended(words("rebuild", *places, *options, command=command), tmp_path, **variables)

    return start


def sh(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text)


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        (("true",), 0, None),
        (sh("exit 3"), 3, "exit code 3"),
        (sh("kill -9 $$"), 137, "killed by SIGKILL"),
        (sh("kill -40 $$"), 168, "killed by signal 40"),
        (("",), 127, "the command is empty"),
        (("no-such-command",), 127, "no-such-command: not found"),
        (("/etc/passwd",), 126, "/etc/passwd: Permission denied"),
        (("/etc",), 126, None),
    ],
    ids=[
        "success",
        "exit code",
        "signal",
        "real-time signal",
        "empty",
        "not found",
        "not executable",
        "folder",
    ],
)
def test_the_exit_code_is_the_commands(
    run: Run, claims: Claimant, command: tuple[str, ...], code: int, reason: str | None
) -> None:
    """Its own code, 128 and the signal, 126 or 127 as a shell has them; and the ledger says why it failed."""
    said = run("--stake", "rebuild", command=command)
    assert (said.returncode, said.stdout) == (code, "")
    [row] = claims.ledger.jobs()
    assert (row.runs, row.failed) == (1, int(code != 0))
    if reason is not None:
        assert reason in row.last_reason
    if code in (126, 127):
        assert said.stderr.startswith("claimant: ")
    else:
        assert said.stderr == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "money    money moves; add --guard TEXT"),
        (("--stake", "monney"), "'monney' is not a stake; did you mean money?"),
        (
            ("--stake", "rebuild", "--force"),
            "--force runs a slot again that is closed, and this start has no slot",
        ),
        (
            ("--stake", "rebuild", "--attempts", "2"),
            "--attempts counts the failed runs of one slot, and this start has no slot",
        ),
        (("--stake", "rebuild", "--store", "memory:"), "a store in memory is seen by this one process"),
        (("--stake", "rebuild", "--store", "rediss://h?ssl_cert_reqs=bogus"), "CLM062: rediss://h:6379"),
        (("--stake", "rebuild", "--slot", "0001-01-01T00:00:00+14:00"), "CLM039"),
        (("--stake", "rebuild", "--slot", "9999-12-31T23:59:59-10:00"), "CLM039"),
        (("--stake", "money"), "--guard TEXT"),
        (("--stake", "append"), "--guard TEXT"),
        (("--stake", "notify"), "CLM022"),
        (("--stake", "money", "--guard", "  "), "CLM048"),
        (("--stake", "rebuild", "--every", "soon"), "CLM010"),
        (("--stake", "rebuild", "--every", "1h", "--cron", "0 * * * *"), "CLM019"),
        (("--stake", "rebuild", "--cron", "never"), "CLM019"),
        (("--stake", "rebuild", "--lifetime", "1ms"), "CLM011"),
        (("--stake", "rebuild", "--on-loss", "panic"), "CLM016"),
        (("--stake", "rebuild", "--on-absent", "panic"), "CLM026"),
        (("--stake", "rebuild", "--slot", " "), "CLM039"),
        (("--stake", "rebuild", "-E", "256"), "256"),
        (("--stake", "rebuild", "--nosuch"), "--nosuch"),
        (("--stake", "rebuild", "--store", "tape:drive"), "CLM060"),
    ],
)
def test_what_is_ours_ends_with_125(run: Run, options: tuple[str, ...], says: str) -> None:
    """A command line that cannot be made safe starts nothing, says what to write instead, and has the code for that."""
    said = run(*options, command=("touch", "started"))
    assert said.returncode == 125
    assert says in said.stderr
    assert "Traceback" not in said.stderr


def test_no_command_is_bad_usage(places: list[str], tmp_path: Path) -> None:
    """Where nothing stands after --, nothing can be run."""
    said = subprocess.run(
        words("rebuild", *places, "--stake", "rebuild", command=()),
        env=environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 125
    assert "-- COMMAND" in said.stderr


def test_the_command_is_told_what_it_is(run: Run) -> None:
    """Name, run, slot, operation, lease and deadline are in its environment; what an outer run was told is not."""
    said = run(
        *("--stake", "rebuild", "--slot", "2026-11-30T22:00:00+01:00", "--max-run", "2h"),
        command=("env",),
        CLAIMANT_SLOT="outer",
        CLAIMANT_RUN_ID="outer",
    )
    told = dict(line.split("=", 1) for line in said.stdout.splitlines() if line.startswith("CLAIMANT_"))
    told.pop("CLAIMANT_TEST_RUN", None)
    assert re.fullmatch("[0-9a-f]{32}", told.pop("CLAIMANT_RUN_ID"))
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", told.pop("CLAIMANT_DEADLINE"))
    assert told == {
        "CLAIMANT_NAME": "rebuild",
        "CLAIMANT_SLOT": "2026-11-30T21:00:00Z",
        "CLAIMANT_OPERATION": "rebuild(slot=2026-11-30T21:00:00Z)",
        "CLAIMANT_LEASE": "claimant::rebuild",
    }
    bare = run("--stake", "rebuild", command=("env",), CLAIMANT_SLOT="outer", CLAIMANT_OPERATION="outer")
    assert "CLAIMANT_SLOT" not in bare.stdout
    assert "CLAIMANT_OPERATION" not in bare.stdout


def test_input_and_output_are_the_commands(places: list[str], tmp_path: Path) -> None:
    """What it reads and writes passes through untouched, bytes that are no text as well."""
    data = bytes(range(256)) * 40
    said = subprocess.run(
        words("rebuild", *places, "--stake", "rebuild", command=("cat",)),
        input=data,
        env=environ(),
        capture_output=True,
        check=False,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, data, b"")


def test_a_skip_is_one_line_and_a_code_of_its_own_where_asked(
    run: Run, claims: Claimant, places: list[str], tmp_path: Path
) -> None:
    """Who holds it, since when, for how long, how often in a row; exit 0, or what -E says."""
    holder = Started(
        tmp_path,
        words(
            "rebuild",
            *places,
            "--stake",
            "rebuild",
            command=sh("echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done"),
        ),
    )
    holder.marked("pid")
    first = run("--stake", "rebuild", command=("touch", "started"))
    second = run("--stake", "rebuild", "-E", "7", command=("touch", "started"))
    (tmp_path / "go").touch()
    assert holder.ended()[0] == 0
    assert (first.returncode, second.returncode) == (0, 7)
    line = re.compile(
        r"claimant: rebuild skipped: held by \S+:\d+ for [\d.]+ m?s, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ, "
        r"lease [\d.]+ s left; (\w+) skip in a row\n"
    )
    for said, streak in ((first, "1st"), (second, "2nd")):
        match = line.fullmatch(said.stderr)
        assert match is not None, said.stderr
        assert match[1] == streak
    assert not (tmp_path / "started").exists()


def test_a_skip_says_what_is_known_where_the_holder_is_unknown(run: Run, claims: Claimant) -> None:
    """A holder that the ledger has no run of is named all the same."""
    with held_by_another(claims, "rebuild"):
        said = run("--stake", "rebuild")
    assert re.fullmatch(
        r"claimant: rebuild skipped: held by somebody-else:1, lease \S+ \w+ left; 1st skip in a row\n",
        said.stderr,
    )


def test_a_slot_is_done_once_and_forced_again(run: Run, claims: Claimant) -> None:
    """A slot that is done is a skip; --force runs it again, and the ledger says that it was forced."""
    options = ("--stake", "rebuild", "--slot", "build-7")
    assert run(*options, command=("echo", "1")).stdout == "1\n"
    again = run(*options, "-E", "4", command=("echo", "2"))
    assert (again.returncode, again.stdout) == (4, "")
    assert again.stderr == "claimant: rebuild skipped: slot build-7 was done before\n"
    assert run(*options, "--force", command=("echo", "3")).stdout == "3\n"
    assert [each.forced for each in claims.ledger.runs()] == [False, True]


@pytest.mark.parametrize("schedule", [("--every", "1d"), ("--cron", "0 0 1 1 *", "--tz", "Europe/Berlin")])
def test_a_schedule_has_slots(run: Run, schedule: tuple[str, ...]) -> None:
    """Each slot of a period or of a cron expression is run once."""
    codes = [run("--stake", "rebuild", "-E", "9", *schedule).returncode for _ in range(2)]
    assert codes == [0, 9]


def test_failed_attempts_are_tried_again_as_often_as_allowed(run: Run) -> None:
    """A failed slot is closed, unless --attempts leaves it a try; what is given up is told as that."""
    options = ("--stake", "rebuild", "--slot", "a", "--attempts", "2", "-E", "9")
    assert [run(*options, command=sh("exit 5")).returncode for _ in range(2)] == [5, 5]
    said = run(*options, command=sh("exit 5"))
    assert said.returncode == 9
    assert "rebuild given up before: slot a: 2 of 2 attempts used up" in said.stderr


def test_observe_runs_what_is_held(run: Run, claims: Claimant) -> None:
    """Nothing is stopped; what would have been is one line, and counted."""
    with held_by_another(claims, "rebuild"):
        said = run("--stake", "rebuild", "--observe", command=("echo", "ran"))
    assert (said.returncode, said.stdout) == (0, "ran\n")
    assert "would have been skipped as held" in said.stderr
    [row] = claims.ledger.jobs()
    assert (row.would_skip, row.mode) == (1, "observe")


def test_a_summary_for_machines_is_the_last_line(run: Run, claims: Claimant) -> None:
    """--json ends with one object: the outcome, the exit code, the command, how long it took."""
    ran = json.loads(run("--stake", "rebuild", "--json").stderr.splitlines()[-1])
    assert (ran["kind"], ran["claim"], ran["exit_code"], ran["command"], ran["pinged"]) == (
        "ran",
        "kept",
        0,
        ["true"],
        None,
    )
    assert ran["took_ms"] >= 0
    failed = json.loads(run("--stake", "rebuild", "--json", command=sh("exit 3")).stderr.splitlines()[-1])
    assert (failed["kind"], failed["exit_code"], failed["reason"]) == ("failed", 3, "exit code 3")
    with held_by_another(claims, "rebuild"):
        skipped = json.loads(run("--stake", "rebuild", "--json").stderr.splitlines()[-1])
    assert (skipped["kind"], skipped["details"]["holder"]) == ("held", "somebody-else:1")


@pytest.mark.parametrize(
    ("command", "code", "kind"),
    [(sh("kill -TERM $PPID; exec sleep 60"), 143, "stopped"), (("no-such-command",), 127, "failed")],
)
def test_a_summary_of_what_did_not_succeed_names_its_run(
    run: Run, claims: Claimant, command: tuple[str, ...], code: int, kind: str
) -> None:
    """What was asked to end has not failed; either way the summary is the ledger's run, with all keys of an outcome."""
    found = json.loads(
        run("--stake", "rebuild", "--slot", "7", "--json", command=command).stderr.splitlines()[-1]
    )
    [row] = claims.ledger.runs()
    assert (found["kind"], found["exit_code"], found["slot"]) == (kind, code, "7")
    assert (found["run_id"], found["kind"], found["claim"]) == (row.run_id, row.kind, row.claim)
    assert {"completed", "retry_in", "details", "answers"} < set(found)


def test_a_summary_is_last_whatever_went_wrong(run: Run, places: list[str], monitor: Monitor) -> None:
    """A ledger that is away to the end is told of before it; a start that is refused has one too, and a monitor hears of it."""
    away = run("--stake", "rebuild", "--json", "--ledger", "sqlite:/proc/none/ledger.db").stderr.splitlines()
    assert "ledger.lost" in away[-2]
    assert json.loads(away[-1])["kind"] == "ran"
    said = run("--stake", "rebuild", "--lifetime", "1ms", "--json", "--ping", monitor.url)
    first, summary = said.stderr.splitlines()
    assert first.startswith("claimant: CLM011")
    found = json.loads(summary)
    assert (found["kind"], found["exit_code"], found["run_id"]) == ("refused", 125, None)
    assert monitor.asked == [("/ping/abc/fail", None)]


_BROKEN = """
import sys
from claimant.cli import main, starting
def broken(*_):
    raise ZeroDivisionError("a fault of ours")
starting._claimant = broken
main(sys.argv[1:])
"""


def test_a_fault_of_ours_is_no_exit_code_of_the_command(places: list[str]) -> None:
    """What nobody has foreseen ends with 125, and with its traceback."""
    line = words("rebuild", *places, "--stake", "rebuild", command=("true",))
    said = subprocess.run(
        [sys.executable, "-c", _BROKEN, *line[3:]], env=environ(), capture_output=True, text=True, check=False
    )
    assert said.returncode == 125
    assert said.stderr.endswith("ZeroDivisionError: a fault of ours\n")


def test_in_a_container_nothing_is_a_default(tmp_path: Path) -> None:
    """Store and ledger have to be named there; the line says with which options, and nothing is started."""
    for places in ((), ("--store", "sqlite:leases.db")):
        said = subprocess.run(
            words("rebuild", *places, "--stake", "rebuild", command=("touch", "started")),
            cwd=tmp_path,
            env=environ(KUBERNETES_SERVICE_HOST="10.0.0.1"),
            capture_output=True,
            text=True,
            check=False,
        )
        missing = "ledger" if places else "store"
        assert said.returncode == 125
        assert said.stderr.startswith(f"claimant: CLM051: no {missing} is named")
        assert f"--{missing} URL or CLAIMANT_{missing.upper()}" in said.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_attested_guard_is_shown_as_attested(run: Run, claims: Claimant) -> None:
    """--guard is believed, recorded and shown, and is no unused guard."""
    said = run("--stake", "money", "--guard", "unique index one_debit", "--slot", "7")
    assert (said.returncode, said.stderr) == (0, "")
    [row] = claims.ledger.jobs()
    assert (row.stake, row.guarded, row.guard) == ("money", True, "attested: unique index one_debit")


def test_an_absent_store_follows_the_policy(run: Run, places: list[str]) -> None:
    """Without the store a rebuild goes on with one line; --on-absent skip does not start it."""
    gone = ("--store", "redis://127.0.0.1:1/0?deadline=100ms")
    said = run("--stake", "rebuild", *gone, command=("echo", "ran"))
    assert (said.returncode, said.stdout) == (0, "ran\n")
    assert "runs without a claim" in said.stderr
    said = run("--stake", "rebuild", *gone, "--on-absent", "skip", "-E", "8", command=("echo", "ran"))
    assert (said.returncode, said.stdout) == (8, "")
    assert said.stderr.splitlines()[-1].startswith("claimant: rebuild skipped: the lease store is absent")


def test_a_configured_job_needs_no_options(
    run: Run, tmp_path: Path, places: list[str], claims: Claimant
) -> None:
    """Stake, schedule and habits come from the file; a flag wins over it."""
    (tmp_path / "claimant.toml").write_text(
        '[defaults]\nskip-exit = 5\nlifetime = "20s"\n[jobs.rebuild]\nstake = "scan"\nevery = "1d"\n'
    )
    assert run().returncode == 0
    assert run().returncode == 5
    assert run("-E", "6").returncode == 6
    [row] = claims.ledger.jobs()
    assert (row.stake, row.lifetime_ms, row.schedule) == ("scan", 20_000, "every 24 h")


# -- the monitor


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    made = Monitor()
    yield made
    made.close()


def test_a_monitor_hears_of_successes_and_failures_and_never_of_a_skip(
    run: Run, claims: Claimant, monitor: Monitor
) -> None:
    """Only work that was done keeps the dead-man's switch quiet."""
    assert run("--stake", "rebuild", "--ping", f"{monitor.url}?a=b").returncode == 0
    assert run("--stake", "rebuild", "--ping", monitor.url, command=sh("exit 3")).returncode == 3
    with held_by_another(claims, "rebuild"):
        assert run("--stake", "rebuild", "--ping", monitor.url).returncode == 0
    assert monitor.asked == [("/ping/abc?a=b", None), ("/ping/abc/fail", None)]


def test_a_password_is_for_the_monitor_that_it_was_given_to(run: Run, monitor: Monitor) -> None:
    """Where it redirects to another one, that one gets none."""
    other = Monitor()
    monitor.elsewhere = other.url
    url = monitor.url.replace("http://", "http://me:hunter2@")
    assert run("--stake", "rebuild", "--ping", url).stderr == ""
    assert monitor.asked == [("/ping/abc", "Basic bWU6aHVudGVyMg==")]
    assert other.asked == [("/ping/abc", None)]
    other.close()


def test_a_signal_while_the_monitor_is_told_changes_no_exit_code(
    places: list[str], tmp_path: Path, monitor: Monitor
) -> None:
    """The work is done, and that is what the exit code says."""
    monitor.slow = threading.Event()
    line = words("rebuild", *places, "--stake", "rebuild", "--ping", monitor.url, command=("true",))
    started = Started(tmp_path, line)
    wait(lambda: bool(monitor.asked), "the monitor to be asked", 20)
    started.process.terminate()
    started.process.send_signal(signal.SIGINT)
    time.sleep(0.1)  # a real process, which has to hear it while it waits
    monitor.slow.set()
    assert started.ended() == (0, "", "")


def test_a_monitor_that_fails_is_one_line(run: Run, monitor: Monitor) -> None:
    """It changes no exit code, and no password of its URL is shown."""
    refusing = Monitor(status=500)
    url = refusing.url.replace("http://", "http://me:hunter2@")
    for target, says in (
        (url, "it answered 500"),
        ("http://me:hunter2@127.0.0.1:1/x", "Connection refused"),
        ("ftp://me:hunter2@127.0.0.1/x", "https://"),
        ("http://", "https://"),
    ):
        said = run("--stake", "rebuild", "--ping", target, "--json")
        assert said.returncode == 0
        first, summary = said.stderr.splitlines()
        assert first.startswith("claimant: the ping was not delivered: ")
        assert says in first
        assert json.loads(summary)["pinged"] is False
        assert "hunter2" not in said.stderr
    assert refusing.asked == [("/ping/abc", "Basic bWU6aHVudGVyMg==")]
    refusing.close()
