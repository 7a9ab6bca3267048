"""Signals around `loop()`: forked children get none of its handlers, all loops of a process are told at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claimant import AsyncRun, Claimant, Run

Make = Callable[..., Claimant]

START = """
    import asyncio, multiprocessing, os, signal, sys, threading, time
    # In every child, before anything of claimant's: what comes after a fork comes while this sleeps.
    os.register_at_fork(after_in_child=lambda: time.sleep(SLOW))
    SLOW = 0.0
    from claimant import AsyncRun, Claimant, Run
    claims = Claimant(f"sqlite:{sys.argv[1]}/leases.db", ledger=f"sqlite:{sys.argv[1]}/ledger.db")
    colour = sys.argv[2]
    def say(*words):
        print(*words, flush=True)
    def looped(work):
        if colour == "asyncio":
            @claims.job("tick", every="1h", stake="rebuild")
            async def tick(run: AsyncRun) -> None:
                work()
            asyncio.run(tick.loop())
        else:
            @claims.job("tick", every="1h", stake="rebuild")
            def tick(run: Run) -> None:
                work()
            tick.loop()
        say("ended")
"""


def program(text: str, folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            # Newer Pythons warn of every fork beside threads, and a claim has a thread.
            "-W",
            "ignore:This process:DeprecationWarning",
            "-c",
            textwrap.dedent(START) + textwrap.dedent(text),
            str(folder),
            *words,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def stopped(child: subprocess.Popen[str], until: str) -> list[str]:
    """What `child` says until it has said `until`, is told to stop, and ends by itself."""
    said: list[str] = []
    # With its children, which would hold its pipes open.
    hangs = threading.Timer(25, os.killpg, (child.pid, signal.SIGKILL))
    hangs.start()
    try:
        assert child.stdout is not None
        for line in child.stdout:
            said.append(line.strip())
            if said[-1] == until:
                child.terminate()
                break
        rest, errors = child.communicate()
    finally:
        hangs.cancel()
    said += rest.splitlines()
    assert (errors, child.returncode) == ("", 0), said
    return said


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_pool_of_forked_workers_inside_a_body_ends(colour: str, tmp_path: Path) -> None:
    """Leaving the pool ends its workers with SIGTERM: they die of it, and the loop is not told."""
    text = """
        fork = multiprocessing.get_context("fork")
        napping = fork.Event()
        def nap():
            napping.set()
            time.sleep(60)
        def work():
            with fork.Pool(2) as pool:
                say(pool.map(abs, [-1, -2]))
                pool.apply_async(nap)
                napping.wait()
            say("left")
        looped(work)
    """
    with program(text, tmp_path, colour) as child:
        assert stopped(child, "left") == ["[1, 2]", "left", "ended"]


@pytest.mark.parametrize("where", ["main thread", "other thread"])
@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_forked_child_dies_of_a_signal_and_its_parents_loop_goes_on(
    colour: str, where: str, tmp_path: Path
) -> None:
    """Also of one that comes while it is being forked; whichever thread forks. No signal stays blocked on either side."""
    text = """
        def end():
            # Early: while the child is not itself yet. Late: while it works, with what it inherited.
            global SLOW
            for slow, pause in ((0.3, 0), (0, 0.2)):
                SLOW = slow
                pid = os.fork()
                if pid == 0:
                    time.sleep(4)
                    os._exit(7)
                time.sleep(pause)
                os.kill(pid, signal.SIGTERM)
                say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            SLOW = 0
            pid = os.fork()
            if pid == 0:
                blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
                handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
                os._exit(len(blocked) + (handlers != before))
            say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            say(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        def work():
            global before
            if colour == "asyncio":
                before = signal.SIG_DFL, signal.getsignal(signal.SIGINT)   # SIGINT is asyncio's own
            if sys.argv[3] == "other thread":
                thread = threading.Thread(target=end)
                thread.start()
                thread.join()
            else:
                end()
            say("done")
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        looped(work)
    """
    with program(text, tmp_path, colour, where) as child:
        assert stopped(child, "done") == ["-15", "-15", "0", "0", "done", "ended"]


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_signal_that_another_thread_takes_is_seen_while_the_loop_sleeps(
    colour: str, tmp_path: Path
) -> None:
    """Nothing interrupts the sleeper then, and its sleep is not slept out."""
    text = """
        from claimant._drive import stopping
        stopping.LOOK_AGAIN_S = 0.2
        def elsewhere():
            time.sleep(1)   # the loop sleeps by now, until its next slot
            say("sleeping")
            time.sleep(60)
        def work():
            threading.Thread(target=elsewhere, daemon=True).start()
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        looped(work)
    """
    with program(text, tmp_path, colour) as child:
        assert stopped(child, "sleeping") == ["sleeping", "ended"]


def test_one_signal_stops_every_loop_of_an_event_loop(tmp_path: Path) -> None:
    """Bodies that run end first, whichever loop they are of; afterwards the signal is as it was."""
    text = """
        def job(name):
            @claims.job(name, every="1h", stake="rebuild")
            async def tick(run: AsyncRun) -> None:
                say("body")
                while signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:   # until it was told
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
                say("finished")
            return tick
        async def main():
            await asyncio.gather(job("a").loop(), job("b").loop())
            say(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
            # Where all have ended, the next listens anew.
            say("again")
            await job("c").loop()
            await claims.aclose()
        asyncio.run(main())
        say("ended")
    """
    with program(text, tmp_path, "asyncio") as child:
        assert child.stdout is not None
        assert [child.stdout.readline(), child.stdout.readline()] == ["body\n", "body\n"]
        child.terminate()
        assert stopped(child, "body") == [
            "finished",
            "finished",
            "True",
            "again",
            "body",
            "finished",
            "ended",
        ]


def test_one_signal_stops_a_loop_inside_a_body_of_another(tmp_path: Path) -> None:
    """The inner one ends after its body, then the outer one: nobody is left listening to nothing."""
    text = """
        @claims.job("inner", every="1h", stake="rebuild")
        def inner(run: Run) -> None:
            say("body")
        def work():
            inner.loop()
            say("inner ended")
            inner.loop()   # comes while the outer one is told already: begins nothing
        looped(work)
    """
    for colour in ("blocking", "asyncio"):
        folder = tmp_path / colour
        folder.mkdir()
        with program(text, folder, colour) as child:
            assert stopped(child, "body") == ["body", "inner ended", "ended"]


def test_a_handler_that_a_body_installs_is_left_in_place(made: Make, tmp_path: Path) -> None:
    """The loop takes away its own handler, and nobody else's."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")

    def mine(number: int, frame: object) -> None: ...

    @claims.job("tick", every="1h", stake="rebuild")
    def tick(run: Run) -> None:
        signal.signal(signal.SIGTERM, mine)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGTERM)
    try:
        tick.loop()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_loop_that_is_told_before_it_begins_runs_nothing(made: Make, tmp_path: Path, colour: str) -> None:
    """A stop that is set already is obeyed before the first slot."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")
    ran: list[str] = []

    @claims.job("tick", every="1h", stake="rebuild")
    def tick(run: Run) -> None:
        ran.append("body")

    @claims.job("tock", every="1h", stake="rebuild")
    async def tock(run: AsyncRun) -> None:
        ran.append("body")

    async def main() -> None:
        stop = asyncio.Event()
        stop.set()
        await tock.loop(stop)
        await claims.aclose()

    if colour == "asyncio":
        asyncio.run(main())
    else:
        stop = threading.Event()
        stop.set()
        tick.loop(stop)
    assert ran == []


def test_a_body_that_awaits_what_was_cancelled_has_failed(made: Make, tmp_path: Path) -> None:
    """Nobody cancelled the loop: the run is recorded as failed, and the loop goes on."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")
    slots: list[str | None] = []

    async def main() -> None:
        stop = asyncio.Event()

        @claims.job("tick", every="1s", stake="rebuild")
        async def tick(run: AsyncRun) -> None:
            slots.append(run.slot)
            if len(slots) == 2:
                stop.set()
                return
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner

        await asyncio.wait_for(tick.loop(stop), 20)
        await claims.aclose()

    asyncio.run(main())
    assert len(slots) == 2
    [row] = claims.ledger.jobs()
    assert (row.runs, row.failed) == (2, 1)


