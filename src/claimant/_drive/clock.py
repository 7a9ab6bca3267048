"""The holder's clock: monotonic, counting the time a machine was suspended where the platform has such a clock.

A clock that stops with the machine would let a holder believe, after a resume, in a window that has passed.
"""

from __future__ import annotations

import time

# Linux: CLOCK_BOOTTIME counts suspend (man 2 clock_gettime). macOS: CLOCK_MONOTONIC does so already.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None) or getattr(time, "CLOCK_MONOTONIC", None)


def now_ms() -> int:
    """Whole milliseconds on a clock that never steps."""
    # Through a float, which is exact to the microsecond for centuries: its integer twin makes two objects more each time.
    return int((time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)) * 1_000)


def epoch_ms() -> int:
    """Whole milliseconds since 1970 on the host's wall clock, which may step."""
    return time.time_ns() // 1_000_000
