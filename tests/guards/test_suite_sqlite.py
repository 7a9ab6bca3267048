"""The guard suite on every handle of a SQLite file."""

from pathlib import Path

import pytest

from claimant.testing.guard_bench import Bench
from claimant.testing.guard_suite import GuardSuite, OwnedGuardSuite
from tests.guards import benches, django_benches

SQLITE = benches.SQLITE | django_benches.SQLITE


class TestSqlite(GuardSuite):
    """Plain and async, owned and joined."""

    @pytest.fixture(params=SQLITE)
    def bench(self, request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
        return SQLITE[request.param](benches.sqlite_file(tmp_path))


class TestSqliteOwned(OwnedGuardSuite):
    """What makes connections is never joined."""

    @pytest.fixture(params=benches.SQLITE_OWNED)
    def bench(self, request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
        return benches.SQLITE_OWNED[request.param](benches.sqlite_file(tmp_path))
