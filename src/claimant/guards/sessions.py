"""A session carries a guard's requests out on one handle. What all of them share, whatever the driver.

A session never decides anything: it begins, executes, commits and reports, as it is told by the flow.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable
from typing import Any, Protocol

from claimant._drive import blocking, clock
from claimant._model import guarding, ops
from claimant._model.dialect import Dialect
from claimant._model.errors import Refused
from claimant._model.events import Event
from claimant._model.guarding import Execute, Reply, Statement
from claimant._model.ops import Request
from claimant._sql.diagnosis import diagnose
from claimant._sql.guard_texts import TEXTS

CONNECT_S = 10.0
"""How long a connection is waited for, a pool's queue included, before the database counts as unreachable."""

MARKS = (Statement.CLAIM_BOUND, Statement.CLAIM_WITHIN, Statement.BEGUN, Statement.STILL)
"""Whose first value is the identity of the open transaction, where there is one."""

Handlers = dict[type[Request], Callable[[Any], Any]]


class StillOpen(Protocol):
    """Asks whether the caller's transaction, the very one that was joined, is still open."""

    def __call__(self) -> bool:
        """True while it is open."""
        ...

    def on_commit(self, callback: Callable[[], None], /) -> bool:
        """Have `callback` called after the commit. False: this kind of handle cannot tell."""
        ...


class Session(Protocol):
    """One handle, plain or to be awaited (`waits`): then each method but the properties returns an awaitable."""

    waits: bool
    joined: bool
    release_tells: bool
    """Whether `release` tells an ended or void transaction, and leaves a void one to be undone."""
    reopens: bool
    replays: bool
    mark: str
    """The identity of the joined transaction, where the database has one."""

    @property
    def tx(self) -> Any:
        """What the effect is given."""

    @property
    def place(self) -> str:
        """Where this is, for remembering what was verified there."""
        ...

    def open(self) -> Any:
        """Have a connection, and see that it is of the declared database and has transactions."""

    def begin(self) -> Any:
        """Begin a transaction of our own."""

    def execute(self, text: str, params: tuple[Any, ...]) -> Any:
        """Carry out one statement of ours. Gives a `Reply`."""

    def savepoint(self) -> Any:
        """Set a savepoint."""

    def release(self) -> Any:
        """Release it; `TransactionEnded` where it is gone."""

    def rollback_to(self) -> Any:
        """Undo what was done since, and drop it."""

    def flush(self) -> Any:
        """Send out what an ORM holds back."""

    def commit(self) -> Any:
        """Commit our own transaction, and be sure of it."""

    def rollback(self) -> Any:
        """Roll our own transaction back."""

    def close(self, *, broken: bool) -> Any:
        """Give back what was taken, dropping it if `broken`. Never fails."""

    def in_transaction(self) -> bool:
        """The database's own word for it."""
        ...

    def broken(self, error: BaseException, /) -> bool:
        """Whether the connection in use is dead."""
        ...

    def caller(self, key: bytes, run_id: str, /) -> StillOpen | None:
        """The transaction that was joined, if one was. `key`: of the guard row in it, or empty: there is none."""


def handlers_for(session: Session, dialect: Dialect, emit: Callable[[Event], object]) -> Handlers:
    """Everything that the guard's flow may ask, answered by `session` on this thread or on the running loop."""
    texts = TEXTS[dialect]

    def text_of(request: Execute) -> str:
        return texts[request.statement] if isinstance(request.statement, Statement) else request.statement

    table: Handlers = {
        guarding.Open: lambda _: session.open(),
        guarding.BeginOwned: lambda _: session.begin(),
        guarding.Savepoint: lambda _: session.savepoint(),
        guarding.ReleaseSavepoint: lambda _: session.release(),
        guarding.RollbackTo: lambda _: session.rollback_to(),
        guarding.Commit: lambda _: session.commit(),
        guarding.Rollback: lambda _: session.rollback(),
        guarding.Close: lambda request: session.close(broken=request.broken),
        guarding.InTransaction: lambda _: session.in_transaction(),
        guarding.Classify: lambda request: diagnose(request.error, broken=session.broken(request.error)),
        ops.Now: lambda _: clock.now_ms(),
        ops.Jitter: lambda request: secrets.randbelow(request.limit + 1) if request.limit > 0 else 0,
        ops.Emit: lambda request: emit(request.event),
    }

    def noted(request: Execute, reply: Reply) -> Reply:
        if request.statement in MARKS and reply.rows:
            session.mark = reply.rows[0][0] or ""
        return reply

    if session.waits:

        async def execute(request: Execute) -> Reply:
            return noted(request, await session.execute(text_of(request), request.params))

        table[guarding.Execute] = execute
    else:
        table[guarding.Execute] = lambda request: noted(
            request, session.execute(text_of(request), request.params)
        )
    return table


def blocking_table(
    session: Session, effect: Callable[[Any], Any], dialect: Dialect, emit: Callable[[Event], object]
) -> Handlers:
    """For a plain body."""
    table = handlers_for(session, dialect, emit)

    def run_effect(_: Any) -> Any:
        result = plain_result(effect(session.tx))
        session.flush()
        return result

    table[guarding.Effect] = run_effect
    table[ops.SleepUntil] = blocking.sleep_until
    return table


def plain_result(result: Any) -> Any:
    """The effect's result, unless it is work that nobody would ever do. Raises `Refused` (CLM048)."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise Refused(
            "CLM048",
            "the effect is a generator: calling it did no work. Return the result instead of yielding",
        )
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise Refused(
            "CLM048",
            "the effect returned something to be awaited, and a plain job awaits nothing: it would never have run. Write the "
            "job's body as `async def` and `await run.once(…)`, or give a plain function",
        )
    return result
