"""What a session is asked on a running event loop. Apart, because it imports asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from claimant._drive import aio
from claimant._model import guarding, ops
from claimant._model.events import Event
from claimant._model.guarding import Dialect
from claimant.guards import sessions
from claimant.guards.sessions import Handlers, Session, handlers_for, plain_result


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
