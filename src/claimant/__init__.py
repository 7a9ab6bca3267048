"""Several workers could run the same job; usually one should; sometimes a second effect would be an incident.

A *lease* in a shared volatile store makes duplicate work rare: it saves cost. A *guard* where the effect becomes
durable makes duplicates harmless: it keeps correctness. The lease is never a guarantee.
"""

from claimant._model.errors import ClaimantError, LeaseLost, NotDone, Refused
from claimant._model.outcome import Answer, Outcome
from claimant._model.stake import Stake
from claimant.claims import Claimant
from claimant.guards import once
from claimant.jobs import AsyncJob, Job
from claimant.leases import Lease
from claimant.runs import AsyncRun, Run

__all__ = [
    "Answer",
    "AsyncJob",
    "AsyncRun",
    "Claimant",
    "ClaimantError",
    "Job",
    "Lease",
    "LeaseLost",
    "NotDone",
    "Outcome",
    "Refused",
    "Run",
    "Stake",
    "once",
]

for _public in (ClaimantError, LeaseLost, NotDone, Refused):
    # What a traceback shows is what can be imported and caught.
    _public.__module__ = "claimant"

__version__ = "0.1.0"
