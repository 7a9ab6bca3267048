"""What `claimant run` says and hides: usage in the command line's own words, quiet, faults, pings, scripts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from claimant import Claimant
from claimant.cli import starting
from claimant.cli.hiding import place_shown
from claimant.cli.ping import ping
from claimant.cli.starting import in_options
from claimant.testing.faults import held_by_another
from tests.cli.commands import CLAIMANT, ended, words
from tests.cli.monitor import Monitor

Said = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """The embedded kind, in this test's folder."""
    return ["--store", f"sqlite:{tmp_path / 'leases.db'}", "--ledger", f"sqlite:{tmp_path / 'ledger.db'}"]


@pytest.fixture
def said(tmp_path: Path) -> Said:
    """A command line, to its end."""

    def start(line: list[str], **variables: str) -> Any:
        return ended(line, tmp_path, **variables)

    return start


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    made = Monitor()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("it needs every= or cron=", "it needs --every or --cron"),
        ('say absent="skip"', "say --on-absent skip"),
        ("write max_run='2h', please", "write --max-run 2h, please"),
        ("name one: Claimant ledger=", "name one: --ledger"),
        ("attempts= counts", "--attempts counts"),
        (
            "slot='x' and other=1 stay, and postgresql://h/x?store=1",
            "slot='x' and other=1 stay, and postgresql://h/x?store=1",
        ),
    ],
)
def test_advice_is_in_options(text: str, options: str) -> None:
    """What a refusal tells a programmer to write is told as the flag of it; other text stays as it is."""
    assert in_options(text) == options


def test_a_refusal_is_told_in_options(said: Said, places: list[str]) -> None:
    """The whole way: what a declaration refuses speaks of flags here."""
    found = said(words("x", *places, "--stake", "rebuild", "--tz", "UTC", "--every", "1h", command=("true",)))
    assert found.returncode == 125
    assert "--tz" in found.stderr
    assert "tz=" not in found.stderr


@pytest.mark.parametrize("rest", [["--", "echo", "hi"], ["--stake", "rebuild", "--", "echo"]])
def test_a_command_is_never_taken_for_the_name(said: Said, places: list[str], rest: list[str]) -> None:
    """Without a NAME before "--" nothing is started, and the line says where it stands."""
    found = said([*CLAIMANT, "run", *places, *rest])
    assert (found.returncode, found.stdout) == (125, "")
    assert "the job has no name. Write it before --" in found.stderr


def test_a_folder_that_is_new_is_told(said: Said, tmp_path: Path) -> None:
    """A slip in a path makes a new memory: one line names the folder, and none does where it was there."""
    line = words(
        *("x", "--store", f"sqlite:{tmp_path}/lease/l.db", "--ledger", f"sqlite:{tmp_path}/ledger.db"),
        *("--stake", "rebuild"),
        command=("true",),
    )
    first, second = said(line), said(line)
    assert first.returncode == second.returncode == 0
    assert first.stderr == (
        f"claimant: the store's folder {tmp_path}/lease is not there, and is made: what was recorded elsewhere is not known here\n"
    )
    assert second.stderr == ""


@pytest.mark.parametrize("wrong", [PermissionError(), RuntimeError()])
def test_a_folder_that_may_not_be_looked_at_is_the_stores_to_tell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: Exception
) -> None:
    """The look at it fails nothing, and claims nothing."""

    def look(_: Path) -> bool:
        raise wrong

    monkeypatch.setattr(Path, "is_dir", look)
    starting._tell_of_a_new_folder("store", "sqlite:/somebody/elses/leases.db")
    assert capsys.readouterr().err == ""


def test_quiet_says_nothing_of_a_skip(said: Said, places: list[str], tmp_path: Path) -> None:
    """So that cron mails nothing; the code stays, a failure is told, --json ends as ever, and -v wins over the file."""
    line = ["x", *places, "--stake", "rebuild", "-E", "9"]
    with Claimant(places[1], ledger=places[3]) as claims, held_by_another(claims, "x"):
        loud = said(words(*line, command=("true",)))
        quiet = said(words(*line, "-q", command=("true",)))
        summary = said(words(*line, "-q", "--json", command=("true",)))
        (tmp_path / "claimant.toml").write_text("[defaults]\nquiet = true\n")
        configured = said(words(*line, command=("true",)))
        over = said(words(*line, "-v", command=("true",)))
    for each in (loud, over):
        assert (each.returncode, each.stderr.count("skipped")) == (9, 1)
    for each in (quiet, configured):
        assert (each.returncode, each.stderr) == (9, "")
    [only] = summary.stderr.splitlines()
    assert json.loads(only)["kind"] == "held"
    assert "not found" in said(words(*line, "-q", command=("no-such-command",))).stderr


