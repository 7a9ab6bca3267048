"""What the simulator knows of one start and no worker does: ghosts, for the invariants to look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from claimant._model.holding import State, Tenure
from claimant.sim.schedule import SimJob

if TYPE_CHECKING:
    from claimant.sim.body import Boom
    from claimant.sim.process import Process


@dataclass(slots=True, eq=False)
class Attempt:
    """One start of a job in one process. Times are true ms."""

    number: int
    process: Process
    job: SimJob
    started_ms: int
    values: list[str] = field(default_factory=list)
    """The lease values whose create it sent."""
    clean: set[str] = field(default_factory=set)
    """Those of them that are certainly not its business any more: released, handed over for clean-up, or never applied."""
    doubted: set[str] = field(default_factory=set)
    """Those whose create was sent and not answered."""
    refused: set[str] = field(default_factory=set)
    """Those whose create was answered: somebody else holds. What lands again later is nobody's claim, and lapses (hole 4)."""
    reply: Any = None
    """The answer to its last create."""
    owes_repair: tuple[str, int] | None = None
    """A broken lease of ours that it was refused by, and the lifetime it was made with."""
    gate_shut: bool = False
    ledger_failed: bool = False
    granted_ms: int | None = None
    tenure: Tenure | None = None
    claim_wait_ms: int = 0
    release_wait_ms: int = 0
    release_gate_shut: bool = False
    releasing: bool = False
    body_ms: int | None = None
    slot: str | None = None
    shaken: bool = False
    """Whether its claim had been lost or absent when the work ended."""
    boom: BaseException | None = None
    effect_boom: Boom | None = None
    """What its effect will raise."""
    operation: bytes = b""
    run_id: str = ""
    uncounted: bool = False
    """Whether the guard told observers that it could not count this attempt's rejection."""
    cancelled: bool = False
    over: bool = False
    told_to_stop: State | None = None
