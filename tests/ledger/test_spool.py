"""What an absent ledger should have recorded is kept, bounded, and written when it answers again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from claimant._drive import clock
from claimant._model.errors import LedgerAbsent, Refused
from claimant._model.records import (
    Began,
    Begin,
    CloseSlot,
    LedgerNow,
    LedgerReply,
    LedgerRequest,
    SlotClosed,
    SlotState,
)
from claimant.ledger import Spooled, open_ledger, spool
from claimant.ledger.book import Late
from claimant.ledger.patience import Unsettled, absent
from claimant.ledger.spool import PORTION
from claimant.ledger.sqlite import SqliteLedger
from claimant.testing.ledger_rows import SLOT, answer, ended, skipped, started
from tests.ledger.conftest import Open
from tests.support.proxy import Proxy


class Fickle(SqliteLedger):
    """A real ledger that may be away."""

    away: Exception | None = None
    written = 0

    def call(self, request: LedgerRequest) -> LedgerReply:
        if self.away is not None:
            raise self.away
        if isinstance(request, Late):
            self.written += 1
        return super().call(request)


AWAY = absent("there", "gone")


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[Fickle]:
    ledger = Fickle(tmp_path / "ledger.db", namespace="shop", deadline_ms=1_000)
    yield ledger
    for spooled in list(spool._open):
        if spooled._ledger is ledger:
            spooled.forget_kept()  # the end of these tests has nothing to say of what they lost on purpose
    ledger.close()


def refuses(spooled: Spooled, request: LedgerRequest) -> None:
    with pytest.raises(LedgerAbsent):
        spooled.call(request)


def test_the_caller_is_told_and_the_record_is_kept(inner: Fickle) -> None:
    """While the ledger is away every request raises; ends, skips and closed slots are kept, questions are not."""
    spooled = Spooled(inner)
    inner.away = AWAY
    run = started(slot=SLOT)
    questions: list[LedgerRequest] = [LedgerNow(), Begin(run), SlotState("rebuild-index", "", SLOT)]
    for request in questions:
        refuses(spooled, request)
    assert spooled.kept == 0
    for request in (
        ended(run, "uncommitted", close_slot=False, answers=(answer(),)),
        CloseSlot(run.run_id),
        skipped(),
    ):
        refuses(spooled, request)
    assert (spooled.kept, spooled.dropped) == (3, 0)


def test_what_was_kept_is_written_whole_and_in_order(inner: Fickle) -> None:
    """On its return the ledger has the run with its answers, its slot closed, its skip, at the time when it happened."""
    spooled = Spooled(inner)
    inner.away = AWAY
    run = started(slot=SLOT, claim="absent")
    refuses(spooled, ended(run, "uncommitted", close_slot=False, took_ms=7, answers=(answer(),)))
    refuses(spooled, CloseSlot(run.run_id))
    refuses(spooled, skipped())
    for each in (spooled._ends, spooled._skips):
        for number, kept in enumerate(each):
            each[number] = kept._replace(at_ms=kept.at_ms - 60_000)  # a minute passes
    inner.away = None
    now = spooled.call(LedgerNow())
    assert isinstance(now, int)
    assert spooled.kept == 0
    [row] = inner.runs()
    assert (row.kind, row.answers, row.claim_at_start) == ("ran", (answer(),), "absent")
    assert row.ended is not None
    assert abs(now - 60_000 - row.ended) < 5_000
    [job] = inner.jobs()
    assert (job.runs, job.skips_total) == (1, 1)
    assert job.last_success is not None
    assert abs(now - 60_000 - job.last_success) < 5_000
    assert job.last_skip is not None
    assert abs(now - 60_000 - job.last_skip) < 5_000
    assert isinstance(inner.call(SlotState("rebuild-index", "", SLOT)), SlotClosed)


def test_a_begin_sees_what_was_kept(inner: Fickle) -> None:
    """A slot whose end is still in memory is closed to the next begin of this process."""
    spooled = Spooled(inner)
    run = started(slot=SLOT)
    spooled.call(Begin(run))
    inner.away = AWAY
    refuses(spooled, ended(run, result="1"))
    inner.away = None
    assert spooled.call(Begin(started(slot=SLOT))) == SlotClosed(run.run_id, completed=True, result="1")


def test_it_is_bounded_and_says_what_it_lost(inner: Fickle) -> None:
    """When there is no room the oldest skip goes, and only then the oldest end; the lost ones are counted."""
    spooled = Spooled(inner, room=5)
    inner.away = AWAY
    first = started(job="first")
    refuses(spooled, ended(first))
    for _ in range(6):
        refuses(spooled, skipped())
    assert (spooled.kept, spooled.dropped) == (5, 2)
    for number in range(5):
        refuses(spooled, ended(started(job=f"later-{number}")))
    assert (spooled.kept, spooled.dropped) == (5, 7)
    inner.away = None
    spooled.call(LedgerNow())
    assert sorted(row.job for row in inner.jobs()) == [f"later-{number}" for number in range(5)]


def test_it_writes_in_portions(inner: Fickle) -> None:
    """One caller writes a portion for the others, not everything."""
    spooled = Spooled(inner)
    inner.away = AWAY
    for _ in range(3 * PORTION):
        refuses(spooled, skipped())
    inner.away = None
    spooled.call(LedgerNow())
    assert spooled.kept == 2 * PORTION
    for _ in range(2):
        spooled.call(LedgerNow())
    assert spooled.kept == 0
    assert inner.jobs()[0].skips_in_row == 3 * PORTION


def test_writing_what_was_kept_delays_nobody_for_long(inner: Fickle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each late write is given what is left of one deadline, and none is begun after it."""
    inner.deadline_ms = 120
    spooled = Spooled(inner)
    inner.away = AWAY
    for _ in range(20):
        refuses(spooled, skipped())
    inner.away = None
    given: list[int] = []

    def slow(request: LedgerRequest) -> LedgerReply:
        if isinstance(request, Late):
            given.append(request.within_ms)
            time.sleep(0.03)
        return None

    monkeypatch.setattr(inner, "call", slow)
    began = clock.now_ms()
    spooled.call(LedgerNow())
    assert clock.now_ms() - began < 400
    assert given == sorted(given, reverse=True)
    assert given[0] <= 120
    assert 1 <= len(given) <= 5
    assert spooled.kept == 20 - len(given)


