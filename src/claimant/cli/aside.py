"""Standard error as `claimant run` may use it: where it cannot be written, nothing happens.

A reader that has gone, a full disk or a closed descriptor changes no exit code: that is the command's.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO, cast


class Aside(io.TextIOBase):
    """What is written goes to `stream`, or nowhere."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None else _nowhere()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's."""
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The stream's."""
        return self._stream.errors

    def fileno(self) -> int:
        """The stream's."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str, /) -> int:
        """Write, if it can be."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if it can be. Python does at its end, and would make 120 of the exit code."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def _nowhere() -> TextIO:
    from pathlib import Path

    return Path(os.devnull).open("w")


def step_aside() -> None:
    """From now on nothing of ours fails for what cannot be written, and no file of ours is taken for a standard one."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The first that we opened would be it. The command is started without it all the same: it is not inherited.
            os.open(os.devnull, os.O_RDWR)
    if not isinstance(sys.stderr, Aside):
        sys.stderr = cast("TextIO", Aside(sys.stderr))
