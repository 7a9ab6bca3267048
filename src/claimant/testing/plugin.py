"""The pytest plugin: fixtures `claims`, `held`, `absent` and `off` for testing jobs without a server; unused guards fail.

Nothing is imported before a test asks for a fixture, so that the plugin costs a test run nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from claimant import Claimant


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[Claimant]:
    """A `Claimant` of this test's own: a store in memory, and a ledger in a file of the test's folder."""
    from claimant import Claimant
    from claimant.stores import open_store
    from claimant.testing.faults import Switched

    with Claimant(
        Switched(open_store(f"memory:{tmp_path}")), ledger=f"sqlite:{tmp_path / 'ledger.db'}"
    ) as made:
        yield made


@pytest.fixture
def held(claims: Claimant) -> Callable[..., AbstractContextManager[None]]:
    """`held` is called with a job's name and key: inside its block somebody else holds that job (and key) of `claims`."""
    from claimant.testing.faults import held_by_another

    def hold(name: str, **key: object) -> AbstractContextManager[None]:
        return held_by_another(claims, name, **key)

    return hold


@pytest.fixture
def absent(claims: Claimant) -> Callable[[], AbstractContextManager[None]]:
    """`absent` is called without arguments: inside its block the store of `claims` does not answer."""
    from claimant.testing.faults import store_absent

    def away() -> AbstractContextManager[None]:
        return store_absent(claims)

    return away


@pytest.fixture
def off(claims: Claimant) -> Callable[[], AbstractContextManager[None]]:
    """`off` is called without arguments: inside its block the jobs of `claims` take no leases; guards work as always."""
    from claimant.testing.isolation import leases_off

    def without() -> AbstractContextManager[None]:
        return leases_off(claims)

    return without


# -- a declared guard that no run used is a test that proved nothing --------------------------------------------------

MARKER = "claimant_unguarded"


class _Unused(logging.Handler):
    """Hears what the library logs of guards; needs nothing of the library, which a test may not have imported."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.jobs: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "claimant", None)
        if isinstance(fields, dict) and fields.get("kind") == "guard.unused":
            self.jobs.append(str(fields.get("name")))


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(reason): jobs of this test may end without using their declared guard",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test in which a job ended without using the guard that it declares."""
    heard, log = _Unused(), logging.getLogger("claimant")
    log.addHandler(heard)
    try:
        result = yield
    finally:
        log.removeHandler(heard)
    if heard.jobs and item.get_closest_marker(MARKER) is None:
        jobs = ", ".join(sorted(set(heard.jobs)))
        pytest.fail(
            f"{jobs}: a run ended without using the guard that the job declares, so nothing kept its effect from happening "
            f'twice. Do the effect with run.once(conn, effect); where it is meant, mark the test @pytest.mark.{MARKER}("why")',
            pytrace=False,
        )
    return result
