"""`loop()`: every slot, until told to stop; a failing body ends nothing but its own run."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claimant import AsyncRun, Claimant, Refused, Run
from claimant._drive.stopping import Signalled
from claimant._flows import loop as loops
from claimant._flows.loop import loop
from claimant._model import ops
from claimant._model.errors import LedgerAbsent
from claimant._model.events import Event
from claimant._model.ops import Flow
from claimant._model.outcome import Claim, Kind, Outcome
from claimant._model.records import LedgerNow
from claimant._model.slots import Every
from claimant.ledger.patience import absent
from claimant.testing.faults import held_by_another
from tests.support.servers import wait

Make = Callable[..., Claimant]
EVERY = 60_000
START = 1_000_000 * EVERY + 7_000


class Enough(BaseException):
    """Ends a loop that a test has seen enough of."""


class Clocks:
    """Drives the loop's flow in virtual time. The ledger's clock is `ahead_ms` of the host's."""

    def __init__(
        self, results: list[Any], *, ahead_ms: int = 0, away: bool = False, took_ms: int = 0
    ) -> None:
        self.results = results
        self.now = 0
        self.ahead_ms = ahead_ms
        self.away = away
        self.took_ms = took_ms
        self.started: list[int] = []
        self.events: list[Event] = []

    def start(self) -> Flow[Outcome[Any]]:
        self.started.append(self.now)
        if not self.results:
            raise Enough
        self.now += self.took_ms
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        yield ops.Now()
        return Outcome(result, Claim.KEPT, "tick")

    def answer(self, request: Any) -> Any:
        match request:
            case LedgerNow():
                if self.away:
                    raise absent("there", "gone")
                return START + self.now + self.ahead_ms
            case ops.HostEpoch():
                return START + self.now
            case ops.Now():
                return self.now
            case ops.Jitter(limit):
                return limit
            case ops.SleepUntil(at_ms):
                assert at_ms >= self.now
                assert at_ms - self.now <= loops.LONGEST_NAP_MS
                self.now = at_ms
            case ops.Emit(event):
                self.events.append(event)
            case other:
                raise AssertionError(other)
        return None

    def run(self, every_ms: int = EVERY) -> list[int]:
        flow = loop("tick", Every(every_ms), self.start)
        request = next(flow)
        try:
            while True:
                try:
                    reply = self.answer(request)
                except LedgerAbsent as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(reply)
        except Enough:
            return self.started


def test_the_loop_starts_once_a_slot_and_a_little_after_it() -> None:
    """The slot that is due comes first; then one start a slot, spread over a moment so that workers do not all ask at once."""
    spread = loops.SPREAD_MS
    due = [0, 53_000 + spread, 113_000 + spread, 173_000 + spread]
    assert Clocks([Kind.RAN, Kind.DONE, Kind.UNCOMMITTED]).run() == due


def test_slots_are_the_ledgers_and_the_hosts_while_it_is_away() -> None:
    """A host whose clock is off by 20 s starts when the ledger's clock says so; without the ledger, by its own."""
    spread = loops.SPREAD_MS
    assert Clocks([Kind.RAN], ahead_ms=20_000).run() == [0, 33_000 + spread]
    assert Clocks([Kind.RAN], ahead_ms=20_000, away=True).run() == [0, 53_000 + spread]


def test_a_long_sleep_looks_at_the_clocks_again() -> None:
    """A ledger clock that steps during a long sleep is noticed within a minute."""
    clocks = Clocks([Kind.RAN])
    answer = clocks.answer

    def stepping(request: Any) -> Any:
        if isinstance(request, ops.SleepUntil) and clocks.now > 600_000:
            clocks.ahead_ms = 3_600_000
        return answer(request)

    clocks.answer = stepping  # type: ignore[method-assign]
    [first, second] = clocks.run(every_ms=4 * 3_600_000)
    assert first == 0
    whole = 4 * 3_600_000 - (START % (4 * 3_600_000))
    assert whole - 3_600_000 <= second <= whole - 3_600_000 + loops.LONGEST_NAP_MS


def test_a_slot_that_is_open_is_tried_again_with_growing_pauses() -> None:
    """Until the slot is closed or the next one is due, each pause is twice as long, up to half a minute."""
    clocks = Clocks([Kind.UNKNOWN, Kind.ABSENT, ValueError("x"), Kind.STOPPED, Kind.HELD, Kind.RAN])
    started = clocks.run()
    gaps = [later - earlier for earlier, later in itertools.pairwise(started)]
    assert gaps[:5] == [1_000, 2_000, 4_000, 8_000, 16_000]
    assert started[6] == 53_000 + loops.SPREAD_MS
    assert [event.kind for event in clocks.events] == ["loop.failed"]


