"""Names of leases: any text, on any store, and two distinct names never share a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from claimant._model.errors import Refused

LONGEST_KEY = 200
"""Characters of a store key. Memcached allows 250 bytes; longer names are cut and carry their hash."""

PREFIX = "claimant"


def checked_name(name: object, what: str = "a job's name") -> str:
    """`name`, if it is text that can name something. Raises `Refused` (CLM001)."""
    if not isinstance(name, str):
        if callable(name) and what == "a job's name":
            raise Refused(
                "CLM001", '@claims.job needs its arguments: @claims.job("rebuild-index", stake="rebuild", …)'
            )
        raise Refused(
            "CLM001",
            f"{what} must be text, not {type(name).__name__}; write one such as 'rebuild-index'",
        )
    if not name.strip():
        raise Refused("CLM001", f"{what} is empty; give it one that people will recognise in a log at night")
    try:
        name.encode()
    except UnicodeEncodeError as exc:
        raise Refused(
            "CLM001", f"{what} {name!r} holds half a character (a lone surrogate) and has no UTF-8 form"
        ) from exc
    return name


def lease_key(namespace: str, name: str, parts: Iterable[str] = ()) -> str:
    """The key under which a lease lives in any store: printable ASCII, no spaces, at most 200 characters.

    Each piece is percent-encoded and the pieces are joined by ":", so that distinct inputs stay distinct; a key
    over the limit is cut and ended with the SHA-256 of its whole text.
    """
    from urllib.parse import quote  # with the first lease

    pieces = [
        PREFIX,
        quote(namespace, safe="-_.~"),
        *(quote(piece, safe="-_.~@/+,=") for piece in (name, *parts)),
    ]
    key = ":".join(pieces)
    if len(key) <= LONGEST_KEY:
        return key
    from hashlib import sha256

    return f"{key[: LONGEST_KEY - 66]}*:{sha256(key.encode()).hexdigest()}"


def key_text(parts: Mapping[str, str]) -> str:
    """The key parameters of one call as one text, "order_id=42": what the ledger shows and the lease's key ends with.

    Commas and percent signs in values are percent-encoded, so that distinct parts stay distinct.
    """
    return ", ".join(
        f"{name}={value.replace('%', '%25').replace(',', '%2C')}" for name, value in parts.items()
    )


def job_key(namespace: str, name: str, key: str = "") -> str:
    """The key of a job's lease: its name, and the text of its key parameters if it has any."""
    return lease_key(namespace, name, (key,) if key else ())


def shown(name: str, limit: int = 80) -> str:
    """A name as one printable line of at most `limit` characters, for logs and tables."""
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
