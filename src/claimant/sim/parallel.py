"""Many schedules on all cores: processes that each search some seeds, and one sum of what they found."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice

from claimant.sim.simulate import Search, search

PORTION = 250
"""Schedules that one process runs before it reports."""
NOTHING = Search(0, 0, 0, {}, ())


def search_all(
    first: int,
    schedules: int,
    *,
    only: Collection[str] = (),
    processes: int | None = None,
    stop_after: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Search:
    """Search the seeds from `first` on, on `processes` processes (None: one for each core that this process may use).

    `progress` is told of each portion that is done, and how many schedules it had. What was found depends on the seeds alone, not on
    the number of processes, unless it ends early: after `stop_after` failing schedules.
    """
    workers = processes or _cores()
    portions = [
        range(start, min(start + PORTION, first + schedules))
        for start in range(first, first + schedules, PORTION)
    ]
    found = NOTHING
    if workers == 1:
        for seeds in portions:
            found += search(seeds, only=only, stop_after=stop_after)
            progress(len(seeds))
            if len(found.failed) >= stop_after:
                break
        return found
    # Forked children would inherit what threads of this process hold.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: dict[Future[Search], int] = {}
        rest = iter(portions)
        while True:
            for seeds in islice(rest, 2 * workers - len(waiting)):
                waiting[pool.submit(_portion, seeds, tuple(only), stop_after)] = len(seeds)
            if not waiting:
                return found
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                found += future.result()
                progress(waiting.pop(future))
            if len(found.failed) >= stop_after:
                rest = iter(())


def _portion(seeds: range, only: tuple[str, ...], stop_after: int) -> Search:
    return search(seeds, only=only, stop_after=stop_after)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
