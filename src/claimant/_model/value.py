"""What a store keeps under a lease's key: format version, token, lifetime, short holder label.

The value is constant for the life of the lease, so that a create whose reply was lost recognises itself and a
compare-and-set can name it whole. When it is read it is data from strangers.
"""

from __future__ import annotations

import functools

from claimant._model.record import record

FORMAT = "c1"
LONGEST_LABEL = 48


@record
class LeaseValue:
    """One acquisition. `lifetime_ms` is the lifetime that the holder asked for, in milliseconds."""

    token: str
    lifetime_ms: int
    label: str

    def encode(self) -> str:
        """The text to store: `c1|token|lifetime|label`, ASCII, without spaces."""
        return encoded(self.token, self.lifetime_ms, self.label)


def encoded(token: str, lifetime_ms: int, label: str) -> str:
    """See `LeaseValue.encode`."""
    return f"{FORMAT}|{token}|{lifetime_ms}|{clean_label(label)}"


@functools.lru_cache(maxsize=256)
def clean_label(label: str) -> str:
    """A holder label that fits the value: printable ASCII without spaces or "|", at most 48 characters."""
    return "".join(char if 33 <= ord(char) < 127 and char != "|" else "_" for char in label)[:LONGEST_LABEL]


def decode(text: str) -> LeaseValue | None:
    """The lease that a stored text describes; None if the text is not ours (or no longer readable by us)."""
    pieces = text.split("|")
    if len(pieces) != 4 or pieces[0] != FORMAT:
        return None
    _, token, lifetime, label = pieces
    if not (
        token.isascii()
        and token.isalnum()
        and lifetime.isascii()
        and lifetime.isdigit()
        and len(lifetime) < 13
    ):
        return None
    return LeaseValue(token, int(lifetime), clean_label(label)) if int(lifetime) > 0 else None


def holder_of(text: str, value: LeaseValue | None = None) -> str:
    """Who holds, for people: the label of one of our values, else a short quote of the foreign text.

    `value`: what `text` was decoded to, if that is known.
    """
    value = value or decode(text)
    if value is not None:
        return value.label
    return f"a foreign value ({clean_label(text)[:24]!r})"
