"""One attempt on a running event loop. Apart from `attempting`, because it imports asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from claimant._drive import aio
from claimant._flows.once import once
from claimant._model import guarding, ops
from claimant._model.dialect import Dialect
from claimant._model.errors import Refused
from claimant._model.events import Event
from claimant._model.operation import Operation
from claimant._model.outcome import Answer
from claimant._sql.handles import Make, unscoped
from claimant.guards import sessions
from claimant.guards.attempting import checked, plan_of, said, session_of
from claimant.guards.once import Context, Once, Said
from claimant.guards.sessions import Handlers, Session, handlers_for, plain_result


async def attempt(
    guard: Once, handle: Any, effect: Callable[[Any], Any], operation: Operation, context: Context
) -> Said[Any]:
    """`attempting.attempt` on the running loop; `effect` may be plain or a coroutine function."""
    found = checked(handle, effect)
    if found.make is Make.DJANGO:
        raise Refused(
            "CLM042",
            "run.once() was given a Django connection inside an `async def` body, and Django's connections are for threads. Write "
            "the job's body as a plain function, and call the job with sync_to_async",
            name=context.job,
        )
    if not found.waits and guard.target.dialect is Dialect.POSTGRESQL:
        raise Refused(
            "CLM042",
            f"run.once() was given a plain {found.make.value} inside an `async def` body: a duplicate that waits for the first "
            "would stop the whole event loop, the first with it. Pass the async one",
            name=context.job,
        )
    session = session_of(guard, unscoped(handle, found.make), found)
    plan = plan_of(guard, session, operation, context)
    answer: Answer[Any] = await aio.run(
        once(plan), aio_table(session, effect, guard.target.dialect, context.emit)
    )
    return said(session, answer, plan, context)


def aio_table(
    session: Session, effect: Callable[[Any], Any], dialect: Dialect, emit: Callable[[Event], object]
) -> Handlers:
    """For a body that is `async def`. A session that does not wait is called on the loop: it must not block it."""
    table = handlers_for(session, dialect, emit)
    if session.waits:

        async def opened(_: Any) -> None:
            async with asyncio.timeout(sessions.CONNECT_S):
                await session.open()

        table[guarding.Open] = opened
    else:
        table = {kind: _awaited(answer) if kind.waits else answer for kind, answer in table.items()}

    async def run_effect(_: Any) -> Any:
        result = effect(session.tx)
        result = plain_result(await result if inspect.isawaitable(result) else result)
        flushed = session.flush()
        if session.waits:
            await flushed
        return result

    table[guarding.Effect] = run_effect
    table[ops.SleepUntil] = aio.sleep_until
    return table


def _awaited(answer: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    async def answered(request: Any) -> Any:
        return answer(request)

    return answered
