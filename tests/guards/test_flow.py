"""The guard's decisions against a model of a database in which every request can fail in every way, twice.

What is searched is the production flow; only the database is a model: one committed state, one open transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any

import pytest

from claimant._drive import blocking
from claimant._flows import once as flow
from claimant._model import guarding, ops
from claimant._model.dialect import Dialect
from claimant._model.guarding import TRAITS, Attempt, Diagnosis, Execute, Reply, Statement, Trouble
from claimant._model.operation import identify
from claimant._model.ops import Flow
from claimant._model.outcome import Answer, AnswerKind

OPERATION = identify("debit-wallet", {"order_id": "42"})


class DatabaseError(Exception):
    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.value)
        self.trouble = trouble


class Crash(BaseException):
    """The process dies here."""


@dataclass
class State:
    row: str | None = None
    result: str | None = None
    effects: list[str] = field(default_factory=list)
    rejections: set[tuple[str, str]] = field(default_factory=set)


@dataclass(frozen=True)
class Fault:
    """At the `at`-th request that waits: `trouble`, before or after the request was carried out; None: the process dies."""

    at: int
    trouble: Trouble | None
    after: bool = False

    def __str__(self) -> str:
        return f"{self.at}-{'crash' if self.trouble is None else self.trouble.value}{'-after' if self.after else ''}"


class World:
    """A database and the clock beside it."""

    def __init__(self, dialect: Dialect) -> None:
        self.traits = TRAITS[dialect]
        self.committed = State()
        self.now = 0
        self.transactions = 0

    def attempt(self, run_id: str, faults: tuple[Fault, ...] = (), *, own: bool = False) -> Answer[Any]:
        """One owned attempt. Raises `Crash`, or the error that the flow lets out."""
        return blocking.run(
            flow.once(self.plan(run_id, own=own)), Connection(self, run_id, faults, own=own).handlers()
        )

    def plan(self, run_id: str, *, own: bool) -> Attempt:
        def verify() -> Flow[None]:
            yield ops.Now()

        def violated(found: Diagnosis) -> bool:
            return found.trouble is Trouble.UNIQUE

        return Attempt(
            OPERATION,
            run_id,
            "debit-wallet",
            "money",
            "",
            self.traits,
            False,
            True,
            100,
            100,
            verify,
            violated if own else None,
        )


class Connection:
    """One process's connection: what is pending in its transaction, and the faults it will meet."""

    def __init__(self, world: World, run_id: str, faults: tuple[Fault, ...], *, own: bool) -> None:
        self.world, self.run_id, self.own = world, run_id, own
        self.faults = {fault.at: fault for fault in faults}
        self.requests = 0
        self.pending: State | None = None
        self.mark = ""
        self.lost = False

    def handlers(self) -> dict[Any, Callable[[Any], Any]]:
        steps: dict[Any, Callable[[Any], Any]] = {
            guarding.Open: lambda _: self.opened(),
            guarding.BeginOwned: lambda _: self.begin(),
            guarding.Execute: self.execute,
            guarding.Savepoint: lambda _: None,
            guarding.ReleaseSavepoint: lambda _: None,
            guarding.RollbackTo: lambda _: None,
            guarding.Effect: lambda _: self.effect(),
            guarding.Commit: lambda _: self.commit(),
            guarding.Rollback: lambda _: self.rollback(),
        }
        return {kind: self.faulty(step) for kind, step in steps.items()} | {
            guarding.Close: lambda _: self.rollback(),
            guarding.InTransaction: lambda _: False,
            guarding.Classify: self.classify,
            ops.Now: lambda _: self.world.now,
            ops.Jitter: lambda request: request.limit,
            ops.SleepUntil: self.sleep,
            ops.Emit: lambda _: None,
        }

    def faulty(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def carried(request: Any) -> Any:
            fault = self.faults.pop(self.requests, None)
            self.requests += 1
            if self.lost and not isinstance(request, guarding.Open):
                raise DatabaseError(Trouble.LOST)
            if fault is None or (
                isinstance(request, guarding.Open) and fault.trouble is Trouble.SERIALIZATION
            ):
                return step(request)
            if fault.after:
                step(request)
            self.pending = None
            self.lost = fault.trouble is Trouble.LOST
            raise Crash if fault.trouble is None else DatabaseError(fault.trouble)

        return carried

    def classify(self, request: guarding.Classify) -> Diagnosis:
        error = request.error
        known = isinstance(error, DatabaseError)
        return Diagnosis(
            error.trouble if isinstance(error, DatabaseError) else Trouble.OTHER,
            driver=known,
            text=str(error),
        )

    def sleep(self, request: ops.SleepUntil) -> None:
        self.world.now = max(self.world.now, request.at_ms)

    def opened(self) -> None:
        self.lost = False

    def begin(self) -> None:
        committed = self.world.committed
        self.pending = replace(committed, effects=[*committed.effects], rejections={*committed.rejections})
        self.world.transactions += 1
        self.mark = str(self.world.transactions)

    def state(self) -> State:
        if self.pending is None:
            raise DatabaseError(Trouble.VOID)
        return self.pending

    def effect(self) -> str:
        state = self.state()
        if self.own and state.effects:
            self.pending = None
            raise DatabaseError(Trouble.UNIQUE)
        state.effects.append(self.run_id)
        return "ok"

    def commit(self) -> None:
        self.world.committed = self.state()
        self.pending = None

    def rollback(self) -> None:
        self.pending = None

    def execute(self, request: Execute) -> Reply:
        match request.statement:
            case Statement.CLAIM | Statement.CLAIM_BOUND | Statement.CLAIM_WITHIN:
                state = self.state()
                marks = self.world.traits.transaction_ids
                if state.row is not None:
                    return Reply([(None,)] if marks else [], 0)
                state.row = request.params[-2]
                return Reply([(self.mark,)] if marks else [], 1)
            case Statement.LOOK:
                state = self.state()
                return Reply([] if state.row is None else [(b"", state.row, state.result, "")])
            case Statement.KEEP:
                self.state().result = request.params[0]
            case Statement.REJECT:
                self.state().rejections.add((request.params[1], request.params[2]))
            case Statement.BEGUN | Statement.STILL:
                self.state()
                return Reply([(self.mark,)])
            case Statement.PATIENCE:
                return Reply([(5000,)])
            case _:
                pass
        return Reply([])


def faults(requests: int) -> Iterator[Fault]:
    for at in range(requests):
        for after in (False, True):
            for trouble in (Trouble.LOST, Trouble.SERIALIZATION, Trouble.LOCK_TIMEOUT, Trouble.OTHER, None):
                if after and trouble not in (Trouble.LOST, None):
                    continue  # an answer that is an error means that it was not done
                yield Fault(at, trouble, after)


CASES = [(dialect, own) for dialect in Dialect for own in (False, True)]


@pytest.mark.parametrize(("dialect", "own"), CASES)
def test_any_two_faults_of_the_first_attempt(dialect: Dialect, own: bool) -> None:
    """Whatever two requests of a first attempt fail, and however: one effect after the second, and every answer is true."""
    searched = 0
    for pair in combinations_with_replacement(list(faults(16)), 2):
        if pair[0] != pair[1] and pair[0].at == pair[1].at:
            continue
        world = World(dialect)
        answer: Answer[Any] | None = None
        with contextlib.suppress(Crash, DatabaseError):
            answer = world.attempt("run-1", tuple({fault.at: fault for fault in pair}.values()), own=own)
        done = world.committed.effects.count("run-1")
        where = f"{dialect} own={own} {pair[0]} {pair[1]}: {answer} {world.committed}"
        assert done <= 1, where
        if not own:
            assert (world.committed.row == "run-1") == bool(done), where
        match None if answer is None else answer.kind:
            case AnswerKind.APPLIED:
                assert done == 1, where
                assert answer is not None
                assert answer.value == "ok", where
            case AnswerKind.DUPLICATE:
                # Only a constraint that met a row of ours, which it cannot know.
                assert own, where
                assert done == 1, where
            case AnswerKind.REFUSED | AnswerKind.IN_FLIGHT | AnswerKind.MISMATCH:
                assert done == 0, where
            case _:
                pass
        second = world.attempt("run-2", own=own)
        assert second.kind is (AnswerKind.DUPLICATE if done else AnswerKind.APPLIED), where
        assert len(world.committed.effects) == 1, where
        searched += 1
    assert searched > 1_000


@pytest.mark.parametrize(("dialect", "own"), CASES)
def test_any_two_faults_of_the_second_attempt(dialect: Dialect, own: bool) -> None:
    """A second attempt never has an effect, is counted at most once, and exactly once where it was answered unharmed."""
    for pair in combinations_with_replacement(list(faults(16)), 2):
        if pair[0] != pair[1] and pair[0].at == pair[1].at:
            continue
        world = World(dialect)
        assert world.attempt("run-1", own=own).kind is AnswerKind.APPLIED
        answer: Answer[Any] | None = None
        with contextlib.suppress(Crash, DatabaseError):
            answer = world.attempt("run-2", tuple({fault.at: fault for fault in pair}.values()), own=own)
        where = f"{dialect} own={own} {pair[0]} {pair[1]}: {answer} {world.committed}"
        assert world.committed.effects == ["run-1"], where
        assert len(world.committed.rejections & {("run-2", "duplicate")}) <= 1, where
        if answer is not None:
            assert answer.kind is not AnswerKind.APPLIED, where
        harmless = all(fault.trouble is Trouble.SERIALIZATION for fault in pair)
        if harmless:
            assert answer is not None, where
            assert ("run-2", "duplicate") in world.committed.rejections, where


def test_unknown_is_only_said_in_doubt() -> None:
    """`unknown` is answered only where a COMMIT was sent and never acknowledged."""
    for fault in faults(16):
        world = World(Dialect.POSTGRESQL)
        try:
            answer = world.attempt("run-1", (fault, Fault(fault.at + 2, Trouble.OTHER)))
        except (Crash, DatabaseError):
            continue
        if answer.kind is AnswerKind.UNKNOWN:
            assert fault.trouble is Trouble.LOST
            assert "claimant_guard" in answer.reason
