"""The stored value: constant, readable by strangers, and never trusted when it comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from claimant._model.value import LeaseValue, clean_label, decode, holder_of


@given(st.from_regex(r"[0-9a-f]{32}", fullmatch=True), st.integers(1, 10**12 - 1), st.text())
def test_a_value_survives_the_store(token: str, lifetime: int, label: str) -> None:
    """What was encoded is decoded, with the label cleaned."""
    value = LeaseValue(token, lifetime, label)
    assert decode(value.encode()) == LeaseValue(token, lifetime, clean_label(label))


@given(st.text())
def test_a_strangers_text_is_never_an_error(text: str) -> None:
    """Any text is one of ours or foreign, and can be shown on one line."""
    decode(text)
    assert holder_of(text).isprintable()


def test_a_lifetime_of_zero_or_an_absurd_one_is_foreign() -> None:
    """A value that names no usable lifetime must not lead a repair."""
    token = "0" * 32
    assert decode(f"c1|{token}|0|x") is None
    assert decode(f"c1|{token}|{10**13}|x") is None
    assert decode(f"c2|{token}|1000|x") is None
    assert decode(f"c1|{token}|-5|x") is None
    assert decode(f"c1|{token}|٥٥|x") is None