def test_a_body_that_outlasts_slots_goes_on_with_the_latest() -> None:
    """What was missed is not caught up with one by one: the next start is at once, and for the slot of then."""
    clocks = Clocks([Kind.RAN, Kind.RAN], took_ms=150_000)
    assert clocks.run() == [0, 150_000, 300_000]


def test_what_is_refused_at_the_first_start_ends_the_loop_and_later_does_not() -> None:
    """A set-up that cannot work is told at once; what comes later is logged, and the loop goes on."""
    refused = Clocks([Refused("CLM080", "no tables")])
    with pytest.raises(Refused, match="no tables"):
        refused.run()
    # Told as well: a task that nobody awaits would keep it to itself.
    assert [event.kind for event in refused.events] == ["loop.failed"]
    assert "ends it" in refused.events[0].text
    clocks = Clocks([Kind.RAN, Refused("CLM080", "no tables"), Kind.RAN])
    assert len(clocks.run()) == 4
    [event] = clocks.events
    assert isinstance(event.error, Refused)


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_failing_body_is_recorded_and_logged_and_the_loop_goes_on(
    made: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, colour: str
) -> None:
    """Slots after a failure are run; the failure is in the ledger, and in the log with its traceback."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")
    slots: list[str | None] = []
    stop_thread = threading.Event()

    def work(slot: str | None, stop: Any) -> None:
        slots.append(slot)
        if len(slots) == 1:
            raise ZeroDivisionError("the first slot fails")
        stop.set()

    with caplog.at_level(logging.ERROR, "claimant"):
        if colour == "blocking":

            @claims.job("tick", every="1s", stake="rebuild")
            def tick(run: Run) -> None:
                work(run.slot, stop_thread)

            tick.loop(stop_thread)
        else:

            async def main() -> None:
                stop = asyncio.Event()

                @claims.job("tick", every="1s", stake="rebuild")
                async def tick(run: AsyncRun) -> None:
                    work(run.slot, stop)

                await tick.loop(stop)
                await claims.aclose()

            asyncio.run(main())
    assert len(slots) == len(set(slots)) == 2
    [row] = claims.ledger.jobs()
    assert (row.runs, row.failed) == (2, 1)
    [record] = caplog.records
    assert "ZeroDivisionError" in caplog.text
    assert "Traceback" in caplog.text
    assert "the loop goes on" in record.getMessage()


def test_a_loop_that_is_told_to_stop_while_it_waits_for_a_holder_ends(made: Make, tmp_path: Path) -> None:
    """Standing by is waiting: it ends at once when told, and leaves no claim."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")
    stop = threading.Event()

    @claims.job("tick", every="1h", stake="rebuild")
    def tick(run: Run) -> None: ...

    with held_by_another(claims, "tick"):
        looping = threading.Thread(target=tick.loop, args=(stop,))
        looping.start()
        stop.set()
        looping.join(10)
        assert not looping.is_alive()
    assert claims.ledger.jobs() == []
    assert tick().kind is Kind.RAN


