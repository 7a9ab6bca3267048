"""What observers are told. Each event has a fixed name, a level, and plain fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `kind` is dotted and stable ("lease.lost"); `fields` are JSON-able.

    `error`: the exception that is told of, where nobody else will see it.
    """

    kind: str
    name: str
    text: str
    level: Level = "info"
    fields: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    error: BaseException | None = field(default=None, compare=False)
