"""The breaker: an absent store costs a process one deadline, not one for each start.

It opens after one request that spent its whole deadline, or after three that failed fast, and is closed by any
answer: a claim's, a renewal's, or the keeper's probe. Pure: interpreters hold the state and apply `after`.
"""

from __future__ import annotations

from claimant._model.events import Event
from claimant._model.holding import Probe
from claimant._model.ops import Emit, Flow, Hand, Now, Report
from claimant._model.record import record

THRESHOLD = 3
PROBE_EVERY_MS = 1_000
"""How often the keeper asks an absent store whether it is back: a twentieth of a percent of a server's load."""


@record
class Breaker:
    """The state of one process towards one store."""

    failures: int = 0
    open: bool = False


def after(state: Breaker, report: Report) -> Breaker:
    """The state after one report."""
    if report.ok:
        return Breaker() if state.failures or state.open else state
    failures = state.failures + 1
    return Breaker(failures, state.open or report.spent or failures >= THRESHOLD)


def failed(name: str, key: str, reason: str, *, spent: bool) -> Flow[None]:
    """Report a request without an answer; if that opened the breaker, have the keeper probe and tell observers."""
    if (yield Report(ok=False, spent=spent, reason=reason)):
        now: int = yield Now()
        yield Hand(Probe(now + PROBE_EVERY_MS, key))
        yield Emit(
            Event(
                "store.absent",
                name,
                f"the lease store is absent ({reason}); work goes on by each job's policy, without claims, until it returns",
                "error",
                {"reason": reason},
            )
        )
