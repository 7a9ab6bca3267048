"""Leases on real servers: kept while the holder works, told apart when they end, and nobody else's business."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from claimant import AsyncRun, Claimant, LeaseLost, NotDone, Run
from claimant._model.names import lease_key
from claimant._model.outcome import Claim, Kind
from tests.face.outside import LIFETIME, ask, hold_until
from tests.support import dns
from tests.support.servers import Server

Make = Callable[..., Claimant]


def test_a_lease_outlives_its_lifetime_while_its_holder_works(made: Make, redis_url: str) -> None:
    """Two lifetimes later it is still held, was renewed, and is free at once after the block."""
    claims, other = made(redis_url), made(redis_url)
    with claims.hold("report", stake="scan", max_run="1m", lifetime=LIFETIME) as lease:
        until = time.monotonic() + 2 * LIFETIME
        while time.monotonic() < until:
            assert lease.cause is None
            with pytest.raises(NotDone), other.hold("report", stake="scan", max_run="1m"):
                pass
            time.sleep(0.05)
    with other.hold("report", stake="scan", max_run="1m"):
        pass


def test_a_deleted_key_is_claimed_anew_and_the_loss_is_recorded(made: Make, valkey_url: str) -> None:
    """The store answered "gone": the name is free, so it is claimed again, and the outcome says that it was lost."""
    events: list[str] = []
    claims = made(valkey_url, observers=[lambda event: events.append(event.kind)])

    @claims.job("report", stake="scan", lifetime=LIFETIME)
    def report(run: Run) -> None:
        ask(valkey_url, "FLUSHDB")
        hold_until(lambda: "lease.reclaimed" in events, "the lease to be claimed anew")
        run.beat()

    outcome = report()
    assert (outcome.kind, outcome.claim) == (Kind.RAN, Claim.LOST)


@pytest.mark.parametrize(("on_loss", "kind"), [("stop", Kind.STOPPED), ("go-on", Kind.RAN)])
def test_a_claim_in_other_hands_is_lost_and_the_policy_decides(
    made: Make, valkey_url: str, on_loss: Any, kind: Kind
) -> None:
    """The key holds another token: the holder is told, `beat()` raises where the job says stop."""
    from claimant.testing.faults import SOMEBODY

    events: list[str] = []
    claims = made(valkey_url, observers=[lambda event: events.append(event.kind)])

    @claims.job("report", stake="scan", lifetime=LIFETIME, on_loss=on_loss)
    def report(run: Run) -> str:
        ask(valkey_url, "SET", lease_key("", "report"), SOMEBODY.encode(), "PX", 5000)
        hold_until(lambda: "lease.lost" in events, "the loss to be told")
        assert run.lease.lost
        run.beat()
        return "finished"

    outcome = report()
    assert (outcome.kind, outcome.claim) == (kind, Claim.LOST)
    assert (outcome.result == "finished") is (kind is Kind.RAN)


def test_a_permanent_claim_gets_its_lifetime_back(made: Make, valkey_url: str) -> None:
    """PERSIST on a live claim: the next renewal, or the next refused contender, ends its immortality."""
    claims = made(valkey_url)
    key = lease_key("", "report")
    with claims.hold("report", stake="scan", max_run="1m", lifetime=LIFETIME):
        ask(valkey_url, "PERSIST", key)
        hold_until(lambda: ask(valkey_url, "PTTL", key) > 0, "a lifetime")
    with claims.hold("long", stake="scan", max_run="10m", lifetime="5m"):
        key = lease_key("", "long")
        ask(valkey_url, "PERSIST", key)
        with pytest.raises(NotDone), made(valkey_url).hold("long", stake="scan", max_run="1m"):
            pass
        assert 0 < ask(valkey_url, "PTTL", key) <= 300_000


def test_a_store_that_stops_answering_is_absent_and_not_a_loss(
    made: Make, private_valkey: Callable[..., Server]
) -> None:
    """The trust window ends without an answer: cause "absent", told before the lifetime ends; the job goes on; the answer returns."""
    server = private_valkey()
    told: list[tuple[str, float]] = []
    claims = made(server.url, observers=[lambda event: told.append((event.kind, time.monotonic()))])

    @claims.job("report", stake="scan", lifetime="1200ms")
    def report(run: Run) -> str:
        server.pause()
        frozen = time.monotonic()
        hold_until(lambda: "lease.absent" in [kind for kind, _ in told], "absence")
        late = next(at for kind, at in told if kind == "lease.absent") - frozen
        assert run.lease.cause == "absent"
        assert not run.lease.lost
        run.beat()
        server.resume()
        hold_until(
            lambda: bool({"lease.confirmed", "lease.reclaimed"} & {kind for kind, _ in told}), "an answer"
        )
        return f"{late:.3f} {run.lease.cause}"

    outcome = report()
    assert outcome.kind is Kind.RAN
    assert outcome.claim in (Claim.ABSENT, Claim.LOST)
    late, cause = (outcome.value or "").split()
    assert cause == "None"
    assert float(late) < 1.2 + 0.3  # the lifetime, and a busy scheduler


def test_one_frozen_store_does_not_delay_the_renewals_of_another(
    made: Make, private_valkey: Callable[..., Server]
) -> None:
    """Store A is frozen with a lease on it; a lease on B, in the same process, lives on for three lifetimes."""
    frozen, healthy = private_valkey(), private_valkey()
    a, b, rival = made(frozen.url), made(healthy.url), made(healthy.url)
    with (
        a.hold("on-a", stake="scan", max_run="1m", lifetime=LIFETIME) as lease_a,
        b.hold("on-b", stake="scan", max_run="1m", lifetime=LIFETIME) as lease_b,
    ):
        frozen.pause()
        until = time.monotonic() + 3 * LIFETIME
        while time.monotonic() < until:
            assert lease_b.cause is None
            time.sleep(0.02)
        assert lease_a.cause == "absent"
        with pytest.raises(NotDone), rival.hold("on-b", stake="scan", max_run="1m"):
            pass
        frozen.resume()


def test_an_absent_store_costs_a_process_one_deadline_and_not_one_each(
    made: Make, private_valkey: Callable[..., Server]
) -> None:
    """A server that accepts and never answers: forty starts together wait about one deadline, and claiming resumes by itself."""
    server = private_valkey()
    events: list[str] = []
    claims = made(server.url + "?deadline=500ms", observers=[lambda event: events.append(event.kind)])
    job = claims.job("report", stake="scan")(lambda run: None)
    assert job().claim is Claim.KEPT
    server.pause()
    began = time.monotonic()
    outcomes = [job() for _ in range(40)]
    waited = time.monotonic() - began
    assert {outcome.claim for outcome in outcomes} == {Claim.ABSENT, Claim.UNKNOWN} or {
        outcome.claim for outcome in outcomes
    } == {Claim.ABSENT}
    assert waited < 4 * 0.5  # one each would be twenty seconds
    assert events.count("store.absent") == 1
    server.resume()
    hold_until(lambda: "store.returned" in events, "the store to be noticed")
    hold_until(lambda: job().claim is Claim.KEPT, "claims to be kept again")


def test_the_first_start_of_a_process_opens_the_breaker_for_the_second(made: Make, tmp_path: Path) -> None:
    """A process that never held a lease learns of the absence once: the keeper that then starts forgets nothing of it."""
    events: list[str] = []
    claims = made(f"sqlite:{tmp_path / 'leases.db'}", observers=[lambda event: events.append(event.kind)])
    job = claims.job("report", stake="scan")(lambda run: None)
    with closing(sqlite3.connect(tmp_path / "leases.db", isolation_level=None)) as frozen:
        frozen.execute("PRAGMA journal_mode=WAL")
        frozen.execute("BEGIN IMMEDIATE")
        assert [job().claim for _ in range(5)] == [Claim.ABSENT] * 5
        assert events.count("store.absent") == 1
        frozen.rollback()


def test_a_killed_holders_job_resumes_within_a_lifetime(made: Make, redis_url: str, tmp_path: Path) -> None:
    """SIGKILL leaves nothing to clean: a waiter starts no later than a lifetime after the last renewal, and not before."""
    program = f"""
        import sys, time
        from claimant import Claimant
        claims = Claimant({redis_url!r}, ledger="sqlite:{tmp_path}/ledger.db")
        with claims.hold("report", stake="scan", max_run="1m", lifetime=1.0):
            print("held", flush=True)
            time.sleep(60)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    child.kill()
    killed = time.monotonic()
    child.communicate()
    with made(redis_url).hold("report", stake="scan", max_run="1m", wait=10):
        waited = time.monotonic() - killed
    assert 0.3 < waited < 1.0 + 1.0 + 0.5  # lifetime, the longest pause between looks, a busy scheduler


