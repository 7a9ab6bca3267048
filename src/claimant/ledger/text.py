"""Names as fixed-size keys, and texts as a database can keep them.

A name may be any text of any length; an index entry may not. So rows are found by a SHA-256 of the name, never by
the name itself, and two distinct names never share a row.
"""

from __future__ import annotations

from hashlib import sha256

LONGEST_TEXT = 1_000
"""Characters of a reason or a holder that are kept; a person reads them, nothing compares them."""

# PostgreSQL text holds every character but NUL. SUB (U+001A) introduces the two characters that need a stand-in.
_SUB = "\x1a"


def digest(*pieces: str) -> bytes:
    """32 bytes that stand for these texts in this order; each is preceded by its length, so that pieces cannot run together."""
    return sha256("".join(f"{len(piece)}:{piece}" for piece in map(clean, pieces)).encode()).digest()


def clean(text: str) -> str:
    r"""The text with half characters (lone surrogates) written out as `\udc80`: they have no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def short(text: str) -> str:
    """The text, cleaned and cut to what is kept of a reason."""
    text = clean(text)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def without_nul(text: str) -> str:
    """A text that PostgreSQL can keep; `with_nul` gives the original back."""
    if "\0" in text or _SUB in text:
        return text.replace(_SUB, _SUB + "s").replace("\0", _SUB + "0")
    return text


def with_nul(text: str) -> str:
    """The original of a text that `without_nul` made."""
    if _SUB in text:
        return text.replace(_SUB + "0", "\0").replace(_SUB + "s", _SUB)
    return text
