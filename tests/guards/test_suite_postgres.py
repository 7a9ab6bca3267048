"""The guard suite on every handle of a real PostgreSQL."""

import pytest

from claimant.testing.guard_bench import Bench
from claimant.testing.guard_suite import GuardSuite, OwnedGuardSuite
from tests.guards import benches, django_benches

POSTGRES = benches.POSTGRES | django_benches.POSTGRES


class TestPostgres(GuardSuite):
    """Plain and async, owned and joined."""

    @pytest.fixture(params=POSTGRES)
    def bench(self, request: pytest.FixtureRequest, guarded: str) -> Bench:
        return POSTGRES[request.param](guarded)


class TestPostgresOwned(OwnedGuardSuite):
    """What makes connections is never joined."""

    @pytest.fixture(params=benches.POSTGRES_OWNED)
    def bench(self, request: pytest.FixtureRequest, guarded: str) -> Bench:
        return benches.POSTGRES_OWNED[request.param](guarded)
