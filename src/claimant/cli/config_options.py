"""What may be configured, and where it may be said: one row per option. It reads nothing and knows no file.

Three kinds of place. A *place* (store, ledger, namespace) is said for everything that a host does. A *habit* of
`claimant run` may be said for all jobs, so `[defaults]` and the environment may say it. What belongs to *one job*,
its stake first of all, may stand in `[jobs.NAME]` and nowhere wider: an environment and a default reach jobs that
nobody thought of.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal, NamedTuple

from claimant._model.errors import Refused

Kind = Literal["text", "duration", "flag", "exit code", "count"]


class Reach(Enum):
    """How wide an option may be said."""

    PLACE = "for everything: at the top of a file"
    HABIT = "for all jobs, in [defaults], or for one"
    JOB = "for one job, in [jobs.NAME]"


class Option(NamedTuple):
    """One option, by the name of its flag. `otherwise`: what holds where nobody says, in words."""

    name: str
    reach: Reach
    kind: Kind = "text"
    otherwise: str = ""
    one_of: tuple[str, ...] = ()
    waits: bool = False
    """Whether "wait:5m" is one of its values as well."""

    @property
    def variable(self) -> str:
        """The environment variable that says it; "" where none may."""
        return "" if self.reach is Reach.JOB else f"CLAIMANT_{self.name.upper().replace('-', '_')}"


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option("store", Reach.PLACE, otherwise="this host's"),
        Option("ledger", Reach.PLACE, otherwise="this host's"),
        Option("namespace", Reach.PLACE, otherwise="run: none; status and leases: all"),
        Option(
            "stake",
            Reach.JOB,
            one_of=("rebuild", "scan", "append", "notify", "money"),
            otherwise="must be said",
        ),
        Option("guard", Reach.JOB, otherwise="none"),
        Option(
            "delivery",
            Reach.JOB,
            one_of=("at-least-once", "at-most-once"),
            otherwise="must be said for notify",
        ),
        Option("every", Reach.JOB, kind="duration", otherwise="no slots"),
        Option("cron", Reach.JOB, otherwise="no slots"),
        Option("attempts", Reach.JOB, kind="count", otherwise="1"),
        Option("tz", Reach.HABIT, otherwise="this host's, for cron"),
        Option("lifetime", Reach.HABIT, kind="duration", otherwise="30s"),
        Option(
            "max-run",
            Reach.HABIT,
            kind="duration",
            otherwise="four periods, between 1h and 24h; 24h without slots",
        ),
        Option(
            "on-loss",
            Reach.HABIT,
            one_of=("go-on", "stop"),
            otherwise="go-on for rebuild and scan, else stop",
        ),
        Option(
            "on-absent",
            Reach.HABIT,
            one_of=("proceed", "skip"),
            waits=True,
            otherwise="proceed; skip for at-most-once without a guard",
        ),
        Option("skip-exit", Reach.HABIT, kind="exit code", otherwise="0"),
        Option("quiet", Reach.HABIT, kind="flag", otherwise="no"),
        Option("observe", Reach.HABIT, kind="flag", otherwise="no"),
        Option("ping", Reach.HABIT, otherwise="none"),
        Option("json", Reach.HABIT, kind="flag", otherwise="no"),
    )
}

ONLY_A_FLAG = {
    "slot": "a slot is one occasion, and a file is there for all of them",
    "force": "running a closed slot again is a decision about one occasion",
    "name": "the name is what a command is asked about",
}
"""Never from a file, nor from the environment, with the reason."""

FOR_THE_CHILD = tuple(
    f"CLAIMANT_{name}" for name in ("NAME", "RUN_ID", "OPERATION", "SLOT", "LEASE", "DEADLINE")
)
"""What `claimant run` tells its child. Never read: a `claimant run` inside of one has a slot and a name of its own."""

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def spelled(key: str) -> str:
    """The option's name for a key of a file: `max_run`, as the decorator spells it, is `max-run`."""
    return key.replace("_", "-")


def near(word: str, words: tuple[str, ...]) -> str:
    """What is meant by a word that is nearly one of `words`: "; did you mean …?", or ""."""
    import difflib

    found = difflib.get_close_matches(word, words, 1)
    return f"; did you mean {found[0]}?" if found else ""


def checked(option: Option, value: Any) -> str | int | float | bool:
    """A file's value, if it is one for this option. Raises `Refused` (CLM093) with a reason that never quotes a URL."""
    match option.kind:
        case "flag":
            if isinstance(value, bool):
                return value
            raise _wrong(f"must be true or false, not {_sort(value)}")
        case "exit code":
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255:
                return value
            said = value if isinstance(value, int) and not isinstance(value, bool) else _sort(value)
            raise _wrong(f"must be a whole number from 0 to 255, not {said}")
        case "count":
            if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
                return value
            raise _wrong("must be a whole number from 1 on")
        case "duration":
            return _duration(option, value)
        case "text":
            return _text(option, value)


def read(option: Option, text: str) -> str | int | float | bool:
    """The value that an environment variable's text is. Raises `Refused` (CLM093)."""
    if option.kind == "flag":
        if (word := text.strip().lower()) not in _YES + _NO:
            raise _wrong(f"must be one of {', '.join(_YES + _NO)}")
        return word in _YES
    if option.kind == "exit code":
        return checked(option, int(text) if text.isascii() and text.isdigit() else text)
    return checked(option, text)


def _duration(option: Option, value: Any) -> str | int | float:
    from claimant._model.durations import duration_ms

    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise _wrong(f'must be a duration such as "30s", or a number of seconds, not {_sort(value)}')
    try:
        duration_ms(value, option.name)
    except Refused as refused:
        raise _wrong(refused.message.removeprefix("CLM010: ")) from None
    return value


def _text(option: Option, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(f"must be text in quotes, not {_sort(value)}")
    if not value.strip() and option.name != "namespace":
        raise _wrong("is empty; leave it out instead")
    if not option.one_of or value in option.one_of:
        return value
    if option.waits and value.startswith("wait:"):
        _duration(option, value.removeprefix("wait:"))
        return value
    words = option.one_of + (("wait:5m (any duration)",) if option.waits else ())
    raise _wrong(f"{value!r} is not one of {', '.join(words)}{near(value, option.one_of)}")


def _sort(value: Any) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return "a date or time"


def _wrong(why: str) -> Refused:
    return Refused("CLM093", why)
