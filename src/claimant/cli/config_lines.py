"""In which line of a TOML file a key stands: for messages, which tomllib leaves without one once a file is read.

It only points. Where it cannot be sure it says nothing, and no value ever depends on it.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

_PIECE = r"""(?:[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_PATH = rf"{_PIECE}(?:\s*\.\s*{_PIECE})*"
_HEADER = re.compile(rf"\s*\[\s*({_PATH})\s*\]")
_KEY = re.compile(rf"\s*({_PATH})\s*=")


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """The number of the line in which this key, or table, begins. None where that cannot be told."""
    if '"""' in text or "'''" in text:
        return None  # a text of several lines may hold anything, even lines that look like keys
    table: tuple[str, ...] = ()
    within = None
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _pieces(header[1])
            if table == path:
                return number
            if within is None and table[: len(path)] == path:
                within = number
        elif key := _KEY.match(line):
            here = (*table, *_pieces(key[1]))
            if here == path:
                return number
            # An inline table, `defaults = { lifetime = "30s" }`, or a dotted key, `defaults.lifetime = "30s"`.
            if within is None and (here == path[: len(here)] or here[: len(path)] == path):
                within = number
    return within


def _pieces(written: str) -> tuple[str, ...]:
    try:
        here: Any = tomllib.loads(f"{written} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    found: list[str] = []
    while isinstance(here, dict):
        found.append(next(iter(here)))
        here = here[found[-1]]
    return tuple(found)
