"""Starts `claimant run` as a real process, and looks at what it started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.support.servers import wait

CLAIMANT = (sys.executable, "-m", "claimant.cli")


def words(name: str, *options: str, command: Sequence[str]) -> list[str]:
    """The command line of `claimant run`."""
    return [*CLAIMANT, "run", name, *options, "--", *command]


def environ(**variables: str) -> dict[str, str]:
    """This process's environment, without anything of claimant's but what marks a test's processes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLAIMANT_")}
    marks = {name: value for name, value in os.environ.items() if name == "CLAIMANT_TEST_RUN"}
    return kept | marks | variables


def ended(line: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command line, to its end."""
    return subprocess.run(
        line,
        cwd=folder,
        env=environ(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Started:
    """One `claimant run` at work. `folder` is where its command leaves marks."""

    def __init__(self, folder: Path, arguments: Sequence[str], **variables: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            list(arguments),
            cwd=folder,
            env=environ(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def marked(self, name: str) -> str:
        """What the command wrote into a file of its folder, once it has."""
        path = self.folder / name
        wait(lambda: path.exists() and path.read_text().endswith("\n"), f"{name} to be written", 20)
        return path.read_text().strip()

    def ended(self, timeout: float = 30) -> tuple[int, str, str]:
        """Exit code, output, errors."""
        out, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, errors


def alive(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(*pids: int) -> None:
    """Wait for the end of processes."""
    for pid in pids:
        wait(lambda pid=pid: not alive(pid), f"process {pid} to be gone", 10)  # type: ignore[misc]
