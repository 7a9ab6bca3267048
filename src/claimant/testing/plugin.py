"""The pytest plugin: fixtures `claims`, `held` and `absent` for testing jobs without a server.

Nothing is imported before a test asks for a fixture, so that the plugin costs a test run nothing.
"""

from __future__ import annotations

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
