"""The few connections of a process: how they are made, shared, cut and given up. No server: connections are stand-ins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from claimant._drive import clock
from claimant.ledger.lines import Busy, Line, Lines, Unreachable


class Wire(Line):
    """A connection of nothing: it counts."""

    made = 0

    def __init__(self) -> None:
        self.was_cut = threading.Event()
        self.closed = False

    def cut(self) -> None:
        self.was_cut.set()

    def close(self) -> None:
        self.closed = True


def in_ms(span: int) -> int:
    return clock.now_ms() + span


def lines(connect: Callable[[int], Line], **options: int) -> Lines:
    return Lines(connect, lambda error: "room" in str(error), **options)


def test_a_quick_refusal_is_told_at_once() -> None:
    """However fast the attempt fails, the caller hears of it and does not sit out the deadline."""

    def refuse(_: int) -> Line:
        raise ConnectionRefusedError("nobody there")

    pool = lines(refuse)
    began = time.monotonic()
    for _ in range(300):
        with pytest.raises(Unreachable, match="nobody there"), pool.taken(in_ms(2_000)):
            raise AssertionError("unreachable")
    assert time.monotonic() - began < 2


def test_a_connection_is_used_again() -> None:
    """One after the other, requests share one connection; a failed request gives up its own."""
    made: list[Wire] = []

    def connect(_: int) -> Line:
        made.append(Wire())
        return made[-1]

    pool = lines(connect)
    for _ in range(5):
        with pool.taken(in_ms(1_000)):
            pass
    assert len(made) == 1
    with pytest.raises(ZeroDivisionError), pool.taken(in_ms(1_000)):
        raise ZeroDivisionError
    assert made[0].closed
    with pool.taken(in_ms(1_000)) as line:
        assert line is made[1]
    pool.close()
    assert made[1].closed
    with pool.taken(in_ms(1_000)) as line:
        assert line is made[2]
        pool.close()
        assert not made[2].closed
    assert made[2].closed, "closed while in use: closed when it comes back"


def test_there_are_never_more_than_allowed() -> None:
    """A fifth request waits for one of four, and is told busy at its deadline."""
    made: list[Wire] = []

    def connect(_: int) -> Line:
        made.append(Wire())
        return made[-1]

    pool = lines(connect, size=2)
    with pool.taken(in_ms(1_000)), pool.taken(in_ms(1_000)):
        began = time.monotonic()
        with pytest.raises(Busy), pool.taken(in_ms(50)):
            raise AssertionError("a third connection")
        assert 0.04 < time.monotonic() - began < 0.5
    assert len(made) == 2


def test_a_connection_is_cut_at_its_deadline_and_not_after() -> None:
    """What is in use past its deadline is cut; what came back in time is left alone."""
    wires = [Wire(), Wire()]
    given = iter(wires)
    pool = lines(lambda _: next(given))
    with pool.taken(in_ms(20)) as line:
        pass
    with pytest.raises(ZeroDivisionError), pool.taken(in_ms(60)) as line:
        assert line is wires[0]
        assert not wires[0].was_cut.is_set()
        assert wires[0].was_cut.wait(5)
        raise ZeroDivisionError
    with pool.taken(in_ms(5_000)):
        pass
    assert not wires[1].was_cut.is_set()


def test_one_attempt_at_a_time_and_nobody_waits_for_an_old_one() -> None:
    """While an attempt hangs, callers wait for it until its deadline, later ones not at all; what it brings at last is used."""
    go, tries = threading.Event(), [0]

    def hang(_: int) -> Line:
        tries[0] += 1
        go.wait(10)
        return Wire()

    pool = lines(hang)
    for at_least, at_most in ((0.05, 0.6), (0.0, 0.04), (0.0, 0.04)):
        began = time.monotonic()
        with pytest.raises(Unreachable) as caught, pool.taken(in_ms(60)):
            raise AssertionError("connected")
        assert caught.value.spent
        assert at_least <= time.monotonic() - began < at_most
    go.set()
    while pool._making is not None:
        time.sleep(0)
    with pool.taken(in_ms(1_000)):
        pass
    assert tries[0] == 1


def test_no_room_is_asked_again_until_there_is() -> None:
    """A server without room is asked again, with pauses that differ; any other refusal is final."""
    answers: list[Exception | None] = [RuntimeError("no room"), RuntimeError("no room"), None]

    def connect(_: int) -> Line:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return Wire()

    with lines(connect).taken(in_ms(5_000)):
        assert answers == []


def test_no_room_for_one_more_is_no_failure() -> None:
    """With one connection at hand, a refusal of a second makes the callers share the first."""
    made = [0]

    def connect(_: int) -> Line:
        made[0] += 1
        if made[0] > 1:
            raise RuntimeError("refused")
        return Wire()

    pool = lines(connect)
    done: list[int] = []

    def work() -> None:
        with pool.taken(in_ms(5_000)):
            done.append(1)

    with pool.taken(in_ms(5_000)):
        threads = [threading.Thread(target=work) for _ in range(10)]
        for thread in threads:
            thread.start()
        while made[0] < 2 or pool._making is not None:
            time.sleep(0)
    for thread in threads:
        thread.join()
    assert len(done) == 10
    assert made[0] == 2