def test_attempts_may_be_configured_for_a_job(said: Said, places: list[str], tmp_path: Path) -> None:
    """The file's number holds where no flag says another; a job without slots has no use for it, and runs."""
    (tmp_path / "claimant.toml").write_text("[jobs.x]\nstake = 'rebuild'\nattempts = 2\n")
    fails = words("x", *places, "--slot", "a", "-E", "9", command=("sh", "-c", "exit 5"))
    assert [said(fails).returncode for _ in range(3)] == [5, 5, 9]
    assert said(words("x", *places, command=("true",))).returncode == 0


_BROKEN = """
import sys
from claimant.cli import main, starting
def broken(*_):
    raise ZeroDivisionError("redis://me:hunter2@h/0 is no number")
starting._claimant = broken
main(sys.argv[1:])
"""


def test_a_fault_of_ours_has_its_summary_and_its_ping(
    said: Said, places: list[str], monitor: Monitor
) -> None:
    """What nobody has foreseen ends with 125, a traceback without passwords, the summary as last line, and the monitor knows."""
    line = words("x", *places, "--stake", "rebuild", "--json", "--ping", monitor.url, command=("true",))
    found = said([sys.executable, "-c", _BROKEN, *line[3:]])
    assert found.returncode == 125
    *traceback, summary = found.stderr.splitlines()
    assert traceback[0].startswith("Traceback")
    assert "hunter2" not in found.stderr
    result = json.loads(summary)
    assert (result["kind"], result["exit_code"]) == ("fault", 125)
    assert result["reason"] == "a fault of claimant itself: ZeroDivisionError"
    assert monitor.asked == [("/ping/abc/fail", None)]


def test_a_duration_beyond_all_calendars_is_refused(said: Said, places: list[str]) -> None:
    """--max-run 9999999d: nobody's calendar or database counts that far, and the command does not run."""
    found = said(words("x", *places, "--stake", "rebuild", "--max-run", "9999999d", command=("env",)))
    assert found.returncode == 125
    assert "CLM010" in found.stderr
    assert found.stdout == ""


@pytest.mark.parametrize("named", [True, False], ids=["path", "PATH"])
def test_a_script_without_a_first_line_is_given_to_sh(
    said: Said, places: list[str], tmp_path: Path, named: bool
) -> None:
    """As shells, cron and execvp do it; with its arguments and its code."""
    script = tmp_path / "plain"
    script.write_text('echo "$0 $1"\nexit 4\n')
    script.chmod(0o755)
    line = words("x", *places, "--stake", "rebuild", command=(str(script) if named else "plain", "a b"))
    found = said(line, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert (found.returncode, found.stdout, found.stderr) == (4, f"{script} a b\n", "")


def test_what_is_no_script_is_not_given_to_sh(said: Said, places: list[str], tmp_path: Path) -> None:
    """Another machine's binary is not executable, and its bytes are no commands."""
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\0\0touch started\n")
    binary.chmod(0o755)
    found = said(words("x", *places, "--stake", "rebuild", command=(str(binary),)))
    assert found.returncode == 126
    assert "Exec format error" in found.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/se cret-hunter2",
        "http://user:hunter/hunter2@127.0.0.1:9/x",
        "http://user:hunter2@127.0.0.1:999999/hunter2",
        "http://[::1/hunter2",
        "http://127.0.0.1:hunter2/x",
        "http://host.invalid/hunter2",
        "http://user:x\x00@127.0.0.1:1/hunter2",
        "http://127.0.0.1:1/hunter2",
    ],
)
def test_a_ping_that_fails_quotes_nothing_of_its_url(url: str) -> None:
    """Whoever knows the path may ping, and a password may stand anywhere: the line has words of ours only."""
    wrong = ping(url, failed=False)
    assert wrong
    assert not re.search("hunter|cret|user", wrong)


@pytest.mark.parametrize("name", ["pasword", "passwrod", "pw", "apikey", "options", "x"])
def test_an_option_that_nobody_knows_is_hidden(name: str) -> None:
    """A slip of the pen in "password" does not show what follows it; what tells two places apart is shown."""
    assert place_shown(f"redis://h/0?{name}=hunter2&db=1") == f"redis://h/0?{name}=***&db=1"
    assert place_shown("redis://h/0?hunter2") == "redis://h/0?***"
