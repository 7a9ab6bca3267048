"""The identity of an operation: the same for every attempt, worker and deploy; derived from the business key.

An identity starts with the job's name, so a refund of 42 is never a duplicate of the charge of 42. Parts are
compared by their text: the order 42 is the same order whether it arrives as a number or, through a broker, as
text, and a UUID is the same UUID. Parts that could collapse two orders into one (None, empty, "…None…") are
refused, and so is a float, which has no exact text.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any

from claimant._model.errors import Refused
from claimant._model.names import shown
from claimant._model.record import record

VERSION = "v1"


@record
class Operation:
    """A thing that must happen once. `key` is 32 bytes; `fingerprint` is 32 bytes, or empty: not compared."""

    key: bytes
    label: str
    fingerprint: bytes = b""


def part_text(part: object, *, what: str, name: str) -> str:
    """One identity part as text. Raises `Refused` (CLM031) for parts that cannot identify anything."""
    text = _text(part)
    if text is None:
        raise Refused(
            "CLM031",
            f"{what}={part!r} cannot be part of an operation's identity ({type(part).__name__}); "
            "use text, a whole number, a UUID, a Decimal, a date, a datetime with a zone, or an Enum of these",
            name=name,
        )
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise Refused(
            "CLM031",
            f"{what}={part!r} holds half a character (a lone surrogate) and has no UTF-8 form",
            name=name,
        )
    if not text.strip() or "None" in text:
        raise Refused(
            "CLM031",
            f"{what}={part!r}: an empty part, or one with None in it, would make different operations one. "
            "Pass the real business key, or refuse the input before it gets here",
            name=name,
        )
    return text


def is_data(value: object) -> bool:
    """Whether `value` could be a part of an identity, and so makes two calls different."""
    return _text(value) is not None


def _text(part: object) -> str | None:
    from decimal import Decimal  # with the first identity, and not with every `import claimant`
    from uuid import UUID

    match part:
        case bool() | None | float():
            return None
        case Enum():
            return _text(part.value)
        case str():
            return part
        case int() | UUID() | Decimal():
            return str(part)
        case datetime():
            return part.astimezone(UTC).isoformat() if part.tzinfo is not None else None
        case date():
            return part.isoformat()
        case _:
            return None


def identify(job: str, parts: Mapping[str, str], fingerprint: bytes = b"") -> Operation:
    """The operation of `job` with these named parts, whose order does not matter."""
    import json  # these with the first identity, and not with every `import claimant`
    from hashlib import sha256

    canonical = json.dumps([VERSION, job, sorted(parts.items())], ensure_ascii=False, separators=(",", ":"))
    label = ", ".join(f"{key}={shown(value, 40)}" for key, value in parts.items())
    return Operation(sha256(canonical.encode()).digest(), f"{shown(job)}({label})", fingerprint)


def fingerprint_of(parameters: Mapping[str, object]) -> bytes:
    """SHA-256 of the parameters outside the key, or empty where there are none that can be compared.

    Values with no canonical form (a connection, say) are left out by name: they are how, not what.
    """
    known = {name: form for name, value in parameters.items() if (form := _canonical(value)) is not _OPAQUE}
    if not known:
        return b""
    import json
    from hashlib import sha256

    return sha256(json.dumps([VERSION, known], sort_keys=True, separators=(",", ":")).encode()).digest()


_OPAQUE: Any = object()


def _canonical(value: object) -> Any:
    from decimal import Decimal
    from uuid import UUID

    if isinstance(value, Enum):
        return ["enum", _canonical(value.value)]
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return ["float", repr(value)]
        case date():
            return [type(value).__name__, _text(value) or value.isoformat()]
        case UUID() | Decimal():
            return [type(value).__name__, str(value)]
        case bytes():
            return ["bytes", value.hex()]
        case list() | tuple():
            return _all("list", [_canonical(item) for item in value])
        case set() | frozenset():
            forms = [_canonical(item) for item in value]
            return _all("set", sorted(forms, key=repr))
        case dict():
            if not all(isinstance(key, str) for key in value):
                return _OPAQUE
            pairs = {key: _canonical(item) for key, item in value.items()}
            return _OPAQUE if any(form is _OPAQUE for form in pairs.values()) else pairs
        case _:
            return _OPAQUE


def _all(kind: str, forms: list[Any]) -> Any:
    return _OPAQUE if any(form is _OPAQUE for form in forms) else [kind, forms]
