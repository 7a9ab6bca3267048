"""For tests: fixtures and assertions for jobs, and conformance suites for stores, guards and ledgers. Ships with the wheel.

Its pytest plugin is imported by every test run where claimant is installed, so what is offered here is imported when it
is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from claimant.testing.faults import Switched, held_by_another, store_absent
    from claimant.testing.harmless import assert_harmless, assert_harmless_async
    from claimant.testing.isolation import isolated, leases_off

__all__ = [
    "Switched",
    "assert_harmless",
    "assert_harmless_async",
    "held_by_another",
    "isolated",
    "leases_off",
    "store_absent",
]

_ROOMS = {
    **dict.fromkeys(("Switched", "held_by_another", "store_absent"), "faults"),
    **dict.fromkeys(("assert_harmless", "assert_harmless_async"), "harmless"),
    **dict.fromkeys(("isolated", "leases_off"), "isolation"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        room = _ROOMS.get(name)
        if room is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{room}"), name)
