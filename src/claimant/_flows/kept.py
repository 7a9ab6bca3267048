"""Whether an effect's result can be kept with its guard row, to be replayed to duplicates.

A result that cannot be kept is never an error: the effect has happened by then, and counts.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from claimant._model.guarding import Kept

LONGEST_RESULT = 65_536
"""Bytes of JSON. A guard row is an index entry, not a place for documents."""


def kept(result: Any) -> Kept:
    """`result` as JSON text, or a note that says why it is not kept. A driver's cursor is no result."""
    if result is None or (hasattr(result, "fetchone") and hasattr(result, "rowcount")):
        return Kept()
    unfit = _unfit(result, 0)
    if unfit:
        return Kept(note=f"result not kept: {unfit} has no exact JSON form")
    text = json.dumps(result, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return Kept(note="result not kept: it holds half a character (a lone surrogate)")
    if size > LONGEST_RESULT:
        return Kept(note=f"result not kept: {size} bytes of JSON, more than {LONGEST_RESULT}")
    return Kept(text)


def _unfit(value: Any, depth: int) -> str:
    """The name of the first type that JSON would refuse or change silently; "" if there is none. Tuples become lists."""
    if depth > 50:
        return "something nested deeper than 50 levels"
    match value:
        case None | bool() | str() | int():
            return "" if type(value) in (type(None), bool, str, int) else type(value).__name__
        case float():
            return "" if isfinite(value) else repr(value)
        case list() | tuple():
            return next((unfit for item in value if (unfit := _unfit(item, depth + 1))), "")
        case dict():
            if not all(type(key) is str for key in value):
                return "a dict with keys that are not text"
            return next((unfit for item in value.values() if (unfit := _unfit(item, depth + 1))), "")
        case _:
            return type(value).__name__
