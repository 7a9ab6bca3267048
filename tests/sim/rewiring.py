"""Drives a shipped flow and changes single requests or answers on their way: how a bug is planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def rewired(flow: Any, edit: Callable[[Any], Any]) -> Any:
    """Drive `flow`; each request goes through `edit`, a generator that carries it out, or something else instead."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = flow.send(value) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value
        try:
            value, error = (yield from edit(request)), None
        except GeneratorExit:
            flow.close()
            raise
        except BaseException as raised:
            value, error = None, raised
