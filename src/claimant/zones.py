"""The time zone of a `cron=`: the one that is named, or this host's.

A host's zone is a host's own: jobs that several hosts run had better name theirs, or a host that is set up otherwise
has other slots. So it is shown with the schedule.
"""

from __future__ import annotations

import os
from datetime import UTC, tzinfo
from pathlib import Path

from claimant._model.cron import Cron, checked_cron
from claimant._model.errors import Refused

LOCALTIME = Path("/etc/localtime")
NAMED = Path("/etc/timezone")


def cron_in_zone(expression: object, zone: object, name: str) -> Cron:
    """The schedule of a declaration's `cron=` and `tz=`. Raises `Refused` (CLM019)."""
    if zone is not None and not isinstance(zone, str):
        raise Refused(
            "CLM019", f'{name}: tz={zone!r} must be the name of a zone, e.g. tz="Europe/Berlin"', name=name
        )
    zone_name = zone or host_zone()
    return checked_cron(expression, _zone(zone_name, name), zone_name, name)


def host_zone() -> str:
    """The name of this host's zone: TZ, or what /etc/localtime points to, or /etc/timezone; "UTC" where none says."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if named:
        return named
    try:
        target = os.path.realpath(LOCALTIME)
        if LOCALTIME.exists() and "/zoneinfo/" in target:
            return target.rpartition("/zoneinfo/")[2].removeprefix("posix/")
        return NAMED.read_text().strip() or "UTC"
    except OSError:
        return "UTC"


def _zone(zone_name: str, name: str) -> tzinfo:
    if zone_name in ("UTC", "Etc/UTC"):
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(zone_name)
    except (
        Exception
    ) as error:  # a missing zone, a folder, a broken file: zoneinfo has a different error for each
        raise Refused(
            "CLM019",
            f'{name}: there is no time zone {zone_name!r} here ({type(error).__name__}). Write e.g. tz="Europe/Berlin" or tz="UTC"; '
            "where the system has no zones at all, install the package tzdata",
            name=name,
        ) from None