def test_a_blocked_event_loop_loses_no_lease(made: Make, redis_url: str) -> None:
    """The keeper is not on the loop: synchronous code for three lifetimes, and the claim is kept."""
    claims = made(redis_url)

    @claims.job("report", stake="scan", lifetime=LIFETIME)
    async def report(run: AsyncRun) -> str | None:
        time.sleep(3 * LIFETIME)  # noqa: ASYNC251  the fault under test
        return run.lease.cause

    async def main() -> Any:
        outcome = await report()
        await claims.aclose()
        return outcome

    outcome = asyncio.run(main())
    assert (outcome.claim, outcome.result) == (Claim.KEPT, None)


def test_the_end_of_a_run_is_the_end_of_its_renewal(made: Make, redis_url: str) -> None:
    """At `max_run` renewal and trust stop, and `on_loss` decides at the next beat."""
    claims = made(redis_url)

    @claims.job("report", stake="scan", lifetime=LIFETIME, max_run="700ms", on_loss="stop")
    def report(run: Run) -> None:
        hold_until(lambda: run.lease.cause == "over", "the end of the run")
        run.beat()

    outcome = report()
    assert (outcome.kind, outcome.claim) == (Kind.STOPPED, Claim.OVER)


def test_a_run_without_beats_stalls(made: Make, redis_url: str) -> None:
    """No beat for `stall_after`: renewal stops, and the claim lapses though the process lives."""
    claims, other = made(redis_url), made(redis_url)

    @claims.job("report", stake="scan", lifetime=LIFETIME, stall_after="300ms", on_loss="stop")
    def report(run: Run) -> None:
        with other.hold("report", stake="scan", max_run="1m", wait=10):
            assert run.lease.cause == "stalled"
        with pytest.raises(LeaseLost) as lost:
            run.beat()
        assert lost.value.cause == "stalled"

    assert report().claim is Claim.STALLED


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_owns_nothing(made: Make, redis_url: str) -> None:
    """The child neither renews nor frees its parent's lease, and its own claims are renewed by its own keeper."""
    claims, rival = made(redis_url), made(redis_url)
    with claims.hold("parents", stake="scan", max_run="1m", lifetime=LIFETIME) as lease:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said = "?"
            try:
                mine = f"{lease.remaining()} {lease.cause}"
                lease.release()
                with claims.hold("childs", stake="scan", max_run="1m", lifetime=LIFETIME) as own:
                    time.sleep(2 * LIFETIME)
                    said = f"{mine} {own.cause}"
            except BaseException as error:
                said = repr(error)
            finally:
                os.write(writing, said.encode())
                os._exit(0)
        os.close(writing)
        until = time.monotonic() + 2 * LIFETIME
        while time.monotonic() < until:
            assert lease.cause is None
            with pytest.raises(NotDone), rival.hold("parents", stake="scan", max_run="1m"):
                pass
            time.sleep(0.05)
        assert os.read(reading, 1_000) == b"0.0 released None"
        os.close(reading)
        os.waitpid(child, 0)


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_an_interpreter_with_leases_held_exits_at_once(redis_url: str, tmp_path: Path, colour: str) -> None:
    """Ten leases held at exit, by threads that are gone: no hang, no traceback."""
    program = f"""
        import asyncio
        from claimant import Claimant
        claims = Claimant({redis_url!r}, ledger="sqlite:{tmp_path}/ledger.db")
        holds = [claims.hold(f"job-{{n}}", stake="scan", max_run="1m") for n in range(10)]
        async def main():
            for hold in holds:
                await hold.__aenter__()
        if {colour == "blocking"}:
            for hold in holds:
                hold.__enter__()
        else:
            asyncio.run(main())
        print("held")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "held\n", "")


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_name_that_never_resolves_costs_one_deadline(made: Make, colour: str) -> None:
    """Silent DNS: the start goes on after its deadline, and `asyncio.run` returns within a second."""
    claims = made("redis://silent.invalid:6379/0?deadline=200ms")
    job: Any

    if colour == "blocking":
        job = claims.job("report", stake="scan")(lambda run: None)
    else:

        async def body(run: AsyncRun) -> None: ...

        job = claims.job("report", stake="scan")(body)
    with dns.hanging("silent.invalid") as hang:
        began = time.monotonic()
        outcome = job() if colour == "blocking" else asyncio.run(job())
        waited = time.monotonic() - began
        assert hang.lookups == 1
    assert outcome.claim is Claim.ABSENT
    assert waited < 1.0


def test_two_threads_of_one_process_exclude_each_other(made: Make, redis_url: str) -> None:
    """Thirty-two threads on one name: at any moment at most one is inside."""
    claims = made(redis_url)
    inside = threading.Lock()
    entered: list[int] = []
    overlaps: list[int] = []

    def contend(number: int) -> None:
        try:
            with claims.hold("report", stake="scan", max_run="1m"):
                if not inside.acquire(blocking=False):
                    overlaps.append(number)
                    return
                entered.append(number)
                inside.release()
        except NotDone:
            return

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entered
    assert not overlaps
