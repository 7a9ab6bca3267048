"""The ledger shared by real processes, some of them killed."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import pytest

from claimant._model.records import Begin, SlotClosed, SlotState
from claimant.testing.ledger_rows import SLOT, started
from tests.ledger.children import children
from tests.ledger.conftest import Open
from tests.support.servers import wait


def test_begins_of_eight_processes_are_told_apart(url: str, opened: Open) -> None:
    """Eight processes begin one open slot at once: each is begun, numbered, told of those before it; after one of them ends, none begins."""
    ledger = opened(url)
    at = str(time.time() + 1.5)
    with children(8, "begin", url, at) as workers:
        said = sorted(worker.read() for worker in workers)
        assert said == [["Began", number + 1, number] for number in range(8)]
        workers[3].tell("finish")
        winner = workers[3].read()
        for worker in workers:
            if worker is not workers[3]:
                worker.tell("leave")
        with children(8, "begin", url, "0") as late:
            assert [worker.read() for worker in late] == [["SlotClosed"]] * 8
            for worker in late:
                worker.tell("leave")
                worker.process.wait(10)
    assert ledger.call(SlotState("rebuild-index", "", SLOT)) == SlotClosed(winner, completed=True, result="1")
    [row] = ledger.jobs()
    assert (row.runs, row.overlaps) == (8, 7)


def test_processes_may_create_it_at_once(url: str, pg_dsn: str, opened: Open) -> None:
    """Six processes that find no ledger make one, and each of their runs is in it."""
    fresh = url if url.startswith("sqlite") else pg_dsn
    with children(6, "create", fresh, str(time.time() + 1.2)) as workers:
        assert [worker.read() for worker in workers] == ["made"] * 6
    assert opened(fresh).jobs()[0].runs == 6


def test_killed_writers_leave_a_ledger_that_reads(url: str, opened: Open) -> None:
    """After kill -9 at random moments every answered end is there, the totals agree with the rows, and the next start works."""
    answered: list[str] = []
    ledger = opened(url)
    for round_number in range(6):
        with children(2, "churn", url) as workers:
            answered += [worker.read() for worker in workers]
            time.sleep(0.013 * round_number)  # the moment of the kill, not a wait for anything
            for worker in workers:
                worker.process.kill()
            for worker in workers:
                assert worker.process.stdout is not None
                answered += [line.strip().strip('"') for line in worker.process.stdout if line.endswith("\n")]
        # A server ends what a killed client had sent, and may commit it between two of our looks.
        wait(
            lambda: [row.runs for row in ledger.jobs()] == [len(ledger.runs())],
            "the killed ones' last commit",
            5,
        )
        runs = ledger.runs()
        done = {run.slot for run in runs if run.ended is not None}
        assert set(answered) <= done
        [row] = ledger.jobs()
        assert row.runs == len(runs)
        assert row.unfinished + (row.running_since is not None) == sum(run.ended is None for run in runs)
        assert all(
            isinstance(ledger.call(SlotState("rebuild-index", "", slot or "")), SlotClosed) for slot in done
        )
    ledger.call(Begin(started()))
    if url.startswith("sqlite"):
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(urlsplit(url).path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("verb", ["one"])
def test_a_process_needs_no_farewell(url: str, opened: Open, verb: str) -> None:
    """A process that writes and ends leaves nothing to clean up and ends at once."""
    opened(url)
    with children(1, verb, url) as [worker]:
        assert worker.read()[0] == "written"
        assert worker.process.wait(5) == 0
