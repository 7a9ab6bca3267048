"""The asyncio interpreter: carries the same flows out on a running event loop.

Nothing here uses the loop's executor: see `worker`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from claimant._drive import clock
from claimant._drive.blocking import LEDGER_REQUESTS, STORE_REQUESTS, Handlers
from claimant._drive.ports import AsyncStorePort, LedgerPort
from claimant._drive.process import Process
from claimant._drive.worker import Worker
from claimant._model import ops
from claimant._model.ops import Flow, Request

T = TypeVar("T")


async def run(flow: Flow[T], handlers: Handlers) -> T:
    """Carry `flow` out. Cancellation is thrown into the flow at the request that was being awaited."""
    try:
        request = next(flow)
        while True:
            try:
                reply = handlers[type(request)](request)
                if request.waits:
                    reply = await reply
            except BaseException as error:
                request = flow.throw(error)
            else:
                request = flow.send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def sleep_until(request: ops.SleepUntil) -> None:
    """Sleep without blocking the loop."""
    await asyncio.sleep(max(0, request.at_ms - clock.now_ms()) / 1_000)


async def call(request: ops.Call) -> Any:
    """Run the user's code, and await what it returns if that is to be awaited."""
    result = request.work()
    return await result if inspect.isawaitable(result) else result


def on_worker(worker: Worker, ledger: LedgerPort) -> Callable[[Any], Awaitable[Any]]:
    """The ledger's blocking port, called on a thread of its own and awaited.

    A caller that is cancelled meanwhile does not stop the write: it is carried out, and its answer dropped.
    """

    async def carry_out(request: Any) -> Any:
        return await asyncio.shield(asyncio.wrap_future(worker.submit(lambda: ledger.call(request))))

    return carry_out


def handlers(
    process: Process, store: AsyncStorePort | None, ledger: LedgerPort | None, worker: Worker
) -> dict[type[Request], Callable[[Any], Any]]:
    """Everything that a flow may ask of one process, answered on the running loop."""
    table = process.handlers()
    table[ops.SleepUntil] = sleep_until
    table[ops.Call] = call
    if store is not None:
        table.update(dict.fromkeys(STORE_REQUESTS, store.call))
    if ledger is not None:
        table.update(dict.fromkeys(LEDGER_REQUESTS, on_worker(worker, ledger)))
    return table
