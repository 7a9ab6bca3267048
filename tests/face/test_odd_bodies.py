"""Bodies that end in odd ways: exceptions and results that misbehave, work that never began."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from claimant import Claimant, LeaseLost, Outcome, Refused, Run
from claimant._model.outcome import Kind

Held = Callable[..., AbstractContextManager[None]]
Absent = Callable[[], AbstractContextManager[None]]


Start = Callable[..., Outcome[Any]]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Awkward(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no items")


def test_an_exception_that_cannot_be_shown_is_still_the_bodys(claims: Claimant, start: Start) -> None:
    """Its own `__str__` fails: it is raised as it is, and the run is recorded."""
    error = Unprintable()

    def work(run: Any) -> None:
        raise error

    with pytest.raises(Unprintable) as raised:
        start(claims, work)
    assert raised.value is error
    assert claims.ledger.jobs("index")[0].failed == 1


def test_a_result_that_cannot_be_kept_is_still_the_result(claims: Claimant, start: Start) -> None:
    """Its own code fails when it is to be kept: the work has happened, and the slot is closed."""
    result = Awkward(a=1)
    assert start(claims, lambda _: result, every="1h").value is result
    assert start(claims, lambda _: result).kind is Kind.DONE


def test_a_loss_that_a_task_group_wraps_is_still_a_loss(claims: Claimant, start: Start) -> None:
    """An exception group of nothing but LeaseLost ends the run as stopped, and uses up no attempt."""

    def work(run: Any) -> None:
        raise BaseExceptionGroup("tasks", [LeaseLost("gone", cause="lost")])

    assert start(claims, work, every="1h").kind is Kind.STOPPED
    assert start(claims, lambda _: 1).kind is not Kind.DONE


def test_work_that_nobody_would_do_is_not_taken_for_done(claims: Claimant) -> None:
    """A plain body that returns a coroutine or a generator has done nothing yet: the run fails and says what to write."""

    async def later() -> None: ...

    def lazily() -> Any:
        yield 1

    bodies: list[Any] = [later, lazily]

    def body(run: Run) -> Any:
        return bodies.pop()()

    job = claims.job("job", stake="scan")(body)
    for _ in (later, lazily):
        with pytest.raises(TypeError, match="async def"):
            job()


def test_a_hold_is_entered_once(claims: Claimant) -> None:
    """A second entry would lose the first claim from sight."""
    hold = claims.hold("report", stake="scan", max_run="1m")
    with hold:
        pass
    with pytest.raises(Refused, match="CLM029"):
        hold.__enter__()
