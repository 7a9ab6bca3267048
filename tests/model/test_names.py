"""Names: any text, and distinct names never share a key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimant._model.errors import Refused
from claimant._model.names import LONGEST_KEY, checked_name, lease_key, shown

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
ODD = ["a b", "a\nb", "a\0b", "🧾" * 50, "{a}", "a:b", "a%3Ab", "x" * 10_000, "x" * 10_001, "é", "e\u0301"]


@given(st.tuples(TEXT, TEXT, st.lists(TEXT, max_size=3)), st.tuples(TEXT, TEXT, st.lists(TEXT, max_size=3)))
def test_distinct_names_never_share_a_key(
    one: tuple[str, str, list[str]], other: tuple[str, str, list[str]]
) -> None:
    """Two names share a key only if namespace, name and parts are the same."""
    assert (lease_key(*one) == lease_key(*other)) == (one == other)


def test_a_colon_in_one_piece_is_not_the_border_between_two() -> None:
    """The separator cannot be forged from inside a piece."""
    assert (
        len(
            {lease_key("a", "b", ["c"]), lease_key("a", "b:c"), lease_key("a:b", "c"), lease_key("", "a:b:c")}
        )
        == 4
    )


@pytest.mark.parametrize("name", ODD)
def test_every_key_is_short_printable_and_free_of_spaces(name: str) -> None:
    """Any text makes a key that every store accepts, memcached's 250 bytes included."""
    key = lease_key("shop", checked_name(name), [name])
    assert len(key) <= LONGEST_KEY
    assert key.isascii()
    assert key.isprintable()
    assert " " not in key


def test_long_names_that_differ_at_the_end_have_different_keys() -> None:
    """Cutting a name does not make two names one."""
    assert len({lease_key("", "x" * length) for length in range(100, 400)}) == 300


@pytest.mark.parametrize("name", ["", "   ", "\n", None, 42, b"job", "half \ud83e"])
def test_what_cannot_name_anything_is_refused(name: object) -> None:
    """Empty, non-text and unencodable names are refused when they are declared."""
    with pytest.raises(Refused, match="CLM001"):
        checked_name(name)


@given(st.text())
def test_a_shown_name_is_one_printable_line(name: str) -> None:
    """Whatever a name holds, a log line or a table row stays one line."""
    line = shown(name)
    assert len(line) <= 80
    assert "\n" not in line
    assert line.isprintable()
