"""One text for every driver: "?" stands for a parameter and is rewritten to what the driver expects."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=512)
def rendered(text: str, style: str) -> str:
    """`text` with its "?" in a DB-API paramstyle. Our texts hold no other "?" and no "%"."""
    match style:
        case "qmark":
            return text
        case "format" | "pyformat":
            return text.replace("?", "%s")
        case "numeric_dollar":
            pieces = text.split("?")
            return "".join(piece + f"${at}" for at, piece in enumerate(pieces[:-1], 1)) + pieces[-1]
        case _:
            raise ValueError(f"no known way to write parameters in the style {style!r}")
