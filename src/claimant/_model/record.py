"""`@record`: what `@dataclass(frozen=True, slots=True)` is, at a sixth of its cost to define.

What flows ask and are answered is some sixty small types. As dataclasses they take longer to define than all the rest of
the library takes to import, because each compiles six methods; that is a third of what `claimant run` costs before its
command starts. A record compiles its `__init__` and shares the others. What people use outside is a dataclass all the same:
`dataclasses.replace` and `asdict` are for those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Makes the annotated names of `cls` its fields: its slots, its parameters in that order, and what patterns match.

    A value in the class is the field's default. Names annotated as `ClassVar` are left alone. Fields of a base that is a
    record come first. Two records are equal if they are of one type and their fields are equal.
    """
    body = dict(cls.__dict__)
    own = {
        field: body.pop(field, ...)
        for field, annotation in body.get("__annotations__", {}).items()
        if not annotation.startswith("ClassVar")
    }
    inherited: dict[str, Any] = {}
    for base in reversed(cls.__bases__):
        inherited |= getattr(base, "__record__", {})
    fields = inherited | own
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    body |= {
        "__slots__": tuple(field for field in own if field not in inherited),
        "__match_args__": tuple(fields),
        "__record__": fields,
    }
    kind: Any = type(cls)
    made: Any = kind(cls.__name__, cls.__bases__, _SHARED | body)
    made.__qualname__ = cls.__qualname__
    if own:
        made.__init__ = _init(made, fields)
    found: type[T] = made
    return found


def replaced(instance: T, **changes: Any) -> T:
    """A copy of a record with some fields changed: `copy.replace`, before Python 3.13. Unknown names are a `TypeError`."""
    copy: T = _replace(instance, **changes)
    return copy


def _init(made: type, fields: dict[str, Any]) -> Callable[..., None]:
    """Sets each field by its slot, which is not frozen as the attribute is."""
    parameters = [field if default is ... else f"{field}=_d_{field}" for field, default in fields.items()]
    lines = [f"    _set_{field}(self, {field})" for field in fields]
    names: dict[str, Any] = {f"_set_{field}": getattr(made, field).__set__ for field in fields}
    names |= {f"_d_{field}": default for field, default in fields.items() if default is not ...}
    exec("\n".join([f"def __init__(self, {', '.join(parameters)}):", *lines]), names)  # noqa: S102 - names of our own
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init


def _values(record: Any) -> tuple[Any, ...]:
    return tuple([getattr(record, field) for field in record.__match_args__])


def _eq(self: Any, other: object) -> bool:
    return other.__class__ is self.__class__ and _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash((self.__class__, *_values(self)))


def _repr(self: Any) -> str:
    said = ", ".join(f"{field}={getattr(self, field)!r}" for field in self.__match_args__)
    return f"{self.__class__.__qualname__}({said})"


def _set(self: Any, name: str, _value: object) -> NoReturn:
    raise AttributeError(f"{self.__class__.__qualname__} is frozen: {name} cannot be set")


def _delete(self: Any, name: str) -> NoReturn:
    raise AttributeError(f"{self.__class__.__qualname__} is frozen: {name} cannot be deleted")


def _reduce(self: Any) -> tuple[Any, ...]:
    return self.__class__, _values(self)


def _replace(self: Any, /, **changes: Any) -> Any:
    return self.__class__(**dict(zip(self.__match_args__, _values(self), strict=True)) | changes)


_SHARED: dict[str, Any] = {
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__reduce__": _reduce,
    "__replace__": _replace,
}
