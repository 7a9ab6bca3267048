"""The pytest plugin: fixtures `claims`, `held`, `absent` and `off` for testing jobs without a server; unused guards fail.

pytest imports it in every project where claimant is installed, and Python imports `claimant` for that. Beyond it nothing is
imported before a test asks for a fixture, so that other projects pay for no more.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
UNUSED = "guard.unused"


class _Logged(logging.Handler):
    """Hears what the library logs of guards."""

    def __init__(self, jobs: set[str]) -> None:
        super().__init__(logging.WARNING)
        self._jobs = jobs

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "claimant", None)
        if isinstance(fields, dict) and fields.get("kind") == UNUSED:
            self._jobs.add(str(fields.get("name")))


@contextmanager
def _unused_guards() -> Iterator[set[str]]:
    """The names of jobs whose runs end in this block without using their guard, whatever `Claimant` they belong to."""
    jobs: set[str] = set()
    process = sys.modules.get("claimant._drive.process")
    if process is None:
        # No Claimant was made yet in this test run. Importing this for everybody would cost strangers; the log will do.
        handler, log = _Logged(jobs), logging.getLogger("claimant")
        log.addHandler(handler)
        try:
            yield jobs
        finally:
            log.removeHandler(handler)
        return
    # Not by the log: an application's own logging set-up may have switched that off.
    emit = process.Process.emit

    def heard(self: Any, event: Any) -> None:
        if event.kind == UNUSED:
            jobs.add(event.name)
        emit(self, event)

    process.Process.emit = heard
    try:
        yield jobs
    finally:
        process.Process.emit = emit


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(reason): jobs of this test may end without using their declared guard",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test in which a job ended without using the guard that it declares."""
    with _unused_guards() as jobs:
        result = yield
    marker = item.get_closest_marker(MARKER)
    if marker is not None and not (marker.args or marker.kwargs):
        pytest.fail(f'@pytest.mark.{MARKER}("why") needs its reason', pytrace=False)
    if jobs and marker is None:
        pytest.fail(
            f"{', '.join(sorted(jobs))}: a run ended without using the guard that the job declares, so nothing kept its effect from "
            f"happening twice. Do the effect with run.once(conn, effect); where it is meant, mark the test "
            f'@pytest.mark.{MARKER}("why")',
            pytrace=False,
        )
    return result