@pytest.mark.parametrize("how", ["timeout", "cancel", "cancel both"])
def test_a_cancelled_loop_ends_also_where_its_body_was_cancelled_within(
    made: Make, tmp_path: Path, how: str
) -> None:
    """A cancellation of the loop's own task reaches the body and ends the loop, and says nothing about the work."""
    claims = made(f"sqlite:{tmp_path / 'leases.db'}")
    seen: list[Any] = []

    async def main() -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        started, stop = asyncio.Event(), asyncio.Event()

        @claims.job("tick", every="1s", stake="rebuild")
        async def tick(run: AsyncRun) -> None:
            # A timeout of its own that expires is no cancellation of the loop.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.sleep(60)
            started.set()
            try:
                await inner
            except asyncio.CancelledError as error:
                seen.append(error)
                raise

        async def timed() -> None:
            async with asyncio.timeout(0.5):
                await tick.loop(stop)

        task = asyncio.create_task(timed() if how == "timeout" else tick.loop(stop))
        await started.wait()
        if how == "cancel both":
            inner.cancel()
        if how != "timeout":
            task.cancel()
        done, _ = await asyncio.wait([task], timeout=10)
        # One that went on ends here, and not never.
        stop.set()
        assert done
        with pytest.raises(TimeoutError if how == "timeout" else asyncio.CancelledError):
            await task
        await claims.aclose()

    asyncio.run(main())
    assert len(seen) == 1
    [row] = claims.ledger.jobs()
    assert (row.last_kind, row.failed) == ("stopped", 0)
