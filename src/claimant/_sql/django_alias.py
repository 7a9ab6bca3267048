"""A database by its alias in Django's settings: `django:default`. Reads settings only; Django is imported when one is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from claimant._model.dialect import Dialect
from claimant._model.errors import Refused
from claimant._sql.target import WHERE, Target, not_yet, volatile


def of_alias(alias: str) -> Target:
    """The database of `alias`. Raises `Refused`: CLM040 (no settings, no such alias, not yet), CLM041 (in memory)."""
    settings = _settings(alias)
    try:
        from django.db.utils import load_backend

        vendor = load_backend(str(settings.get("ENGINE"))).DatabaseWrapper.vendor
    except Exception as error:
        raise Refused("CLM040", f"once('django:{alias}'): {error}") from error
    if vendor not in (Dialect.SQLITE, Dialect.POSTGRESQL):
        raise not_yet(f"django:{alias} ({vendor})")
    if vendor == Dialect.SQLITE and _in_memory(str(settings.get("NAME") or "")):
        raise volatile(f"django:{alias}, a SQLite database in memory,")
    return Target(Dialect(vendor), None, f"django:{alias}", alias=alias)


def now(declared: Target) -> Target:
    """`declared` with the name that its alias has at this moment."""
    name = _settings(declared.alias).get("NAME")
    return replace(declared, name=str(name) if name else None)


def _settings(alias: str) -> dict[str, Any]:
    try:
        from django.conf import settings
    except ImportError as error:
        raise Refused(
            "CLM040", f"once('django:{alias}'): Django is not installed: pip install django; {WHERE}"
        ) from error
    try:
        databases: dict[str, dict[str, Any]] = settings.DATABASES
    except Exception as error:
        raise Refused(
            "CLM040",
            f"once('django:{alias}'): Django's settings cannot be read ({type(error).__name__}). Set DJANGO_SETTINGS_MODULE to a "
            f"module that can be imported from here, and declare the job where Django is set up; {WHERE}",
        ) from error
    if alias not in databases:
        known = ", ".join(sorted(databases)) or "none"
        raise Refused(
            "CLM040",
            f"once('django:{alias}'): no such alias in Django's DATABASES (there are: {known}); {WHERE}",
        )
    return databases[alias]


def _in_memory(name: str) -> bool:
    return not name or ":memory:" in name or "mode=memory" in name
