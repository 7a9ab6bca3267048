"""`claimant config`: each value, where it comes from, and which files were looked at. It changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claimant._model.errors import Refused
from claimant.cli.config import Settings, Source, check, strangers
from claimant.cli.config_options import OPTIONS, Option, Reach, near
from claimant.cli.hiding import HIDDEN, value_shown
from claimant.embedded import default_ledger, default_store


@dataclass(frozen=True, slots=True)
class Row:
    """One option. `value` is as it may be shown; None where nothing says it, and `otherwise` holds."""

    option: str
    value: str | int | float | bool | None
    hidden: bool
    otherwise: str
    source: Source

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        where = {
            "kind": self.source.kind,
            "key": self.source.key,
            "path": self.source.path,
            "line": self.source.line,
        }
        return {
            "option": self.option,
            "value": self.value,
            "hidden": self.hidden,
            "otherwise": self.otherwise,
            "source": where,
        }


@dataclass(frozen=True, slots=True)
class Configured:
    """What `claimant config` found."""

    name: str | None
    rows: tuple[Row, ...]
    files: tuple[tuple[str, str, str], ...]
    """Path; "read", "not there" or "ignored"; and why it is ignored."""
    jobs: tuple[str, ...]
    """The jobs that have a section of their own."""
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "name": self.name,
            "values": [row.as_dict() for row in self.rows],
            "files": [{"path": path, "state": state, "why": why} for path, state, why in self.files],
            "jobs": list(self.jobs),
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """For a terminal."""
        said = [(row.option, _words(row), str(row.source)) for row in self.rows]
        wide = [max(len(line[column]) for line in said) for column in (0, 1)]
        lines = [
            f"{option:<{wide[0]}}  {value:<{min(wide[1], 60)}}  {source}" for option, value, source in said
        ]
        lines += ["", "files, the first that says a value wins:"]
        across = max(len(path) for path, _, _ in self.files)
        lines += [f"  {path:<{across}}  {state}{why and f': {why}'}" for path, state, why in self.files]
        if self.jobs and self.name is None:
            lines += ["", f"jobs with a section of their own: {', '.join(self.jobs)}"]
        return lines + [f"note: {note}" for note in self.notes]


def _words(row: Row) -> str:
    if row.value is None:
        return f"({row.otherwise})"
    return value_shown(row.option, row.value) if isinstance(row.value, bool) else str(row.value)


def configuration(found: Settings, flags: Mapping[str, str | None]) -> Configured:
    """All that `found` says, with `flags` above it. Without a name, every job's section is checked as well.

    Raises `Misconfigured`.
    """
    jobs = sorted({job for file in found.files.read for job in file.content.get("jobs", {})})
    if found.name is None:
        for file in found.files.read:
            for job in file.content.get("jobs", {}):
                check(file, job)
    rows = []
    for option in OPTIONS.values():
        if option.reach is Reach.JOB and found.name is None:
            continue
        given = flags.get(option.name)
        value, source = found.value(option.name, given), found.source(option.name, given)
        shown = (
            value
            if value is None or isinstance(value, bool | int | float)
            else value_shown(option.name, value)
        )
        rows.append(Row(option.name, shown, shown != value, _otherwise(option), source))
    return Configured(
        found.name,
        tuple(rows),
        _files(found),
        tuple(jobs),
        tuple(_notes(found, jobs, any(row.hidden for row in rows))),
    )


def _otherwise(option: Option) -> str:
    """What holds where nobody says: for a store and a ledger, this host's own, where it may have one."""
    own = {"store": default_store, "ledger": default_ledger}.get(option.name)
    if own is None:
        return option.otherwise
    try:
        return own()
    except Refused:
        return "must be said: this is a container"


def _files(found: Settings) -> tuple[tuple[str, str, str], ...]:
    """All places, in the order in which they win."""
    state = {file.path: ("read", "") for file in found.files.read}
    state |= dict.fromkeys(found.files.missing, ("not there", ""))
    state |= {path: ("ignored", why) for path, why in found.files.ignored}
    return tuple((path, *state[path]) for path in found.files.looked_at)


def _notes(found: Settings, jobs: list[str], hidden: bool) -> list[str]:
    notes = []
    if found.name is not None and found.name not in jobs:
        notes.append(f"no file has a section for this job{near(found.name, tuple(jobs))}")
    notes += _one_schedule(found)
    if hidden:
        notes.append(f"{HIDDEN} stands for what is not shown: passwords, and the path of a ping")
    notes += [f"{variable} is set and not read: {what}" for variable, what in strangers(found.environ)]
    notes += [
        f"{file.path} holds a password, and its mode lets everybody read it; say chmod o-r"
        for file in found.files.read
        if _readable(file.path) and any(_opens(file.content.get(place)) for place in ("store", "ledger"))
    ]
    return notes


def _one_schedule(found: Settings) -> list[str]:
    every, cron, _ = found.schedule()
    lost, kept = ("cron", "every") if cron is None else ("every", "cron")
    if (every or cron) is None or found.value(lost) is None:
        return []
    return [f"{lost} is not used: {kept} is said closer by, at {found.source(kept)}"]


def _opens(url: Any) -> bool:
    return isinstance(url, str) and value_shown("store", url) != url


def _readable(path: str) -> bool:
    try:
        return bool(Path(path).stat().st_mode & 0o004)
    except OSError:
        return False
