"""`claimant run` where what it says cannot be told: a closed or full standard error, a closed output. No code changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claimant import Claimant
from claimant.testing.faults import held_by_another
from tests.cli.commands import ended, environ, words

Unheard = Callable[..., subprocess.CompletedProcess[str]]
FULL = pytest.param(
    "2>/dev/full", marks=pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
)
LEAVES = ("sh", "-c", "sleep 60 & exit 0")


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    """The embedded kind, in this test's folder."""
    return ["--store", f"sqlite:{tmp_path / 'leases.db'}", "--ledger", f"sqlite:{tmp_path / 'ledger.db'}"]


@pytest.fixture
def unheard(places: list[str], tmp_path: Path) -> Unheard:
    """`claimant run` with a shell's redirection, to its end."""

    def start(how: str, *options: str, command: tuple[str, ...]) -> Any:
        line = words("rebuild", *places, *options, command=command)
        return ended(["sh", "-c", f'exec "$@" {how}', "sh", *line], tmp_path)

    return start


@pytest.mark.parametrize("how", [FULL, "2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("options", "command", "code"),
    [
        ((), ("sh", "-c", "exit 3"), 3),
        ((), ("true",), 0),
        ((), LEAVES, 0),
        (("--lifetime", "1ms"), ("true",), 125),
        (("--nosuch",), ("true",), 125),
        ((), ("no-such-command",), 127),
    ],
    ids=["failed", "ran", "left something", "refused", "bad usage", "not found"],
)
def test_the_code_stays_what_it_is(
    unheard: Unheard, how: str, options: tuple[str, ...], command: tuple[str, ...], code: int
) -> None:
    """A summary, a warning, a refusal that nobody can read: the exit code says the same."""
    assert unheard(how, "--stake", "rebuild", "--json", *options, command=command).returncode == code


def test_a_skip_that_nobody_hears_of_has_its_code(unheard: Unheard, places: list[str]) -> None:
    """Also that of -E."""
    with Claimant(places[1], ledger=places[3]) as claims, held_by_another(claims, "rebuild"):
        assert unheard("2>&-", "--stake", "rebuild", "-E", "9", command=("true",)).returncode == 9


def test_a_reader_that_has_gone_changes_no_code(places: list[str], tmp_path: Path) -> None:
    """As in `claimant run … 2>&1 | head`: the pipe is there, and nobody reads it."""
    reader, writer = os.pipe()
    os.close(reader)
    line = words("rebuild", *places, "--stake", "rebuild", "--json", command=("sh", "-c", "exit 7"))
    try:
        said = subprocess.run(line, cwd=tmp_path, env=environ(), stderr=writer, timeout=60, check=False)
    finally:
        os.close(writer)
    assert said.returncode == 7


CLOSED = "import os, sys\ntry:\n os.fstat({})\nexcept OSError:\n sys.exit(5)"


@pytest.mark.parametrize(("how", "number"), [("<&-", 0), (">&-", 1), ("2>&-", 2)])
def test_what_is_closed_is_closed_for_the_command(unheard: Unheard, how: str, number: int) -> None:
    """It gets the descriptors that we were given, and nothing of ours in their place."""
    command = (sys.executable, "-c", CLOSED.format(number))
    assert unheard(how, "--stake", "rebuild", command=command).returncode == 5


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_no_file_of_ours_is_taken_for_a_standard_one(unheard: Unheard, tmp_path: Path) -> None:
    """Where all three are closed, the first that we open would be them: a warning would go into a database."""
    command = ("sh", "-c", "for n in 0 1 2; do readlink /proc/$PPID/fd/$n; done > seen")
    unheard("<&- >&- 2>&-", "--stake", "rebuild", command=command)
    assert (tmp_path / "seen").read_text() == "/dev/null\n" * 3
