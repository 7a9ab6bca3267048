"""`Claimant.hold`: a claim for a block of code, where a duplicate only wastes work."""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any

from claimant._flows.acquire import Claimed, Got, HeldBy, Missing, Unsure
from claimant._flows.letting import held_text, would_skip
from claimant._flows.release import leave_to_keeper, release
from claimant._flows.wait import acquire_within
from claimant._model.capability import Capabilities
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

# By name each use would cost as much as a small function call before Python 3.12.
OFF, OBSERVE, GO_ON, PROCEED = Mode.OFF, Mode.OBSERVE, OnLoss.GO_ON, Absent.PROCEED


@functools.lru_cache(maxsize=1_024, typed=True)
def _declared(
    name: str,
    stake: object,
    max_run: object,
    wait: object,
    lifetime: object,
    namespace: str,
    label: str,
    deadline_ms: int,
    sheet: Capabilities,
) -> tuple[Wanted, int]:
    """What to claim, and how long to wait for it. Remembered: a block is often entered under one name, thousands of times."""
    checked_name(name, "a lease's name")
    if not checked_stake(stake, name=name).cheap:
        raise Refused(
            "CLM027",
            f"{name}: hold() is a lease alone, and stake={stake!r} needs more. Declare a job with guard=once(db) and do the "
            "effect with run.once(conn, effect)",
            name=name,
        )
    wanted = Wanted(
        name=name,
        key=lease_key(namespace, name),
        label=label,
        lifetime_ms=lifetime_ms(lifetime, name=name, shortest_ms=sheet.shortest_ms),
        max_run_ms=duration_ms(max_run, "max_run", name=name),
        deadline_ms=deadline_ms,
        early_ms=sheet.early_ms,
        late_ms=sheet.late_ms,
    )
    wait_ms = 0 if wait == 0 and not isinstance(wait, bool) else duration_ms(wait, "wait", name=name)
    return wanted, wait_ms


class Hold:
    """One use of `claims.hold(…)`: `with` or `async with`, once."""

    __slots__ = ("_entered", "_tenure", "_wait_ms", "_wanted", "_wiring")

    def __init__(
        self, wiring: Wiring, name: str, stake: object, max_run: object, wait: object, lifetime: object
    ) -> None:
        self._wiring = wiring
        store = wiring.store
        space, label, deadline_ms, sheet = (
            wiring.namespace,
            wiring.label,
            store.deadline_ms,
            store.capabilities,
        )
        try:
            self._wanted, self._wait_ms = _declared(
                name, stake, max_run, wait, lifetime, space, label, deadline_ms, sheet
            )
        except TypeError:  # something that cannot be kept, such as a list, and is refused in words
            self._wanted, self._wait_ms = _declared.__wrapped__(
                name, stake, max_run, wait, lifetime, space, label, deadline_ms, sheet
            )
        self._tenure: Tenure | None = None
        self._entered = False

    def _claim(self) -> Flow[Claimed | None]:
        """What came of it; None where leases are off, or where somebody else holds and nothing is stopped."""
        mode = self._wiring.mode
        if mode is OFF:
            return None
        observed = mode is OBSERVE
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
        given = (name, self._tenure, GO_ON, PROCEED, give_back)
        return Lease(*given, off=True) if claimed is None else Lease(*given)

    def _release(self) -> None:
        if self._tenure is not None:
            self._wiring.run(release(self._tenure, self._wanted.deadline_ms))

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
        if self._tenure is not None:
            await self._wiring.arun(release(self._tenure, self._wanted.deadline_ms))
