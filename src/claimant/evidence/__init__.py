"""Floor 3: what the ledger's rows say, for people and for machines. Pure: rows and an instant in, words and figures out."""

from claimant.evidence.cost import OutageCost, cost_of, outage_cost
from claimant.evidence.status import JobStatus, Report, State, one_line, policy, report, state_of

__all__ = [
    "JobStatus",
    "OutageCost",
    "Report",
    "State",
    "cost_of",
    "one_line",
    "outage_cost",
    "policy",
    "report",
    "state_of",
]
