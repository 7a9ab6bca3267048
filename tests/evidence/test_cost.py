"""What a period cost is counted, from the runs and skips that the ledger has."""

from __future__ import annotations

import json
from pathlib import Path

from claimant._model.records import Begin
from claimant._model.rows import SkipRow
from claimant.evidence import OutageCost, cost_of, outage_cost
from claimant.ledger import open_ledger
from claimant.testing.ledger_rows import answer, ended, skipped, started
from tests.evidence.rows import NOW, duplicate, run


def test_every_kind_of_cost_is_counted_once() -> None:
    """Runs without a claim, duplicates with and without one, wasted work, unguarded overlaps, crashes and skips."""
    runs = [
        run(),
        run(answers=(duplicate(),), wasted_ms=40),
        run(claim="lost", answers=(duplicate(), duplicate()), wasted_ms=40),
        run(claim_at_start="absent", claim="absent", answers=(duplicate("store absent"),), wasted_ms=40),
        run(claim_at_start="unknown", claim="kept"),
        run(guarded=False, overlapping=2, took_ms=700),
        run(guarded=True, overlapping=1),
        run(claim_at_start="absent", claim="", ended=None, kind=""),
        run(claim_at_start="off", claim="off"),
    ]
    skips = [SkipRow("debit", "", "absent", 5, NOW, NOW, "", None, None, "store absent", "web-1/17")]
    assert cost_of(runs, skips) == OutageCost(
        runs=9,
        without_claim=3,
        duplicates_with_claim=1,
        duplicates_without_claim=3,
        wasted_ms=120,
        overlapping_unguarded=1,
        overlapping_ms=700,
        unfinished=1,
        skipped=5,
    )


def test_nothing_costs_nothing() -> None:
    """No rows, no cost; the dictionary is JSON."""
    assert cost_of([]) == OutageCost()
    assert (
        json.loads(json.dumps(OutageCost(duplicates_with_claim=1, duplicates_without_claim=2).as_dict()))[
            "duplicates"
        ]
        == 3
    )


def test_a_period_is_read_from_a_real_ledger(tmp_path: Path) -> None:
    """Only what started within the period, of the job asked for, on the ledger's own clock."""
    now = [NOW]
    from claimant.ledger.sqlite import SqliteLedger

    ledger = SqliteLedger(tmp_path / "l.db", namespace="shop", deadline_ms=1_000, epoch_ms=lambda: now[0])
    for minute in range(4):
        now[0] = NOW + minute * 60_000
        lone = started("debit", claim="absent" if minute in (1, 2) else "kept", guarded=True, stake="money")
        ledger.call(Begin(lone))
        ledger.call(ended(lone, took_ms=10, answers=(answer(hole="store absent"),)))
        ledger.call(skipped("debit"))
        ledger.call(Begin(started("other")))
    cost = outage_cost(ledger, since=NOW + 60_000, until=NOW + 180_000, job="debit")
    assert (cost.runs, cost.without_claim, cost.duplicates, cost.wasted_ms, cost.skipped) == (2, 2, 2, 20, 2)
    assert outage_cost(ledger, since=NOW).overlapping_unguarded == 3
    assert outage_cost(ledger, since=NOW + 10**9) == OutageCost()
    ledger.close()
    assert open_ledger(f"sqlite:{tmp_path / 'l.db'}", namespace="else").runs() == []
