"""What a command is told by flags, environment and files, in that order. It prints nothing, and needs no click.

Values merge one by one: a file that names a store does not hide another file's ledger. A job's own section wins over
`[defaults]`, whichever files they stand in.

    found = settings("nightly-report")
    found.value("lifetime", flag)      # the flag if it is not None, else what is configured, else None: nothing says
    found.source("lifetime", flag)     # where that comes from
    found.schedule(every, cron, tz)    # the three flags, settled with what is configured

A command of click asks `places.configured(ctx, name)` instead, which reads the files once.

Every mistake in what is configured is a `Misconfigured`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from claimant._model.errors import Refused
from claimant.cli.config_files import Files, Found, find
from claimant.cli.config_options import (
    FOR_THE_CHILD,
    ONLY_A_FLAG,
    OPTIONS,
    Option,
    Reach,
    checked,
    near,
    read,
    spelled,
)
from claimant.cli.misconfigured import Misconfigured

__all__ = ["Misconfigured", "Settings", "Source", "settings"]


class Source(NamedTuple):
    """Where a value comes from. `key` is the flag, the variable, or the key with its table, "jobs.debit.lifetime"."""

    kind: Literal["flag", "environment", "file", "default"]
    key: str = ""
    path: str = ""
    line: int | None = None

    def __str__(self) -> str:
        match self.kind:
            case "file":
                return f"{self.path}{f':{self.line}' if self.line else ''}: {self.key}"
            case "default":
                return "default"
            case _:
                return self.key


class Settings(NamedTuple):
    """What holds for one job, or for a command that is about none."""

    name: str | None
    files: Files
    environ: Mapping[str, str]

    def __repr__(self) -> str:
        """Without the values, which may hold a password."""
        return f"Settings({self.name!r}, {self.files.looked_at!r})"

    def value(self, option: str, flag: Any = None) -> Any:
        """`flag` if it was given, else what is configured, else None. Durations stay as they are written: "30s", 30.

        Raises `Misconfigured` where what is configured is not a value for this option.
        """
        return self._said(OPTIONS[option], flag)[0]

    def source(self, option: str, flag: Any = None) -> Source:
        """Where that value comes from. Raises `Misconfigured` as `value` does."""
        where = self._said(OPTIONS[option], flag)[1]
        if isinstance(where, Source):
            return where
        # Looked for only here: most commands never ask in which line something stands.
        file, path = where
        return Source("file", _dotted(path), file.path, file.line_of(path))

    def schedule(self, every: Any = None, cron: Any = None, tz: Any = None) -> tuple[Any, Any, Any]:
        """`every`, `cron` and `tz` that hold together, from these flags and what is configured.

        Of two schedules the one that is said closer by holds: a flag, then the file that wins. Two flags are both kept,
        for the declaration to refuse. A zone that is only configured is left out where there is no cron to read it.
        """
        if every is None and cron is None:
            every, at_every = self._said(OPTIONS["every"], None)
            cron, at_cron = self._said(OPTIONS["cron"], None)
            if every is not None and cron is not None:
                nearer = next(file for file in self.files.read if file in (at_every[0], at_cron[0]))
                every, cron = (every, None) if nearer is at_every[0] else (None, cron)
        return every, cron, tz if cron is None else self.value("tz", tz)

    def of(self, name: str) -> Settings:
        """The same for the job `name`; no file is read again. Raises `Misconfigured` for its section."""
        for file in self.files.read:
            _check_job(file, name)
        return Settings(name, self.files, self.environ)

    def _said(self, option: Option, flag: Any) -> tuple[Any, Source | tuple[Found, tuple[str, ...]]]:
        if flag is not None:
            return flag, Source("flag", f"--{option.name}")
        if option.variable and (text := self.environ.get(option.variable)):
            try:
                return read(option, text), Source("environment", option.variable)
            except Refused as refused:
                from claimant.cli.hiding import text_shown

                raise Misconfigured("CLM093", text_shown(f"{option.variable} {_reason(refused)}")) from None
        for table in tables(option, self.name):
            for file in self.files.read:
                if (found := _entry(file, table, option.name)) is not None:
                    key, value = found
                    return _valued(file, (*table, key), option, value), (file, (*table, key))
        return None, Source("default")


def settings(name: str | None = None, *, environ: Mapping[str, str] | None = None) -> Settings:
    """What is configured for the job `name`, or for a command that is about no job. Reads the files that there are.

    Checked at once: the top of each file, its `[defaults]` and this job's section. Another job's mistake stops
    nobody but that job. Raises `Misconfigured`.
    """
    environ = os.environ if environ is None else environ
    found = Settings(name, find(environ), environ)
    for file in found.files.read:
        check(file, name)
    for option in OPTIONS.values():
        if option.reach is Reach.JOB and environ.get(f"CLAIMANT_{option.name.upper()}"):
            raise Misconfigured(
                "CLM094",
                f"CLAIMANT_{option.name.upper()} is set, and {option.name} belongs to one job: an environment reaches every "
                f"command that is started in it. Unset it, and use --{option.name}, or [jobs.NAME] in a file",
            )
    return found


def tables(option: Option, name: str | None) -> tuple[tuple[str, ...], ...]:
    """The tables of a file in which an option may stand, the one that wins first."""
    one_job = (("jobs", name),) if name is not None else ()
    match option.reach:
        case Reach.PLACE:
            return ((),)
        case Reach.HABIT:
            return (*one_job, ("defaults",))
        case Reach.JOB:
            return one_job


def check(file: Found, name: str | None) -> None:
    """Whether a file's top, `[defaults]` and section of `name` hold what may stand there. Raises `Misconfigured`."""
    for key, value in file.content.items():
        if key in ("defaults", "jobs"):
            if not isinstance(value, dict):
                raise _at(
                    file, (key,), "CLM093", f"must be a table: [{'jobs.NAME' if key == 'jobs' else key}]"
                )
        else:
            _allowed(file, (), key)
            _valued(file, (key,), OPTIONS[key], value)
    _check_table(file, ("defaults",))
    if name is not None:
        _check_job(file, name)


