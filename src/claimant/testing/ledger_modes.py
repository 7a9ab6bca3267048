"""What every ledger must do with forced starts, and with what `mode=` let through: a part of `LedgerSuite`.

It asks a ledger only through its port, and looks at nothing but replies and rows.
"""

from __future__ import annotations

from typing import Any

import pytest

from claimant._drive.ports import LedgerPort
from claimant._model.records import Began, Begin, SlotClosed, SlotState
from claimant.testing.ledger_rows import SLOT, answer, ended, started


class ModesSuite:
    """This part of the suite. `LedgerSuite` offers the fixture `ledger`."""

    # -- a forced start

    def test_a_forced_start_runs_a_closed_slot(self, ledger: LedgerPort) -> None:
        """A slot that is done is begun once more where an operator asks, recorded as forced, and stays done by the first."""
        first, again = started(slot=SLOT), started(slot=SLOT, forced=True)
        ledger.call(Begin(first))
        ledger.call(ended(first, result="1"))
        done = SlotClosed(first.run_id, completed=True, result="1")
        assert ledger.call(Begin(started(slot=SLOT))) == done
        assert ledger.call(Begin(again, force=True)) == Began(attempt=2, overlapping=0)
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) == done
        ledger.call(ended(again, "failed", reason="it was not mended"))
        assert ledger.call(Begin(started(slot=SLOT))) == done
        assert {row.run_id: row.forced for row in ledger.runs()} == {first.run_id: False, again.run_id: True}
        [row] = ledger.jobs()
        assert (row.runs, row.forced, row.last_kind) == (2, 1, "failed")

    def test_a_forced_start_gives_one_more_attempt(self, ledger: LedgerPort) -> None:
        """A slot that was given up by failures runs once more: another failure leaves it closed, a success completes it."""
        for number, kind in enumerate(("failed", "failed", "ran"), start=1):
            run = started(slot=SLOT, forced=number > 1)
            assert ledger.call(Begin(run, force=number > 1)) == Began(attempt=number, overlapping=0)
            ledger.call(ended(run, kind, reason="why" if kind == "failed" else ""))
            closed = ledger.call(Begin(started(slot=SLOT)))
            assert isinstance(closed, SlotClosed)
            assert (closed.run_id, closed.completed) == (run.run_id, kind == "ran")

    def test_a_forced_start_of_what_is_done_leaves_it_done(self, ledger: LedgerPort) -> None:
        """Where a start closes its slot (at most once), a forced one that crashes does not undo the success of the first."""
        first, again = started(slot=SLOT), started(slot=SLOT, forced=True)
        ledger.call(Begin(first, close_at_start=True))
        ledger.call(ended(first, result="1"))
        assert isinstance(ledger.call(Begin(again, close_at_start=True, force=True)), Began)
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) == SlotClosed(
            first.run_id, completed=True, result="1"
        )

    def test_a_forced_start_that_arrives_with_its_end_is_recorded(self, ledger: LedgerPort) -> None:
        """A forced run whose begin the ledger never heard of is told as forced all the same."""
        ledger.call(ended(started(slot=SLOT, forced=True)))
        assert [row.forced for row in ledger.runs()] == [True]
        assert ledger.jobs()[0].forced == 1

    # -- what was let through

    @pytest.mark.parametrize("written", ["at once", "with its end"])
    def test_what_would_not_have_run_is_counted(self, ledger: LedgerPort, written: str) -> None:
        """Each run says what it would have been answered instead, and its job counts those; such a start is no skip."""
        for would in ("", "held", "done"):
            run = started(mode="observe", would=would, claim="off" if would else "kept")
            if written == "at once":
                ledger.call(Begin(run))
            ledger.call(ended(run))
        [row] = ledger.jobs()
        assert (row.mode, row.runs, row.would_skip) == ("observe", 3, 2)
        assert (row.skips_total, row.without_claim) == (0, 0)
        assert sorted((each.mode, each.would) for each in ledger.runs()) == [
            ("observe", ""),
            ("observe", "done"),
            ("observe", "held"),
        ]

    def test_an_effect_that_would_have_been_rejected_is_no_duplicate(self, ledger: LedgerPort) -> None:
        """Effects that observe mode let through are counted apart: they happened, and wasted no work."""
        run = started(mode="observe", stake="money", guarded=True)
        ledger.call(Begin(run))
        end = ended(run, answers=(answer("would_reject"), answer("applied", ""), answer("would_reject")))
        ledger.call(end)
        ledger.call(end)
        [row] = ledger.jobs()
        assert (row.would_reject, row.duplicates) == (2, 0)
        assert ledger.tallies() == []
        [found] = ledger.runs()
        assert (found.wasted_ms, [each.kind for each in found.answers]) == (
            0,
            ["would_reject", "applied", "would_reject"],
        )

    def test_a_job_is_as_its_last_start_declared_it(self, ledger: LedgerPort) -> None:
        """How it is guarded, its schedule and its mode are those of the newest start, not of one that is written late."""
        new: dict[str, Any] = {"guard": "attested: a unique index", "schedule": "every 1 h", "mode": "off"}
        old: dict[str, Any] = {"guard": "once in sqlite:a.db", "schedule": "", "mode": "observe"}
        ledger.call(Begin(started(**old)))
        ledger.call(Begin(started(**new)))
        ledger.call(ended(started(**old), took_ms=3_600_000))
        [row] = ledger.jobs()
        assert (row.guard, row.schedule, row.mode) == ("attested: a unique index", "every 1 h", "off")
        ledger.call(Begin(started()))
        [row] = ledger.jobs()
        assert (row.guard, row.schedule, row.mode) == ("", "", "enforce")
