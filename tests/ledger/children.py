"""Starts child processes of these tests and ends them with the test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


class Child:
    """One `tests.ledger.child`."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ledger.child", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> Any:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended: {self.process.wait(10)}"
        return json.loads(line)

    def tell(self, word: str) -> None:
        """Give it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill it, if it still lives, and wait."""
        self.process.kill()
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def children(count: int, *words: str) -> Iterator[list[Child]]:
    """So many children, killed at the block's end."""
    started: list[Child] = []
    try:
        for _ in range(count):
            started.append(Child(*words))  # noqa: PERF401 - one that cannot start must not orphan those before it
        yield started
    finally:
        for child in started:
            child.end()
