"""Slots on the ledger's clock: hosts whose own clocks differ run every occasion, once."""

from __future__ import annotations

import random
from pathlib import Path

from claimant._model import slots
from claimant._model.records import Began, Begin, LedgerNow
from claimant.ledger.sqlite import SqliteLedger
from claimant.testing.ledger_rows import ended, started

EVERY_MS = 60_000
FIRST_MS = 1_796_000_040_000 // EVERY_MS * EVERY_MS
HOSTS = 3


def arrivals(boundary: int, skews: list[int], rng: random.Random) -> list[tuple[int, int]]:
    """When each host's timer fires for one boundary, on the ledger's clock and on its own, in order.

    A host fires when its own clock shows the boundary, give or take a timer that is 5 ms early or late.
    """
    fired = []
    for skew in skews:
        own = boundary + rng.randint(-5, 5)
        fired.append((own - skew, own))
    return sorted(fired)


def test_ten_thousand_boundaries_lose_none_and_double_none() -> None:
    """Hosts skewed by up to 2 s, at ten thousand boundaries: each occasion runs once. On their own clocks many would be lost."""
    rng = random.Random(20)
    skews = [rng.randint(-2_000, 2_000) for _ in range(HOSTS)]
    runs: dict[str, int] = {}
    own_runs: set[int] = set()
    for number in range(10_000):
        boundary = FIRST_MS + number * EVERY_MS
        for ledger_ms, own_ms in arrivals(boundary, skews, rng):
            slot = slots.text(slots.Every(EVERY_MS).latest(ledger_ms))
            if slot not in runs:
                runs[slot] = 0
                runs[slot] += 1
            own_runs.add(own_ms // EVERY_MS * EVERY_MS)
    expected = [slots.text(FIRST_MS + number * EVERY_MS) for number in range(10_000)]
    assert sorted(runs) == expected
    # The control: a timer 5 ms early on its own clock computes the occasion before, and finds it done.
    lost_by_a_host = sum(
        own_ms < boundary
        for boundary in range(FIRST_MS, FIRST_MS + 10_000 * EVERY_MS, EVERY_MS)
        for _, own_ms in arrivals(boundary, skews[:1], rng)
    )
    assert lost_by_a_host > 1_000
    assert min(own_runs) < FIRST_MS


def test_the_ledger_itself_says_done_to_the_others(tmp_path: Path) -> None:
    """The same with a real ledger: at each boundary one host begins, the others are told that it is done."""
    rng = random.Random(21)
    skews = [rng.randint(-2_000, 2_000) for _ in range(HOSTS)]
    now = [0]
    ledger = SqliteLedger(tmp_path / "l.db", namespace="", deadline_ms=1_000, epoch_ms=lambda: now[0])
    began: list[str] = []
    for number in range(300):
        for ledger_ms, _ in arrivals(FIRST_MS + number * EVERY_MS, skews, rng):
            now[0] = ledger_ms
            at = ledger.call(LedgerNow())
            assert isinstance(at, int)
            run = started(slot=slots.text(slots.Every(EVERY_MS).latest(at)))
            if isinstance(ledger.call(Begin(run)), Began):
                began.append(run.slot or "")
                ledger.call(ended(run))
    assert began == [slots.text(FIRST_MS + number * EVERY_MS) for number in range(300)]
    ledger.close()