def test_an_open_slot_is_taken_over_from_a_holder_that_went(made: Make, tmp_path: Path) -> None:
    """A loop stands by while somebody else has the slot, and runs it once the claim is gone and the slot still open."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")
    stop = threading.Event()
    ran = threading.Event()

    @claims.job("tick", every="1d", stake="rebuild", lifetime="600ms")
    def tick(run: Run) -> None:
        ran.set()
        stop.set()

    with held_by_another(claims, "tick"):
        looping = threading.Thread(target=tick.loop, args=(stop,))
        looping.start()
        assert not ran.wait(0.2)
    looping.join(10)
    assert ran.is_set()
    [row] = claims.ledger.jobs()
    assert (row.runs, row.skips_total) == (1, 0)


def test_cancelling_an_async_loop_cancels_the_body(made: Make, tmp_path: Path) -> None:
    """The body sees the cancellation, and its slot stays open."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")
    seen: list[str] = []

    async def main() -> None:
        started = asyncio.Event()

        @claims.job("tick", every="1h", stake="rebuild")
        async def tick(run: AsyncRun) -> None:
            started.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        task = asyncio.create_task(tick.loop(asyncio.Event()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await claims.aclose()

    asyncio.run(main())
    assert seen == ["cancelled"]
    [row] = claims.ledger.jobs()
    assert row.last_kind == "stopped"


PROGRAM = {
    "blocking": """
        import sys, time, threading
        from claimant import Claimant, Run
        claims = Claimant(f"sqlite:{sys.argv[1]}/leases.db", ledger=f"sqlite:{sys.argv[1]}/ledger.db")
        @claims.job("tick", every="1h", stake="rebuild")
        def tick(run: Run) -> None:
            print("body", flush=True)
            sys.stdin.readline()
            print("finished", flush=True)
        if "thread" in sys.argv:
            looping = threading.Thread(target=tick.loop, daemon=True)
            looping.start()
            looping.join()
        tick.loop()
        print("ended", flush=True)
    """,
    "asyncio": """
        import asyncio, sys
        from claimant import Claimant, AsyncRun
        claims = Claimant(f"sqlite:{sys.argv[1]}/leases.db", ledger=f"sqlite:{sys.argv[1]}/ledger.db")
        @claims.job("tick", every="1h", stake="rebuild")
        async def tick(run: AsyncRun) -> None:
            print("body", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            print("finished", flush=True)
        async def main():
            await tick.loop()
            print("ended", flush=True)
            await claims.aclose()
        asyncio.run(main())
    """,
}


def program(colour: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM[colour]), str(folder), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("colour", "number"),
    [("blocking", signal.SIGTERM), ("blocking", signal.SIGINT), ("asyncio", signal.SIGTERM)],
)
def test_a_deploys_signal_waits_for_the_body(colour: str, number: signal.Signals, tmp_path: Path) -> None:
    """The body that runs ends by itself, its slot is closed and its claim given back; then the loop returns."""
    with program(colour, tmp_path) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "body\n"
        child.send_signal(number)
        child.stdin.write("go\n")
        said, errors = child.communicate(timeout=20)
    assert (said, errors, child.returncode) == ("finished\nended\n", "", 0)
    with Claimant(f"sqlite:{tmp_path / 'leases.db'}", ledger=f"sqlite:{tmp_path / 'ledger.db'}") as claims:
        [row] = claims.ledger.jobs()
        assert row.last_kind == "ran"
        assert claims.job("tick", every="1h", stake="rebuild")(lambda run: None)().kind is Kind.DONE


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_second_signal_ends_the_program_as_ever(colour: str, tmp_path: Path) -> None:
    """Who will not wait for the body signals again."""
    with program(colour, tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "body\n"

        # The handler takes itself away when it runs, which a kernel tells no sender: signal until it has.
        def ended() -> bool:
            child.terminate()
            return child.poll() is not None

        wait(ended, "the program to end", 10)
        child.communicate()
    assert child.returncode == -signal.SIGTERM


def test_a_loop_on_another_thread_leaves_signals_alone(tmp_path: Path) -> None:
    """Signals belong to the main thread: there, SIGTERM ends the program as it always did."""
    with program("blocking", tmp_path, "thread") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "body\n"
        child.terminate()
        child.communicate(timeout=20)
    assert child.returncode == -signal.SIGTERM


def test_a_handler_of_the_programs_own_is_left_in_place(made: Make, tmp_path: Path) -> None:
    """Where somebody listens already, the loop does not; the handlers are as they were when it returns."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")
    during: list[Any] = []

    @claims.job("tick", every="1h", stake="rebuild")
    def tick(run: Run) -> None:
        during.append((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)))
        signal.raise_signal(signal.SIGINT)

    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine), signal.getsignal(signal.SIGINT)
    try:
        tick.loop()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before[0])
    assert during[0][0] is mine
    assert during[0][1] is not before[1]
    assert signal.getsignal(signal.SIGINT) is before[1]


def test_a_signal_may_interrupt_the_very_wait_that_it_ends() -> None:
    """A handler that sets it on the thread that waits neither deadlocks nor is missed."""
    stop = Signalled()
    assert stop.wait(0) is False
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, stop.set)
    try:
        began = time.monotonic()
        timer.start()
        assert stop.wait(30)
        assert time.monotonic() - began < 20
        assert stop.wait(30)
    finally:
        signal.signal(signal.SIGUSR1, before)
        timer.join()


def test_a_job_without_a_schedule_has_no_loop(made: Make, tmp_path: Path) -> None:
    """There are no slots to run: refused, with what to declare."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")

    @claims.job("once", stake="rebuild")
    def once(run: Run) -> None: ...

    with pytest.raises(Refused, match="CLM038"):
        once.loop()


def test_wrong_arguments_end_a_loop_at_once(made: Make, tmp_path: Path) -> None:
    """A call that does not fit the body is the program's mistake, not a failing slot."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")

    @claims.job("tick", every="1h", stake="rebuild", key=["tenant"])
    def tick(run: Run, tenant: str) -> None: ...

    with pytest.raises(TypeError, match="tenant"):
        tick.loop(threading.Event())  # type: ignore[call-arg]
