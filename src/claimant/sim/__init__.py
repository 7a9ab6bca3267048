"""The simulator: the shipped decisions in virtual time, one integer a schedule. It imports values and flows only.

`run(17)` has the same events, and the same hash, every time; `run(17).story()` tells them line by line;
`search(range(1_000))` runs many and says which branches were never reached.
"""

from __future__ import annotations

from claimant.sim.process import Flows
from claimant.sim.simulate import Report, Search, run, search
from claimant.sim.world import Violation

__all__ = ["Flows", "Report", "Search", "Violation", "run", "search"]
