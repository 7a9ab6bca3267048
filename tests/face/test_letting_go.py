"""How claims end other than by their run: early, with a task that is destroyed, beside observers that misbehave."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claimant import AsyncRun, Claimant
from claimant._model.names import lease_key
from tests.face.outside import LIFETIME, ask, hold_until

Make = Callable[..., Claimant]


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_an_early_release_frees_the_name(made: Make, redis_url: str, colour: str) -> None:
    """`lease.release()` gives the claim back inside the block, once or twice, and the end of the block changes nothing."""
    claims, other = made(redis_url), made(redis_url)

    def again() -> None:
        with other.hold("report", stake="scan", max_run="1m", wait=5):
            pass

    async def main() -> None:
        async with claims.hold("report", stake="scan", max_run="1m") as lease:
            lease.release()
            lease.release()
            await asyncio.to_thread(again)
        await claims.aclose()

    if colour == "asyncio":
        asyncio.run(main())
        return
    with claims.hold("report", stake="scan", max_run="1m") as lease:
        lease.release()
        lease.release()
        again()


def test_the_lease_of_a_task_that_was_destroyed_lapses(made: Make, redis_url: str) -> None:
    """A loop is closed with a job pending: nobody will ever release its lease, so the keeper must not renew it."""
    claims, other = made(redis_url), made(redis_url)

    @claims.job("report", stake="scan", lifetime=LIFETIME)
    async def report(run: AsyncRun) -> None:
        await asyncio.sleep(60)

    loop = asyncio.new_event_loop()
    task = loop.create_task(report())
    loop.run_until_complete(asyncio.sleep(0.1))
    pending: Any = task
    pending.get_coro().close()  # what a garbage collector does to it
    pending._log_destroy_pending = False
    loop.run_until_complete(claims.aclose())
    loop.close()
    del task, pending
    with other.hold("report", stake="scan", max_run="1m", wait=5):
        pass


def test_a_keeper_outlives_an_observer_that_exits(made: Make, valkey_url: str) -> None:
    """An observer raises SystemExit on the keeper's thread: renewal goes on."""

    def exits(event: Any) -> None:
        if event.kind == "lease.reclaimed":
            raise SystemExit(1)

    claims = made(valkey_url, observers=[exits])
    with claims.hold("report", stake="scan", max_run="1m", lifetime=LIFETIME) as lease:
        ask(valkey_url, "FLUSHDB")
        until = time.monotonic() + 3 * LIFETIME
        while time.monotonic() < until:
            time.sleep(0.05)
        assert lease.cause is None


def test_a_slow_observer_delays_no_renewal(made: Make, valkey_url: str) -> None:
    """An observer takes two lifetimes over each event of one lease: another lease lives on."""
    slow: list[str] = []

    def sleeps(event: Any) -> None:
        if event.kind == "lease.reclaimed":
            slow.append(event.name)
            time.sleep(2 * LIFETIME)

    claims = made(valkey_url, observers=[sleeps])
    with (
        claims.hold("noisy", stake="scan", max_run="1m", lifetime=LIFETIME),
        claims.hold("quiet", stake="scan", max_run="1m", lifetime=LIFETIME) as quiet,
    ):
        ask(valkey_url, "DEL", lease_key("", "noisy"))
        hold_until(lambda: bool(slow), "the observer to be told")
        until = time.monotonic() + 2 * LIFETIME
        while time.monotonic() < until:
            assert quiet.cause is None
            time.sleep(0.02)


def test_a_closed_claimant_used_again_has_one_keeper(made: Make, redis_url: str) -> None:
    """Ten times closed and used again: each time one thread, and its lease is renewed."""
    claims = made(redis_url)
    for _ in range(10):
        with claims.hold("report", stake="scan", max_run="1m"):
            pass
        claims.close()
    with claims.hold("report", stake="scan", max_run="1m", lifetime=LIFETIME) as lease:
        time.sleep(2 * LIFETIME)
        assert lease.cause is None
        assert [thread.name for thread in threading.enumerate()].count("claimant-keeper") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_two_threads_that_fork_at_once_leave_store_and_ledger_in_use(tmp_path: Path) -> None:
    """Each thread opens again what it closed for its own fork: later starts claim, and are recorded."""
    program = f"""
        import os, threading, warnings
        warnings.simplefilter("ignore")  # forking beside threads is what is tested
        from claimant import Claimant
        claims = Claimant("sqlite:{tmp_path}/leases.db", ledger="sqlite:{tmp_path}/ledger.db")
        job = claims.job("report", stake="scan")(lambda run: None)
        job()
        def fork():
            for _ in range(8):
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
        threads = [threading.Thread(target=fork) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outcomes = [job() for _ in range(3)]
        (row,) = claims.ledger.jobs("report")
        print([outcome.claim.value for outcome in outcomes], row.runs, row.last_kind)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "['kept', 'kept', 'kept'] 4 ran\n", done.stderr
