"""Jobs of a module's own `Claimant` run on fakes inside `isolated`, and never after it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import claimant.testing
from claimant import AsyncRun, Claimant
from claimant._model.records import CloseSlot
from claimant.ledger import Spooled
from claimant.testing import isolated, leases_off


def test_an_isolated_claimant_is_as_it_was_afterwards(tmp_path: Path) -> None:
    """Inside, jobs of a module's own Claimant run on fakes; afterwards, also after an error, it is the module's again."""
    claims = Claimant(f"sqlite:{tmp_path / 'leases.db'}", ledger=f"sqlite:{tmp_path / 'ledger.db'}")
    tick = claims.job("tick", every="1d", stake="rebuild")(lambda run: run.slot)
    store, ledger = claims.store, claims.ledger
    with isolated(claims):
        assert tick().kind == "ran"
        with isolated(claims):
            assert tick().kind == "ran"
        assert tick().kind == "done"
    with pytest.raises(ZeroDivisionError), isolated(claims):
        assert not (tmp_path / "leases.db").exists()
        raise ZeroDivisionError
    assert (claims.store, claims.ledger) == (store, ledger)
    assert tick().kind == "ran"
    assert tick().kind == "done"
    assert (tmp_path / "leases.db").exists()
    claims.close()


def test_what_fails_at_the_end_leaves_no_fakes_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that cannot be closed is an error of that test, and of no later one."""
    claims = Claimant("redis://127.0.0.1:1/0", ledger="postgresql://127.0.0.1:1/none")
    store, ledger = claims.store, claims.ledger

    def broken(self: Spooled) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Spooled, "close", broken)
    with pytest.raises(OSError, match="no space"), isolated(claims):
        pass
    assert (claims.store, claims.ledger) == (store, ledger)
    assert (claims._wiring.store, claims._wiring.ledger) == (store, ledger)


def test_what_a_run_left_to_do_is_not_done_to_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is closed late is closed in the ledger that its run was written to."""
    claims = Claimant("redis://127.0.0.1:1/0", ledger="postgresql://127.0.0.1:1/none")
    asked: list[object] = []
    monkeypatch.setattr(claims.ledger, "call", asked.append)
    go = threading.Event()
    with isolated(claims) as inside:
        kept: list[object] = []
        monkeypatch.setattr(inside.ledger, "call", kept.append)
        claims._wiring._worker.submit(go.wait)
        claims._wiring.close_slot("a-run")
        threading.Timer(0.05, go.set).start()
    assert kept == [CloseSlot("a-run")]
    assert asked == []


def test_async_jobs_are_isolated_too() -> None:
    """The store for asyncio is the block's, and is not kept for the next block."""
    claims = Claimant("redis://127.0.0.1:1/0", ledger="postgresql://127.0.0.1:1/none")

    @claims.job("tick", every="1d", stake="rebuild")
    async def tick(run: AsyncRun) -> str:
        return run.lease.checked

    async def main() -> None:
        with isolated(claims):
            first, again = await tick(), await tick()
            await claims.aclose()
        assert (first.kind, first.value, again.kind) == ("ran", "trusted", "done")

    asyncio.run(main())
    asyncio.run(main())


def test_leases_are_off_in_a_block_only() -> None:
    """Afterwards claims are taken again."""
    claims = Claimant("redis://127.0.0.1:1/0", ledger="postgresql://127.0.0.1:1/none")
    scan = claims.job("scan", stake="scan")(lambda run: None)
    with isolated(claims):
        with leases_off(claims):
            assert scan().claim == "off"
        assert scan().claim == "kept"


def test_everything_that_is_offered_is_there() -> None:
    """The names of `claimant.testing` are imported when they are asked for, and each of them can be."""
    for name in claimant.testing.__all__:
        assert getattr(claimant.testing, name).__name__ == name
    assert set(claimant.testing._ROOMS) == set(claimant.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        claimant.testing.nothing  # type: ignore[attr-defined]  # noqa: B018