def test_an_interrupted_portion_is_not_lost(inner: Fickle) -> None:
    """A ledger that goes away again while it is being written to loses nothing and doubles nothing."""
    spooled = Spooled(inner)
    inner.away = AWAY
    for _ in range(10):
        refuses(spooled, skipped())
        refuses(spooled, ended(started()))
    inner.away = None
    real = SqliteLedger.call
    calls = [0]

    def flaky(request: LedgerRequest) -> LedgerReply:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise AWAY
        return real(inner, request)

    inner.call = flaky  # type: ignore[method-assign]
    for _ in range(60):
        try:
            spooled.call(LedgerNow())
        except LedgerAbsent:
            continue
    assert (spooled.kept, spooled.dropped) == (0, 0)
    [row] = inner.jobs()
    assert (row.runs, row.skips_total) == (10, 10)


def test_one_bad_record_does_not_stop_the_rest(inner: Fickle) -> None:
    """What the ledger will not take is dropped and counted; the others are written."""
    spooled = Spooled(inner)
    inner.away = AWAY
    refuses(spooled, skipped(job="poison"))
    refuses(spooled, skipped(job="fine"))
    inner.away = None
    real = SqliteLedger.call

    def picky(request: LedgerRequest) -> LedgerReply:
        if isinstance(request, Late) and "poison" in repr(request):
            raise Refused("CLM000", "no")
        return real(inner, request)

    inner.call = picky  # type: ignore[method-assign]
    spooled.call(LedgerNow())
    assert (spooled.kept, spooled.dropped) == (0, 1)
    assert [row.job for row in inner.jobs()] == ["fine"]


def test_a_skip_that_may_have_been_counted_is_not_kept(inner: Fickle) -> None:
    """After a commit without a reply an end is kept, because it is the same written twice; a skip is not."""
    spooled = Spooled(inner)
    inner.away = Unsettled("?", retry_in=1)
    refuses(spooled, skipped())
    refuses(spooled, ended(started()))
    assert spooled.kept == 1


def test_a_late_skip_does_not_lengthen_a_row_that_a_run_has_ended(inner: Fickle) -> None:
    """A skip from before the last start is counted, and not as one since it."""
    spooled = Spooled(inner)
    inner.away = AWAY
    refuses(spooled, skipped())
    spooled._skips[0] = spooled._skips[0]._replace(at_ms=spooled._skips[0].at_ms - 10_000)
    inner.away = None
    assert isinstance(inner.call(Begin(started())), Began)
    spooled.call(LedgerNow())
    [row] = inner.jobs()
    assert (row.skips_total, row.skips_in_row) == (1, 0)


def test_closing_writes_what_is_left(inner: Fickle) -> None:
    """At a process's orderly end what is kept is written, if the ledger answers."""
    spooled = Spooled(inner)
    inner.away = AWAY
    for _ in range(2 * PORTION):
        refuses(spooled, skipped())
    inner.away = None
    spooled.close()
    assert spooled.kept == 0
    assert inner.jobs()[0].skips_total == 2 * PORTION


def test_a_forked_child_keeps_nothing_of_its_parent(inner: Fickle) -> None:
    """What the parent keeps is the parent's to write."""
    spooled = Spooled(inner)
    inner.away = AWAY
    refuses(spooled, skipped())
    spooled.forget()
    assert spooled.kept == 0
    assert hasattr(os, "fork")


def test_only_the_first_of_an_outage_is_news(inner: Fickle) -> None:
    """The errors of one outage are told apart from its first, and an answer ends it."""
    spooled = Spooled(inner)
    for _ in range(2):
        told: list[bool] = []
        for _ in range(3):
            inner.away = absent("there", "gone")
            with pytest.raises(LedgerAbsent) as caught:
                spooled.call(LedgerNow())
            told.append(caught.value.again)
        assert told == [False, True, True]
        assert spooled.absent_since is not None
        assert clock.now_ms() - spooled.absent_since < 10_000
        inner.away = None
        spooled.call(LedgerNow())
        assert spooled.absent_since is None


