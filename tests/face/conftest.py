"""What the tests of the face share: Claimants that are closed again, and a job started in either colour."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from claimant import AsyncRun, Claimant, Outcome, Run


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Claimant]]:
    """Make Claimants that are closed after the test."""
    all_made: list[Claimant] = []

    def make(store: object, **options: Any) -> Claimant:
        options.setdefault("ledger", f"sqlite:{tmp_path / 'ledger.db'}")
        all_made.append(Claimant(store, **options))
        return all_made[-1]

    yield make
    for claims in all_made:
        claims.close()


@pytest.fixture(params=["blocking", "asyncio"])
def start(request: pytest.FixtureRequest) -> Callable[..., Outcome[Any]]:
    """Start a job whose body is `work(run)`, in one of the two colours."""

    def run_it(
        claims: Claimant, work: Callable[[Any], Any], *args: Any, name: str = "index", **options: Any
    ) -> Outcome[Any]:
        options.setdefault("stake", "scan")
        if name in claims.jobs:
            job: Any = claims.jobs[name]
        elif request.param == "blocking":

            def plain(run: Run) -> Any:
                return work(run)

            job = claims.job(name, **options)(plain)
        else:

            async def coloured(run: AsyncRun) -> Any:
                await asyncio.sleep(0)
                return work(run)

            job = claims.job(name, **options)(coloured)
        if request.param == "blocking":
            return job(*args)

        async def main() -> Outcome[Any]:
            try:
                return await job(*args)
            finally:
                await claims.aclose()

        return asyncio.run(main())

    return run_it
