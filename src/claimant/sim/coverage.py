"""What a search must have met: each kind of fault at each step, and each branch that is taken only sometimes (C1).

A clean run proves nothing about what it never reached: a search with an empty cell is not a pass, however many schedules it had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

STORE_STEPS = ("Create", "Renew", "Release", "Repair")
LEDGER_STEPS = ("LedgerNow", "SlotState", "Begin", "Finish", "Skip")
GUARD_STEPS = (
    "Open",
    "BeginOwned",
    "Execute",
    "Savepoint",
    "ReleaseSavepoint",
    "RollbackTo",
    "Effect",
    "Commit",
    "Rollback",
    "Close",
    "Classify",
    "InTransaction",
)
QUIET_STEPS = (
    "Now",
    "SleepUntil",
    "NewToken",
    "Jitter",
    "Emit",
    "Call",
    "Gate",
    "Report",
    "Hand",
    "Inbox",
    "Tell",
)
STEPS = (*QUIET_STEPS, *STORE_STEPS, *LEDGER_STEPS, *GUARD_STEPS)
"""Everything that a flow may be at when something happens to its process."""

CELLS: Mapping[str, tuple[str, ...]] = {
    "crash": STEPS,
    "freeze": STEPS,
    "cancel": ("SleepUntil", "Create", "Release", "Repair", *LEDGER_STEPS, "Execute", "Effect", "Commit"),
    "fault": STORE_STEPS[:3],
    **{
        f"network: {fate}": STORE_STEPS[:3]
        for fate in (
            "lost",
            "reply lost",
            "reset before",
            "reset after",
            "late",
            "twice",
            "slow",
            "turned away",
        )
    },
    **{f"store: {mode}": STORE_STEPS[:3] for mode in ("refuse", "silent", "frozen", "slow")},
    "answered by the old primary": STORE_STEPS[:3],
    "answered by a node that is not the primary": STORE_STEPS[:3],
    "ledger: away": LEDGER_STEPS,
    "ledger: answer lost": LEDGER_STEPS,
    "guard: connection lost": (
        "Open",
        "BeginOwned",
        "Execute",
        "Savepoint",
        "ReleaseSavepoint",
        "Effect",
        "Commit",
        "Rollback",
    ),
    "guard: answer lost": ("Commit",),
}
"""Each kind of fault, and the steps that it can meet."""

SOMETIMES = (
    "granted",
    "granted, recognised",
    "held",
    "create sent again",
    "create: absent",
    "create: unknown",
    "create landed after its clean-up",
    "create landed when nobody waited",
    "create lands after its process died",
    "refused by a foreign key",
    "gate shut",
    "probe sent",
    "keeper started again",
    "breaker opened",
    "breaker closed",
    "store.absent",
    "store.returned",
    "renewed",
    "renewals in one batch",
    "renewal: not ours",
    "renewal: unanswered",
    "reclaim granted",
    "lease.reclaimed",
    "lease.lost",
    "lease.absent",
    "lease.confirmed",
    "lease.stalled",
    "lease.over",
    "lease.repaired",
    "lease.immortal",
    "lease.lapsed",
    "repaired",
    "clean-up: released",
    "clean-up: nothing there",
    "died holding",
    "trusted what the store had lost",
    "two trusted, after: flush",
    "two trusted, after: failover",
    "two trusted, after: two primaries",
    "failover",
    "ledger failover: rows lost",
    "guard failover: rows lost",
    "guard failover: what was done is gone",
    "broker: delivered again",
    "broker: delivered again while it runs",
    "broker: acknowledgement lost",
    "failover: behind",
    "granted by the old primary",
    "ledger.absent",
    "slot by the host's clock",
    "slot given up",
    "guard.applied",
    "guard.duplicate",
    "guard.in_flight",
    "guard.unknown",
    "guard.refused",
    "guard.uncounted",
    "guard: waits for another transaction",
    "guard: lock timeout",
    "guard: database locked",
    "guard: idle transaction ended",
    "body: hangs",
    "body raised",
    "start cancelled",
    "run.overlap",
    "run.unclaimed",
    "outcome: ran",
    "outcome: done",
    "outcome: held",
    "outcome: absent",
    "outcome: unknown",
    "outcome: stopped",
    "claim: kept",
    "claim: lost",
    "claim: absent",
    "claim: unknown",
    "claim: stalled",
    "claim: over",
    "gone, and there again",
    "refused by its own earlier claim",
    "harm: flush",
    "harm: restart, nothing kept",
    "harm: restart, everything kept",
    "harm: persist",
    "harm: clock steps ahead",
    "harm: clock steps back",
    "harm: evict",
    "harm: restart, an old snapshot kept",
    "harm: foreign",
)
"""Branches that only some schedules take."""


def cell(fault: str, step: str) -> str:
    """The counter of one fault at one step."""
    return f"{fault} at {step}"


def cells() -> Iterable[str]:
    """Every cell's counter."""
    return (cell(fault, step) for fault, steps in CELLS.items() for step in steps)


def never_reached(counters: Mapping[str, int]) -> tuple[str, ...]:
    """The branches of `SOMETIMES` that were not taken."""
    return tuple(branch for branch in SOMETIMES if not counters.get(branch))


def empty_cells(counters: Mapping[str, int]) -> tuple[str, ...]:
    """The faults that were never met at a step where they can be."""
    return tuple(name for name in cells() if not counters.get(name))


def faults(counters: Mapping[str, int]) -> int:
    """How many faults there were."""
    struck = sum(counters.get(name, 0) for name in cells())
    return struck + sum(
        times
        for name, times in counters.items()
        if name.startswith(("harm: ", "failover", "ledger failover", "guard failover", "broker: "))
    )


def table(counters: Mapping[str, int]) -> list[str]:
    """The cells as lines of text: one fault a line, with how often it met each of its steps."""
    width = max(map(len, CELLS))
    return [
        f"{fault:<{width}}  " + "  ".join(f"{step} {counters.get(cell(fault, step), 0):,}" for step in steps)
        for fault, steps in CELLS.items()
    ]