def _check_job(file: Found, name: str) -> None:
    _check_name(file, name)
    _check_table(file, ("jobs", name))
    if _entry(file, ("jobs", name), "every") and _entry(file, ("jobs", name), "cron"):
        raise _at(
            file, ("jobs", name, "cron"), "CLM094", "and every are two schedules; keep the one that is meant"
        )


def _check_name(file: Found, name: str) -> None:
    """`[jobs.shop.debit]` is a table within a table, and would be overlooked."""
    jobs = file.content.get("jobs", {})
    if name in jobs or "." not in name:
        return
    here: Any = jobs
    for piece in name.split("."):
        here = here.get(piece) if isinstance(here, dict) else None
    if here is not None:
        raise _at(
            file,
            ("jobs", *name.split(".")),
            "CLM092",
            f'a name with a dot is written in quotes: [jobs."{name}"]',
        )


def _check_table(file: Found, table: tuple[str, ...]) -> None:
    content = file.table(table)
    if not isinstance(content, dict):
        raise _at(file, table, "CLM093", "must be a table: a job's options stand in [jobs.NAME]")
    seen: dict[str, str] = {}
    for key in content:
        _allowed(file, table, key)
        if (other := seen.setdefault(spelled(key), key)) != key:
            raise _at(file, (*table, key), "CLM092", f"{other} says the same; keep one of the two")
        _valued(file, (*table, key), OPTIONS[spelled(key)], content[key])


def _allowed(file: Found, table: tuple[str, ...], key: str) -> None:
    """Whether `key` may stand in this table. Raises `Misconfigured`."""
    word, where = spelled(key), (*table, key)
    if word in ONLY_A_FLAG:
        raise _at(file, where, "CLM094", f"never comes from a file: {ONLY_A_FLAG[word]}")
    option = OPTIONS.get(word)
    reaches = {"": (Reach.PLACE,), "defaults": (Reach.HABIT,), "jobs": (Reach.HABIT, Reach.JOB)}
    fitting = reaches[table[0] if table else ""]
    if option is None:
        if len(table) == 2 and isinstance(file.table(table).get(key), dict):
            raise _at(
                file,
                where,
                "CLM092",
                f'is a table: a name with a dot is written in quotes, [jobs."{table[1]}.{key}"]',
            )
        words = tuple(name for name, known in OPTIONS.items() if known.reach in fitting)
        extra = () if table else ("defaults", "jobs")
        raise _at(
            file,
            where,
            "CLM092",
            f"is not an option here{near(word, words + extra) or near(word, tuple(OPTIONS))}",
        )
    if option.reach in fitting:
        return
    if table == ("defaults",) and option.reach is Reach.JOB:
        why = " No job may get a stake that nobody chose for it." if word == "stake" else ""
        raise _at(
            file, where, "CLM094", f"belongs to one job: write it into [jobs.NAME], or use --{word}.{why}"
        )
    raise _at(file, where, "CLM094", f"is said {option.reach.value}")


def _entry(file: Found, table: tuple[str, ...], name: str) -> tuple[str, Any] | None:
    content = file.table(table)
    for key in (name, name.replace("-", "_")) if isinstance(content, dict) else ():
        if key in content:
            return key, content[key]
    return None


def _valued(file: Found, path: tuple[str, ...], option: Option, value: Any) -> Any:
    try:
        return checked(option, value)
    except Refused as refused:
        raise _at(file, path, "CLM093", _reason(refused)) from None


def _at(file: Found, path: tuple[str, ...], code: str, why: str) -> Misconfigured:
    from claimant.cli.hiding import text_shown

    line = file.line_of(path)
    # What stands in a wrong place may be a URL with its password.
    return Misconfigured(
        code, f"{file.path}{f', line {line}' if line else ''}: {text_shown(f'{_dotted(path)} {why}')}"
    )


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(
        piece if piece.replace("-", "").replace("_", "").isalnum() else f'"{piece}"' for piece in path
    )


def _reason(refused: Refused) -> str:
    return refused.message.removeprefix(f"{refused.code}: ")


def strangers(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """`CLAIMANT_*` variables that no command reads, each with what it is instead."""
    known = {option.variable for option in OPTIONS.values()} | {"CLAIMANT_CONFIG"}
    found: list[tuple[str, str]] = []
    for variable in sorted(environ):
        if variable.startswith("CLAIMANT_") and variable not in known:
            told = "told to a child by claimant run, and not an option"
            found.append(
                (
                    variable,
                    told if variable in FOR_THE_CHILD else f"no option{near(variable, tuple(known - {''}))}",
                )
            )
    return found
