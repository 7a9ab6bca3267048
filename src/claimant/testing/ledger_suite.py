"""What every ledger must do: subclass `LedgerSuite`, say how to open one, and run it with pytest.

It asks a ledger only through its port, and looks at nothing but replies and rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from claimant._drive.ports import LedgerPort
from claimant._model.record import replaced
from claimant._model.records import (
    Began,
    Begin,
    CloseSlot,
    LedgerNow,
    LedgerReply,
    SlotClosed,
    SlotState,
)
from claimant.testing.ledger_modes import ModesSuite
from claimant.testing.ledger_rows import SLOT, answer, ended, skipped, started


class RecordSuite:
    """Slots, repeats, counts, names and threads: what has been promised since the first version of the tables."""

    @pytest.fixture
    def open_one(self) -> Callable[[str], LedgerPort]:
        """A function from a namespace to a ledger: the same place each time, a new object each time."""
        raise NotImplementedError

    @pytest.fixture
    def ledger(self, open_one: Callable[[str], LedgerPort]) -> LedgerPort:
        """The ledger under test."""
        return open_one("shop")

    # -- slots

    def test_an_open_slot_begins_and_a_closed_one_does_not(self, ledger: LedgerPort) -> None:
        """After a success closed a slot, a begin is answered with that run, its completion and its result."""
        first = started(slot=SLOT)
        assert ledger.call(Begin(first)) == Began(attempt=1, overlapping=0)
        ledger.call(ended(first, result='{"rows": 3}'))
        expected = SlotClosed(first.run_id, completed=True, result='{"rows": 3}')
        assert ledger.call(Begin(started(slot=SLOT))) == expected
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) == expected
        assert ledger.jobs()[0].runs == 1

    def test_the_ledger_alone_excludes_nobody(self, ledger: LedgerPort) -> None:
        """Two begins of one open slot are both begun; the second is told of the first."""
        assert ledger.call(Begin(started(slot=SLOT))) == Began(attempt=1, overlapping=0)
        assert ledger.call(Begin(started(slot=SLOT))) == Began(attempt=2, overlapping=1)

    def test_a_crashed_run_does_not_close_its_slot(self, ledger: LedgerPort) -> None:
        """A run that never ended leaves its slot open, however many there were."""
        for number in range(1, 4):
            reply = ledger.call(Begin(started(slot=SLOT), attempts=1))
            assert isinstance(reply, Began)
            assert reply.attempt == number
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) is None

    def test_failures_use_up_attempts(self, ledger: LedgerPort) -> None:
        """As many failed runs as are allowed close a slot, uncompleted, with the last failure told."""
        first, last = started(slot=SLOT), started(slot=SLOT)
        for run in (first, last):
            assert ledger.call(SlotState("rebuild-index", "", SLOT, attempts=2)) is None
            assert isinstance(ledger.call(Begin(run, attempts=2)), Began)
            ledger.call(ended(run, "failed", reason="ValueError: no such file"))
        reply = ledger.call(Begin(started(slot=SLOT), attempts=2))
        assert isinstance(reply, SlotClosed)
        assert (reply.run_id, reply.completed, reply.result) == (last.run_id, False, None)
        assert "2 of 2 attempts used up" in reply.reason
        assert "ValueError: no such file" in reply.reason
        assert isinstance(ledger.call(Begin(started(slot=SLOT), attempts=3)), Began)

    @pytest.mark.parametrize("kind", ["stopped", "unknown", "uncommitted", "held"])
    def test_only_a_failure_counts_as_an_attempt(self, ledger: LedgerPort, kind: str) -> None:
        """A run that was stopped, is unknown, uncommitted or held leaves its slot open."""
        run = started(slot=SLOT)
        ledger.call(Begin(run))
        ledger.call(ended(run, kind, reason="why"))
        assert isinstance(ledger.call(Begin(started(slot=SLOT))), Began)

    def test_a_superseded_attempt_cannot_fail_its_slot(self, ledger: LedgerPort) -> None:
        """A late failure of a run that has a newer attempt does not count."""
        old, new = started(slot=SLOT), started(slot=SLOT)
        ledger.call(Begin(old))
        ledger.call(Begin(new))
        ledger.call(ended(old, "failed", reason="woke up too late"))
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) is None
        ledger.call(ended(new, "failed", reason="the live one"))
        closed = ledger.call(SlotState("rebuild-index", "", SLOT))
        assert isinstance(closed, SlotClosed)
        assert closed.run_id == new.run_id

    def test_a_late_failure_does_not_undo_a_success(self, ledger: LedgerPort) -> None:
        """A slot that another run completed stays completed, and the job's last word stays its success."""
        old, new = started(slot=SLOT), started(slot=SLOT)
        ledger.call(Begin(old))
        ledger.call(Begin(new))
        ledger.call(ended(new, result="1"))
        ledger.call(ended(old, "failed", reason="woke up too late"))
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) == SlotClosed(
            new.run_id, completed=True, result="1"
        )
        [row] = ledger.jobs()
        assert (row.last_kind, row.last_reason, row.failed) == ("ran", "", 1)

    def test_the_newest_attempt_cannot_undo_a_success_either(self, ledger: LedgerPort) -> None:
        """Where an older attempt completed the slot meanwhile, a failure of the newest changes nothing."""
        old, new = started(slot=SLOT), started(slot=SLOT)
        ledger.call(Begin(old))
        ledger.call(Begin(new))
        ledger.call(ended(old, result="1"))
        ledger.call(ended(new, "failed", reason="the other was faster"))
        assert ledger.call(Begin(started(slot=SLOT))) == SlotClosed(old.run_id, completed=True, result="1")

    def test_a_late_success_closes_its_slot(self, ledger: LedgerPort) -> None:
        """A superseded attempt may write a success, even into a slot whose attempts are used up."""
        old, new = started(slot=SLOT), started(slot=SLOT)
        ledger.call(Begin(old))
        ledger.call(Begin(new))
        ledger.call(ended(new, "failed", reason="x"))
        ledger.call(ended(old, result="7"))
        assert ledger.call(Begin(started(slot=SLOT))) == SlotClosed(old.run_id, completed=True, result="7")

    def test_the_first_success_stays(self, ledger: LedgerPort) -> None:
        """Of two successes of one slot the first is what later starts are told of."""
        one, two = started(slot=SLOT), started(slot=SLOT)
        ledger.call(Begin(one))
        ledger.call(Begin(two))
        ledger.call(ended(two, result="2"))
        ledger.call(ended(one, result="1"))
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) == SlotClosed(
            two.run_id, completed=True, result="2"
        )

    def test_closed_at_start(self, ledger: LedgerPort) -> None:
        """At most once: the begin closes the slot, uncompleted until a success is written; a failure does not open it."""
        run = started(slot=SLOT)
        assert isinstance(ledger.call(Begin(run, close_at_start=True)), Began)
        crashed = ledger.call(Begin(started(slot=SLOT), attempts=5, close_at_start=True))
        assert isinstance(crashed, SlotClosed)
        assert not crashed.completed
        assert "at most once" in crashed.reason
        ledger.call(ended(run, "failed", reason="smtp down"))
        failed = ledger.call(SlotState("rebuild-index", "", SLOT, attempts=5))
        assert isinstance(failed, SlotClosed)
        assert not failed.completed
        assert "smtp down" in failed.reason
        other = started(slot="other")
        ledger.call(Begin(other, close_at_start=True))
        ledger.call(ended(other, result="3"))
        assert ledger.call(SlotState("rebuild-index", "", "other")) == SlotClosed(
            other.run_id, completed=True, result="3"
        )

    def test_an_uncommitted_run_is_closed_later(self, ledger: LedgerPort) -> None:
        """`CloseSlot` makes an uncommitted run a success with its own result, once and for all."""
        run = started(slot=SLOT)
        ledger.call(Begin(run))
        ledger.call(ended(run, "uncommitted", close_slot=False, result="5"))
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) is None
        assert ledger.jobs()[0].last_success is None
        for _ in range(2):
            assert ledger.call(CloseSlot(run.run_id)) is None
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) == SlotClosed(
            run.run_id, completed=True, result="5"
        )
        [row] = ledger.jobs()
        assert (row.last_kind, row.runs) == ("ran", 1)
        assert row.last_success is not None
        assert ledger.runs()[0].kind == "ran"

    def test_a_commit_before_the_end_does_not_close_the_slot(self, ledger: LedgerPort) -> None:
        """A body that commits in its middle is not done: only a run that has ended uncommitted is completed by a commit."""
        run = started(slot=SLOT)
        ledger.call(Begin(run))
        ledger.call(CloseSlot(run.run_id))
        assert ledger.call(SlotState(run.job, run.key, SLOT)) is None
        ledger.call(ended(run, "uncommitted", close_slot=False))
        assert ledger.call(SlotState(run.job, run.key, SLOT)) is None
        ledger.call(CloseSlot(run.run_id))
        assert isinstance(ledger.call(SlotState(run.job, run.key, SLOT)), SlotClosed)
        assert ledger.runs()[0].kind == "ran"
        assert ledger.call(CloseSlot("nobody")) is None

    # -- repeats, and a ledger that was away

    def test_a_finish_written_twice_is_one(self, ledger: LedgerPort) -> None:
        """A finish whose reply was lost may be sent again, also with another content, and changes nothing."""
        run = started(slot=SLOT)
        ledger.call(Begin(run))
        end = ended(run, "failed", reason="x", answers=(answer(),))
        for each in (end, end, replaced(end, kind="ran", close_slot=True)):
            assert ledger.call(each) is None
        [row] = ledger.jobs()
        assert (row.runs, row.failed, row.duplicates, row.last_kind) == (1, 1, 1, "failed")
        assert [tally.count for tally in ledger.tallies()] == [1]
        assert isinstance(ledger.call(Begin(started(slot=SLOT), attempts=2)), Began)

    def test_a_begin_written_twice_is_one(self, ledger: LedgerPort) -> None:
        """A begin whose reply was lost may be sent again: the same attempt, one run."""
        run = started(slot=SLOT)
        assert ledger.call(Begin(run)) == ledger.call(Begin(run)) == Began(attempt=1, overlapping=0)
        assert ledger.jobs()[0].runs == 1

    def test_a_finish_brings_its_start_along(self, ledger: LedgerPort) -> None:
        """A run whose begin the ledger never heard of is written whole by its end."""
        run = started(slot=SLOT, claim="absent", stake="money", guarded=True)
        ledger.call(ended(run, took_ms=250, answers=(answer("applied", ""),), renewals=3, worst_gap_ms=77))
        [row] = ledger.runs()
        assert (row.run_id, row.slot, row.attempt, row.stake, row.guarded) == (
            run.run_id,
            SLOT,
            1,
            "money",
            True,
        )
        assert (row.claim_at_start, row.kind, row.took_ms, row.renewals, row.worst_gap_ms) == (
            "absent",
            "ran",
            250,
            3,
            77,
        )
        assert row.ended is not None
        assert row.ended - row.started == 250
        assert isinstance(ledger.call(SlotState("rebuild-index", "", SLOT)), SlotClosed)
        [job] = ledger.jobs()
        assert (job.runs, job.without_claim, job.last_started, job.stake) == (1, 1, row.started, "money")

    def test_a_finish_without_any_start_is_let_go(self, ledger: LedgerPort) -> None:
        """An end of which nothing else is known is written nowhere, and is no error."""
        assert ledger.call(ended(started(), with_start=False)) is None
        assert ledger.jobs() == []
        assert ledger.runs() == []

    def test_a_finish_may_do_without_its_start(self, ledger: LedgerPort) -> None:
        """Where the begin was written, the end finds it by the run's id."""
        run = started(slot=SLOT)
        ledger.call(Begin(run))
        ledger.call(ended(run, with_start=False, result="1"))
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) == SlotClosed(
            run.run_id, completed=True, result="1"
        )

    def test_an_old_run_that_arrives_late_is_superseded(self, ledger: LedgerPort) -> None:
        """A failure of a run that began before the newest attempt does not count, though its start comes only now."""
        ledger.call(Begin(started(slot=SLOT)))
        ledger.call(ended(started(slot=SLOT), "failed", took_ms=60_000, reason="long ago"))
        assert ledger.call(SlotState("rebuild-index", "", SLOT)) is None
        ledger.call(ended(started(slot="other"), "failed", reason="the only one"))
        assert isinstance(ledger.call(SlotState("rebuild-index", "", "other")), SlotClosed)

    # -- what is counted

    def test_overlapping_runs_are_counted(self, ledger: LedgerPort) -> None:
        """Unfinished runs of the same job and key count until they are older than their longest run; ended ones do not."""
        first = started()
        ledger.call(Begin(first))
        assert ledger.call(Begin(started())) == Began(1, overlapping=1)
        assert ledger.call(Begin(started(key="order=1"))) == Began(1, overlapping=0)
        assert ledger.call(Begin(started("another"))) == Began(1, overlapping=0)
        ledger.call(ended(first))
        assert ledger.call(Begin(started(guarded=True))) == Began(1, overlapping=1)
        row = next(row for row in ledger.jobs("rebuild-index") if row.key == "")
        assert row.overlaps == 1
        crashed = started("brief", max_run_ms=1)
        ledger.call(Begin(crashed))
        before = ledger.call(LedgerNow())
        while ledger.call(LedgerNow()) == before:
            pass
        assert ledger.call(Begin(started("brief"))) == Began(1, overlapping=0)

    def test_skips_in_a_row(self, ledger: LedgerPort) -> None:
        """A skip returns how many there were since the last run of its job and key started."""
        assert [ledger.call(skipped()) for _ in range(3)] == [1, 2, 3]
        assert ledger.call(skipped(key="order=1")) == 1
        [row, _] = ledger.jobs()
        assert (row.skips_in_row, row.skips_total, row.last_skip_holder) == (3, 3, "host-2/9")
        assert row.last_skip_reason == "held by host-2/9"
        assert row.skips_since is not None
        assert row.last_skip is not None
        assert row.skips_since <= row.last_skip
        ledger.call(Begin(started()))
        row = ledger.jobs()[0]
        assert (row.skips_in_row, row.skips_since, row.skips_total) == (0, None, 3)
        assert ledger.call(skipped(kind="absent", holder="", remaining_ms=None)) == 1

    def test_a_closed_slot_is_not_a_start(self, ledger: LedgerPort) -> None:
        """A begin that finds its slot closed does not end a row of skips and counts no run."""
        run = started(slot=SLOT)
        ledger.call(Begin(run))
        ledger.call(ended(run))
        ledger.call(skipped())
        ledger.call(Begin(started(slot=SLOT)))
        assert ledger.call(skipped()) == 2

    def test_skips_are_kept_by_the_minute(self, ledger: LedgerPort) -> None:
        """Many skips make one row a minute and kind, with the last holder, its time left and who was refused."""
        for number in range(20):
            ledger.call(skipped(remaining_ms=number, slot=f"s{number}"))
        ledger.call(skipped(kind="absent", holder="", remaining_ms=None))
        rows = ledger.skips()
        held = [row for row in rows if row.kind == "held"]
        assert sum(row.count for row in held) == 20
        assert len(rows) <= 4  # the minute may have changed meanwhile
        assert (held[-1].holder, held[-1].remaining_ms, held[-1].slot) == ("host-2/9", 19, "s19")
        assert held[-1].skipped_by == "host-1/17"
        assert ledger.skips(since=ledger.now() + 60_000) == []

    def test_duplicates_are_tallied_by_cause(self, ledger: LedgerPort) -> None:
        """Rejected attempts by job, stake, hole, claim and joined; wasted work is that of runs rejected as a whole, once."""
        money: dict[str, Any] = {"stake": "money", "guarded": True}
        whole = started("debit", **money)
        ledger.call(ended(whole, took_ms=100, answers=(answer(), answer(operation="debit(43)"))))
        partly = started("debit", **money)
        ledger.call(ended(partly, took_ms=900, answers=(answer("applied", ""), answer())))
        lost = started("debit", claim="absent", **money)
        ledger.call(ended(lost, took_ms=30, answers=(answer(hole="store absent", joined=True),)))
        found = {
            (t.job, t.stake, t.hole, t.claim, t.joined): (t.count, t.wasted_ms) for t in ledger.tallies()
        }
        assert found == {
            ("debit", "money", "deadline passed", "kept", False): (3, 100),
            ("debit", "money", "store absent", "absent", True): (1, 30),
        }
        assert ledger.jobs()[0].duplicates == 4
        assert ledger.tallies("debit") == ledger.tallies()
        assert ledger.tallies("nothing") == []
        rows = ledger.runs()
        assert {row.run_id: row.wasted_ms for row in rows} == {
            whole.run_id: 100,
            partly.run_id: 0,
            lost.run_id: 30,
        }
        answers = {row.run_id: row.answers for row in rows}
        assert answers[whole.run_id] == (answer(), answer(operation="debit(43)"))

    def test_a_job_row_tells_its_story(self, ledger: LedgerPort) -> None:
        """Running with its holder; then how it ended; a crash is a run without an end; a loss of claim is counted."""
        before = ledger.now()
        run = started(slot=SLOT, claim="unknown")
        ledger.call(Begin(run))
        [row] = ledger.jobs()
        assert (row.job, row.key, row.stake, row.guarded, row.last_slot) == (
            "rebuild-index",
            "",
            "rebuild",
            False,
            SLOT,
        )
        assert row.running_since is not None
        assert before <= row.running_since <= ledger.now()
        assert (row.running_holder, row.unfinished, row.without_claim) == ("host-1/17", 0, 1)
        assert (row.lifetime_ms, row.stall_bound_ms, row.max_run_ms) == (30_000, 3_630_000, 3_600_000)
        ledger.call(ended(run, "failed", reason="OSError: disk"))
        [row] = ledger.jobs("rebuild-index")
        assert (row.running_since, row.running_holder, row.failed) == (None, "", 1)
        assert (row.last_kind, row.last_reason, row.last_success) == ("failed", "OSError: disk", None)
        crashed, running = started(holder="host-3/1"), started(holder="host-4/1")
        ledger.call(Begin(crashed))
        ledger.call(Begin(running))
        [row] = ledger.jobs()
        assert (row.running_holder, row.unfinished, row.unfinished_holder) == ("host-4/1", 1, "host-3/1")
        ledger.call(ended(running))
        [row] = ledger.jobs()
        assert (row.running_since, row.unfinished, row.last_kind) == (None, 1, "ran")
        assert row.last_success == row.last_ended
        assert ledger.jobs("unheard-of") == []

    def test_a_crash_has_no_answers(self, ledger: LedgerPort) -> None:
        """A run that never ended shows as such, with no kind and no answers."""
        ledger.call(Begin(started()))
        [row] = ledger.runs()
        assert (row.ended, row.kind, row.claim, row.answers) == (None, "", "", ())

    def test_runs_of_a_period(self, ledger: LedgerPort) -> None:
        """Runs come oldest first, and only those that started in the period, of the job asked for."""
        for job in ("a", "b", "a"):
            ledger.call(Begin(started(job)))
        assert [row.job for row in ledger.runs()] == ["a", "b", "a"]
        assert [row.job for row in ledger.runs(job="b")] == ["b"]
        assert ledger.runs(since=ledger.now() + 60_000) == []

    # -- names, texts, namespaces

    def test_namespaces_never_meet(self, open_one: Callable[[str], LedgerPort]) -> None:
        """The same run id, job and slot in two namespaces are two of each."""
        shop, staging = open_one("shop"), open_one("staging")
        run = started(slot=SLOT)
        shop.call(Begin(run))
        assert staging.call(Begin(run)) == Began(attempt=1, overlapping=0)
        shop.call(ended(run, answers=(answer(),)))
        shop.call(skipped())
        assert staging.call(SlotState("rebuild-index", "", SLOT)) is None
        [row] = staging.jobs()
        assert (row.runs, row.skips_total, row.last_kind) == (1, 0, "")
        assert (staging.tallies(), staging.skips(), len(staging.runs())) == ([], [], 1)
        assert staging.runs()[0].ended is None

    @pytest.mark.parametrize(
        "name",
        ["naïve", "a\0b", "line\nline", "💶" * 40, "x" * 10_000, "{a}:?%s'\"\\", "\x1a0\x1as", "' OR 1=1 --"],
        ids=["accent", "nul", "newline", "emoji", "10kB", "punctuation", "substitute", "quote"],
    )
    def test_any_text_is_a_name(self, ledger: LedgerPort, name: str) -> None:
        """A job, key, slot, holder, operation or reason may be any text, and a name comes back as it was given."""
        run = started(name, slot=name, key=name, holder=name, guard=name, schedule=name)
        ledger.call(Begin(run))
        ledger.call(ended(run, "failed", reason=name, answers=(answer(operation=name),)))
        ledger.call(skipped(name, key=name, slot=name, holder=name, reason=name, skipped_by=name))
        [row] = ledger.jobs(name)
        assert (row.job, row.key, row.last_slot) == (name, name, name)
        assert row.last_reason[:500] == name[:500]
        closed = ledger.call(SlotState(name, name, name))
        assert isinstance(closed, SlotClosed)
        assert closed.run_id == run.run_id
        assert [each.slot for each in ledger.runs(job=name)] == [name]

    def test_half_a_character_in_a_reason_is_no_error(self, ledger: LedgerPort) -> None:
        """Text with a lone surrogate, as in the name of a file that is not UTF-8, is kept written out."""
        ledger.call(ended(started(), "failed", reason="no file \udcff"))
        assert ledger.jobs()[0].last_reason == "no file \\udcff"

    def test_names_that_share_letters_stay_apart(self, ledger: LedgerPort) -> None:
        """Job, key and slot do not run together: ("a", "bc") is not ("ab", "c")."""
        for job, key in (("a", "bc"), ("ab", "c"), ("abc", "")):
            assert ledger.call(Begin(started(job, key=key, slot="d"))) == Began(1, 0)
        assert len(ledger.jobs()) == 3

    # -- threads

    def test_threads_see_each_other(self, ledger: LedgerPort) -> None:
        """Of begins from many threads each has an attempt number of its own and sees all before it."""
        replies: list[LedgerReply] = []

        def begin() -> None:
            replies.append(ledger.call(Begin(started(slot=SLOT))))

        threads = [threading.Thread(target=begin) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = sorted((reply.attempt, reply.overlapping) for reply in replies if isinstance(reply, Began))
        assert seen == [(number + 1, number) for number in range(16)]

    def test_a_closed_ledger_opens_again(self, ledger: LedgerPort) -> None:
        """`close` ends connections, not the ledger."""
        ledger.call(Begin(started()))
        ledger.close()
        ledger.close()
        assert ledger.jobs()[0].runs == 1


class LedgerSuite(RecordSuite, ModesSuite):
    """The suite. A subclass offers the fixture `open_one`, which opens the ledger under test in a namespace."""
