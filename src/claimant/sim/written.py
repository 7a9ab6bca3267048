"""A schedule as JSON, and back: a seed is a schedule of one version of `draw` only, and what failed once is kept for good."""

from __future__ import annotations

import json
import types
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from claimant.sim.schedule import Schedule


def dumped(schedule: Schedule) -> str:
    """The schedule as JSON text; what has its default is left out."""
    return json.dumps(_plain(schedule), indent=1)


def loaded(text: str) -> Schedule:
    """The schedule that `dumped` wrote. Raises `ValueError` for what is none."""
    found = _made(Schedule, json.loads(text))
    if not isinstance(found, Schedule):
        raise TypeError(f"no schedule: {text[:60]}")
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {
            each.name: _plain(getattr(value, each.name))
            for each in fields(value)
            if getattr(value, each.name) != each.default
        }
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def _made(kind: Any, plain: Any) -> Any:
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        unknown = set(plain) - set(hints)
        if unknown:
            raise ValueError(f"{kind} has no {', '.join(sorted(unknown))}")
        make: Any = kind
        return make(**{name: _made(hints[name], value) for name, value in plain.items()})
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if plain is None else _made(next(each for each in inner if each is not type(None)), plain)
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return tuple(_made(inner[0], each) for each in plain)
        return tuple(_made(each, value) for each, value in zip(inner, plain, strict=True))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    return plain