def test_the_last_try_asks_a_ledger_that_was_silent_a_moment_ago(inner: Fickle) -> None:
    """At the end nobody waits for a pause to be over: what is kept is written, though a deadline was just spent."""
    spooled = Spooled(inner)
    inner.away = AWAY
    refuses(spooled, skipped())
    inner.away = None
    inner._patience.spent("nothing within 1.0 s")
    refuses(spooled, SlotState("rebuild-index", "", SLOT))
    assert spooled.kept == 1
    spooled.close()
    assert spooled.kept == 0
    assert inner.jobs()[0].skips_total == 1


def test_the_last_try_gives_each_record_its_time(inner: Fickle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that answers slowly at the end is given all that is kept, not only what one deadline has time for."""
    inner.deadline_ms = 120
    spooled = Spooled(inner)
    inner.away = AWAY
    for _ in range(10):
        refuses(spooled, skipped())
    monkeypatch.setattr(inner, "call", lambda request: time.sleep(0.03))
    spooled.close()
    assert spooled.kept == 0


def test_a_server_that_is_silent_for_a_moment_is_written_to_at_the_end(
    pg_url: str, postgres, opened: Open
) -> None:
    """A crowded server looks like one that is gone: the last try outlasts a connection that hangs, and makes another."""
    with Proxy(postgres.port) as proxy:
        proxy.black_hole()
        spooled = Spooled(open_ledger(f"{proxy.url(pg_url)}?deadline=600ms", namespace="shop"))
        refuses(spooled, ended(started()))
        threading.Timer(0.5, proxy.heal).start()
        spooled.close()
        assert spooled.kept == 0
    assert opened(pg_url).jobs()[0].runs == 1


def test_what_is_lost_at_the_end_is_one_line(inner: Fickle, caplog: pytest.LogCaptureFixture) -> None:
    """A process that ends while the ledger is away logs how many records are lost, once; one that lost nothing is silent."""
    spooled = Spooled(inner, room=3)
    spooled.end()
    assert caplog.records == []
    inner.away = AWAY
    for _ in range(4):
        refuses(spooled, ended(started()))
    for _ in range(2):
        spooled.end()
    [record] = caplog.records
    assert record.name == "claimant"
    assert "4 records of runs and skips are lost" in record.getMessage()
    assert inner.address in record.getMessage()


EXIT = """
import sys
from claimant.ledger import Spooled, open_ledger
from claimant.ledger.patience import absent
from claimant.testing.ledger_rows import skipped, ended, started
ledger = open_ledger(sys.argv[1], namespace="shop")
spooled = Spooled(ledger)
if "reached" in sys.argv:
    ledger.now()
    call, ledger.call = ledger.call, None
    def gone(request):
        raise absent("there", "gone")
    ledger.call = gone
for request in (skipped(), ended(started())):
    try:
        spooled.call(request)
    except Exception as error:
        print(type(error).__name__, flush=True)
if "reached" in sys.argv:
    ledger.call = call
if "wait" in sys.argv:
    sys.stdin.readline()
"""


def test_a_process_that_ends_writes_what_it_kept(url: str, opened: Open) -> None:
    """At the interpreter's exit what could not be recorded is recorded, without a word."""
    ledger = opened(url)
    ledger.now()
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXIT, url, "reached"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert (said.stdout, said.stderr) == ("LedgerAbsent\nLedgerAbsent\n", "")
    [row] = ledger.jobs()
    assert (row.runs, row.skips_total) == (1, 1)


def test_a_ledger_that_comes_back_before_the_end_is_written_to(pg_url: str, postgres, opened: Open) -> None:
    """Also where this process never reached it before: an interpreter that ends can start no thread, and needs none."""
    with Proxy(postgres.port) as proxy:
        proxy.refuse()
        with subprocess.Popen(
            [sys.executable, "-c", EXIT, proxy.url(pg_url), "wait"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert [child.stdout.readline() for _ in range(2)] == ["LedgerAbsent\n"] * 2
            proxy.heal()
            _, errors = child.communicate("go\n", timeout=30)
        assert (child.returncode, errors) == (0, "")
    [row] = opened(pg_url).jobs()
    assert (row.runs, row.skips_total) == (1, 1)


def test_a_ledger_that_stays_away_does_not_hold_up_the_end(opened: Open) -> None:
    """A server that accepts and never answers costs the exit a few deadlines at most, and one line says what is lost."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"postgresql://127.0.0.1:{mute.getsockname()[1]}/none?deadline=300ms"
        began = time.monotonic()
        said = subprocess.run(
            [sys.executable, "-c", EXIT, url], capture_output=True, text=True, timeout=30, check=True
        )
        assert time.monotonic() - began < 10
    assert said.stdout == "LedgerAbsent\nLedgerAbsent\n"
    [line] = said.stderr.splitlines()
    assert "2 records of runs and skips are lost" in line
