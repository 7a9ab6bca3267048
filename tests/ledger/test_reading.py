"""What people read of a ledger is one picture, of one namespace or of all."""

from __future__ import annotations

import pytest

from claimant._drive.ports import LedgerPort
from claimant._model.records import Begin
from claimant.evidence import State, report
from claimant.ledger import postgres, reading, sqlite
from claimant.ledger.postgres import PostgresLedger
from claimant.ledger.sqlite import SqliteLedger
from claimant.testing.ledger_rows import SLOT, answer, ended, skipped, started
from tests.ledger.conftest import Open


def surveyed(ledger: LedgerPort, job: str | None = None, namespace: str | None = None) -> reading.Survey:
    assert isinstance(ledger, SqliteLedger | PostgresLedger)
    return ledger.survey(job, namespace=namespace)


def between_statements(monkeypatch: pytest.MonkeyPatch, do) -> list[str]:
    """Have `do()` happen right before the runs without an end are read; the list says that it did."""
    done: list[str] = []
    execute, rows = sqlite._execute, postgres._rows

    def meddle(text: str) -> None:
        if text == reading._OPEN and not done:
            done.append(text)
            do()

    def sqlite_spy(connection, sql):
        meddle(sql.text)
        return execute(connection, sql)

    def postgres_spy(connection, before, statements):
        meddle(statements[0].text)
        return rows(connection, before, statements)

    monkeypatch.setattr(sqlite, "_execute", sqlite_spy)
    monkeypatch.setattr(postgres, "_rows", postgres_spy)
    return done


@pytest.mark.parametrize("survey", [False, True], ids=["jobs", "survey"])
def test_a_run_that_ends_while_it_is_read_is_still_one_run(
    url: str, opened: Open, monkeypatch: pytest.MonkeyPatch, survey: bool
) -> None:
    """All statements of one reading see the same moment, so a healthy job is at work or has ended, never neither."""
    ledger, worker = opened(url), opened(url)
    run = started(key="order=1")
    worker.call(Begin(run))
    done = between_statements(monkeypatch, lambda: worker.call(ended(run)))
    [row] = surveyed(ledger).jobs if survey else ledger.jobs()
    assert done
    assert (row.running_since is not None, row.last_kind) == (True, "")
    assert [each.state for each in report([row], [], ledger.now()).jobs] == [State.RUNNING]
    [row] = ledger.jobs()
    assert (row.running_since, row.last_kind) == (None, "ran")


def test_a_survey_shows_all_namespaces_or_one(url: str, opened: Open) -> None:
    """Rows say which namespace they are of; jobs of one name in two namespaces stay two."""
    for space in ("", "shop", "staging"):
        ledger = opened(url, space)
        ledger.call(skipped())
        ledger.call(ended(started(stake="money", guarded=True), answers=(answer(),)))
    ledger = opened(url, "elsewhere")
    everywhere = surveyed(ledger)
    assert [(row.namespace, row.runs) for row in everywhere.jobs] == [("", 1), ("shop", 1), ("staging", 1)]
    assert [(row.namespace, row.count) for row in everywhere.tallies] == [
        ("", 1),
        ("shop", 1),
        ("staging", 1),
    ]
    assert everywhere.known == ()
    assert abs(everywhere.now - ledger.now()) < 60_000
    for space in ("", "shop"):
        one = surveyed(ledger, namespace=space)
        assert [row.namespace for row in one.jobs] == [row.namespace for row in one.tallies] == [space]
    assert [row.namespace for row in opened(url, "shop").jobs()] == ["shop"]


def test_a_crowded_namespace_hides_no_other(sqlite_url: str, opened: Open) -> None:
    """The latest keys of a job are shown of each namespace, however many another one has of the same name."""
    opened(sqlite_url, "quiet").call(skipped())
    crowded = opened(sqlite_url, "shop")
    for number in range(reading.KEYS_SHOWN + 1):
        crowded.call(skipped(key=f"order={number}"))
    found = surveyed(crowded).jobs
    assert [row.namespace for row in found].count("quiet") == 1
    assert len(found) == reading.KEYS_SHOWN + 1


def test_an_empty_survey_says_what_there_is(url: str, opened: Open) -> None:
    """Where nothing is found, the names and namespaces that exist are told."""
    opened(url, "shop").call(skipped())
    opened(url, "").call(skipped("debit"))
    ledger = opened(url)
    known = (("", "debit"), ("shop", "rebuild-index"))
    assert surveyed(ledger, namespace="shopp").known == known
    assert surveyed(ledger, "debt").known == known
    assert surveyed(ledger, "debit").known == ()


def test_a_survey_waits_one_deadline(url: str, opened: Open) -> None:
    """A reader is no worker: what it may wait is what its address says, not half a minute."""
    ledger = opened(f"{url}?deadline=7s")
    given: list[int] = []
    assert isinstance(ledger, SqliteLedger | PostgresLedger)
    asked = ledger._asked

    def spy(within_ms, work, **options):
        given.append(within_ms)
        return asked(within_ms, work, **options)

    ledger._asked = spy  # type: ignore[method-assign]
    surveyed(ledger)
    assert given == [7_000]


def test_a_start_whose_slot_is_closed_is_no_stop(url: str, opened: Open) -> None:
    """A skip of a slot that was done is counted as a skip, and makes no row of them: there was nothing left to do."""
    ledger = opened(url)
    run = started(slot=SLOT)
    ledger.call(Begin(run))
    assert ledger.call(skipped(slot=SLOT)) == 1
    ledger.call(ended(run))
    for _ in range(5):
        assert ledger.call(skipped(slot=SLOT)) == 1
    [row] = ledger.jobs()
    assert (row.skips_in_row, row.skips_total) == (1, 6)
    assert sum(each.count for each in ledger.skips()) == 6
    assert row.last_ended is not None
    [judged] = report([row], [], row.last_ended + 3_600_000, asked=True).jobs
    assert judged.state is State.OK
    assert ledger.call(skipped(slot="2026-11-30T22:00:00Z")) == 2
