"""A record is what a frozen, slotted dataclass is, for the types that flows ask and are answered."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import ClassVar, Generic, TypeVar

import pytest

from claimant._model.ops import Create, Gate, Held, Now, Report
from claimant._model.record import record, replaced

T = TypeVar("T")


@record
class Point:
    """Two numbers."""

    scale: ClassVar[int] = 2
    x: int
    y: int = 0

    @property
    def sum(self) -> int:
        return self.x + self.y * self.scale


@record
class Named(Point):
    name: str = "origin"


@record
class Box(Generic[T]):
    inside: T


def test_fields_are_parameters_in_their_order_with_their_defaults() -> None:
    """By position and by name; what is missing or unknown is a `TypeError` in Python's own words."""
    assert Point(1).y == 0
    assert Point(1, 2).sum == Point(y=2, x=1).sum == 5
    assert repr(Named(1, name="here")) == "Named(x=1, y=0, name='here')"
    assert Box([1]).inside == [1]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=3)  # type: ignore[call-arg]


def test_a_record_is_equal_to_its_like_alone() -> None:
    """The same type and the same values: two requests without fields are two."""
    assert Point(1, 2) == Point(1, 2)
    assert hash(Point(1, 2)) == hash(Point(1, 2))
    assert Point(1, 2) != Point(1, 3)
    assert Point(1) != Named(1)
    assert Now() == Now()
    assert {Now(), Gate(), Now()} == {Gate(), Now()}
    assert len({Now(), Gate()}) == 2


def test_a_record_is_frozen_and_has_no_room() -> None:
    """Neither a field nor anything else can be set, and no instance carries a dict."""
    point = Point(1)
    for change in ("x", "z"):
        with pytest.raises(AttributeError, match="frozen"):
            setattr(point, change, 2)
    with pytest.raises(AttributeError, match="frozen"):
        del point.x
    assert not hasattr(point, "__dict__")
    assert point == Point(1)


def test_patterns_and_copies() -> None:
    """By position in a `match`; pickled, copied and replaced as values are."""
    match Held("v", None):
        case Held(value, None):
            assert value == "v"
        case _:
            raise AssertionError
    named = Named(1, 2, "n")
    assert pickle.loads(pickle.dumps(named)) == copy.copy(named) == copy.deepcopy(named) == named
    assert replaced(named, y=5) == Named(1, 5, "n")
    assert replaced(Report(ok=True), spent=True) == Report(ok=True, spent=True)
    with pytest.raises(TypeError, match="nothing"):
        replaced(named, nothing=1)


def test_requests_say_whether_they_wait() -> None:
    """A class variable is no field, and is inherited."""
    assert Create.waits
    assert not Now.waits
    assert Create.__match_args__ == ("key", "value", "lifetime_ms", "until_ms")


def test_a_command_defines_few_dataclasses() -> None:
    """Those cost `claimant run` more than everything else of ours: what only it uses is a record."""
    code = (
        "import dataclasses, sys; made = []; real = dataclasses._process_class\n"
        "def counted(cls, *args): made.append(cls.__module__); return real(cls, *args)\n"
        "dataclasses._process_class = counted\n"
        "import claimant.cli.starting, claimant._flows.run, claimant.stores.sqlite, claimant.ledger.sqlite\n"
        "print(sum(module.startswith('claimant') for module in made))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(said) <= 10
