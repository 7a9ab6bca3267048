"""The blocking interpreter: carries a flow out on the calling thread."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from claimant._drive import clock
from claimant._drive.ports import LedgerPort, StorePort
from claimant._drive.process import Process
from claimant._model import ops, records
from claimant._model.ops import Flow, Request

T = TypeVar("T")
Handlers = Mapping[type[Request], Callable[[Any], Any]]

STORE_REQUESTS: tuple[type[Request], ...] = (ops.Create, ops.Release, ops.Renew, ops.Repair, ops.Peek)
LEDGER_REQUESTS: tuple[type[Request], ...] = (
    records.LedgerNow,
    records.Begin,
    records.SlotState,
    records.Finish,
    records.CloseSlot,
    records.Skip,
)


class Carried(Exception):
    """A StopIteration of the user's code on its way through a flow, where Python would turn it into another error."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__(str(error))
        self.error = error


def run(flow: Flow[T], handlers: Handlers) -> T:
    """Carry `flow` out. What a handler raises is thrown into the flow at the request that it answers."""
    send = flow.send
    try:
        request = next(flow)
        while True:
            try:
                reply = handlers[type(request)](request)
            except StopIteration as error:
                request = flow.throw(Carried(error))
            except BaseException as error:
                request = flow.throw(error)
            else:
                request = send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except Carried as carried:
        raise carried.error from None


def sleep_until(request: ops.SleepUntil) -> None:
    """Sleep on the calling thread."""
    time.sleep(max(0, request.at_ms - clock.now_ms()) / 1_000)


def call(request: ops.Call) -> Any:
    """Run the user's code. What would only begin to work when somebody awaits or iterates it has not worked."""
    result = request.work()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
        raise TypeError(
            f"a plain body returned a {type(result).__name__}, and nothing would run it: declare it with async def, or "
            "return the finished result"
        )
    return result


def handlers(
    process: Process, store: StorePort | None, ledger: LedgerPort | None
) -> dict[type[Request], Callable[[Any], Any]]:
    """Everything that a flow may ask of one process, answered on the calling thread."""
    table = process.handlers()
    table[ops.SleepUntil] = sleep_until
    table[ops.Call] = call
    if store is not None:
        table.update(dict.fromkeys(STORE_REQUESTS, store.call))
    if ledger is not None:
        table.update(dict.fromkeys(LEDGER_REQUESTS, ledger.call))
    return table
