"""The lease as its holder sees it: a claim that may be believed for a while, and that says when it may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from claimant._drive import clock
from claimant._model.errors import LeaseLost
from claimant._model.holding import State, Tenure
from claimant._model.policy import Absent, OnLoss

Cause = Literal["lost", "absent", "stalled", "over", "released", "off"]
_CAUSES: dict[State, Cause] = {
    State.LOST: "lost",
    State.ABSENT: "absent",
    State.UNCONFIRMED: "absent",
    State.STALLED: "stalled",
    State.OVER: "over",
}


class Lease:
    """A claim on a name. Believing it saves cost; it protects nothing that must happen once: that is a guard's."""

    __slots__ = ("__weakref__", "_absent", "_give_back", "_off", "_on_loss", "_tenure", "name")

    def __init__(
        self,
        name: str,
        tenure: Tenure | None,
        on_loss: OnLoss,
        absent: Absent,
        give_back: Callable[[], None] | None,
        *,
        off: bool = False,
    ) -> None:
        self.name = name
        self._tenure = tenure
        self._on_loss = on_loss
        self._absent = absent
        self._give_back = give_back
        self._off = off

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} {self.cause or 'kept'}, {self.remaining():.1f} s left>"

    def remaining(self) -> float:
        """Seconds for which the claim may still be believed; 0.0 where it may not, or where there is none."""
        tenure = self._tenure
        now = clock.now_ms()
        if tenure is None or not tenure.trusted(now):
            return 0.0
        return (min(tenure.trust_until_ms, tenure.end_ms) - now) / 1_000

    @property
    def cause(self) -> Cause | None:
        """Why it may not be believed; None while it may.

        "lost": the store said so. "absent", "stalled", "over". "released": given back, or this is a forked child.
        "off": leases are off, or are only observed.
        """
        tenure = self._tenure
        if tenure is None:
            return "off" if self._off else "absent"
        if tenure.released:
            return "released"
        cause = _CAUSES.get(tenure.state)
        now = clock.now_ms()
        if cause is None and now >= tenure.end_ms:
            return "over"
        if cause is None and now >= tenure.trust_until_ms:
            return "absent"
        return cause

    @property
    def lost(self) -> bool:
        """Whether the store answered that the claim is gone. A store that does not answer is `cause == "absent"`."""
        return self.cause == "lost"

    @property
    def checked(self) -> str:
        """What to record right before a risky step: "trusted", or the cause. It decides nothing."""
        return self.cause or "trusted"

    def beat(self) -> None:
        """Show progress. Raises `LeaseLost` where the claim may not be believed and the job's policy is to stop."""
        tenure = self._tenure
        if tenure is None:
            return
        tenure.beat_ms = clock.now_ms()
        cause = self.cause
        if cause is None:
            return
        stop = self._absent is not Absent.PROCEED if cause == "absent" else self._on_loss is OnLoss.STOP
        if stop:
            raise LeaseLost(
                f"{self.name}: the claim may not be believed any more ({cause}: {tenure.reason or 'its trust window ended'}); "
                "this run stops here, as its policy says",
                cause=cause,
                name=self.name,
            )

    def release(self) -> None:
        """Give the claim back before the end of the block; may be repeated.

        Waits at most one store deadline; inside `async with` it does not wait, and the keeper gives it back.
        """
        if self._give_back is not None:
            self._give_back()
