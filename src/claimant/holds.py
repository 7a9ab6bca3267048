"""`Claimant.hold`: a claim for a block of code, where a duplicate only wastes work."""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any

from claimant._flows.acquire import Claimed, Got, HeldBy, Missing, Unsure
from claimant._flows.letting import held_text, would_skip
from claimant._flows.release import leave_to_keeper, release
from claimant._flows.wait import acquire_within
from claimant._model.durations import duration_ms, lifetime_ms
from claimant._model.errors import NotDone, Refused
from claimant._model.holding import Tenure
from claimant._model.names import checked_name, lease_key
from claimant._model.ops import Emit, Flow, Hand
from claimant._model.outcome import RETRY_IN_MS
from claimant._model.policy import Absent, Mode, OnLoss, Wanted
from claimant._model.stake import checked_stake
from claimant.leases import Lease
from claimant.wiring import Wiring

_key = functools.lru_cache(maxsize=1_024)(lease_key)
"""A block is often entered under one name, thousands of times."""


class Hold:
    """One use of `claims.hold(…)`: `with` or `async with`, once."""

    def __init__(
        self, wiring: Wiring, name: str, *, stake: object, max_run: object, wait: object, lifetime: object
    ) -> None:
        checked_name(name, "a lease's name")
        if not checked_stake(stake, name=name).cheap:
            raise Refused(
                "CLM027",
                f"{name}: hold() is a lease alone, and stake={stake!r} needs more. Declare a job with guard=once(db) and do the "
                "effect with run.once(conn, effect)",
                name=name,
            )
        self._wiring = wiring
        self._wait_ms = (
            0 if wait == 0 and not isinstance(wait, bool) else duration_ms(wait, "wait", name=name)
        )
        self._wanted = Wanted(
            name=name,
            key=_key(wiring.namespace, name),
            label=wiring.label,
            lifetime_ms=lifetime_ms(lifetime, name=name, shortest_ms=wiring.store.capabilities.shortest_ms),
            max_run_ms=duration_ms(max_run, "max_run", name=name),
            deadline_ms=wiring.store.deadline_ms,
        )
        self._tenure: Tenure | None = None
        self._entered = False

    def _claim(self) -> Flow[Claimed | None]:
        """What came of it; None where leases are off, or where somebody else holds and nothing is stopped."""
        mode = self._wiring.mode
        if mode is Mode.OFF:
            return None
        observed = mode is Mode.OBSERVE
        claimed: Claimed = yield from acquire_within(self._wanted, 0 if observed else self._wait_ms)
        if isinstance(claimed, Unsure):
            yield Hand(claimed.tenure)
        if observed and isinstance(claimed, HeldBy):
            yield Emit(
                would_skip(self._wanted.name, None, "held", held_text(claimed.holder, claimed.remaining_ms))
            )
            return None
        return claimed

    def _once(self) -> None:
        if self._entered:
            raise Refused(
                "CLM029",
                f"{self._wanted.name}: this hold was entered before, and its claim would be lost from sight. Call claims.hold(…) "
                "for each block",
                name=self._wanted.name,
            )
        self._entered = True

    def _lease(self, claimed: Claimed | None, give_back: Any) -> Lease:
        name = self._wanted.name
        match claimed:
            case HeldBy(holder, remaining):
                retry_ms = RETRY_IN_MS if remaining is None else max(50, min(RETRY_IN_MS, remaining))
                raise NotDone(
                    f"{name}: {held_text(holder, remaining)}",
                    retry_in=retry_ms / 1000,
                    reason="held",
                    name=name,
                )
            case Got(tenure) | Unsure(tenure):
                self._tenure = tenure
            case Missing() | None:
                self._tenure = None
        return Lease(
            name,
            self._tenure,
            on_loss=OnLoss.GO_ON,
            absent=Absent.PROCEED,
            give_back=give_back,
            off=claimed is None,
        )

    def _give_back(self) -> Flow[None]:
        if self._tenure is not None:
            yield from release(self._tenure, self._wanted.deadline_ms)

    def _release(self) -> None:
        self._wiring.run(self._give_back())

    def _leave(self) -> None:
        # Inside `async with`, an early release must not block the loop.
        if self._tenure is not None:
            self._wiring.run(leave_to_keeper(self._tenure))

    def __enter__(self) -> Lease:
        self._once()
        return self._lease(self._wiring.run(self._claim()), self._release)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    async def __aenter__(self) -> Lease:
        self._once()
        return self._lease(await self._wiring.arun(self._claim()), self._leave)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._wiring.arun(self._give_back())
