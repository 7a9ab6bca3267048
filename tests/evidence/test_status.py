"""One line tells in the middle of the night which job stopped, who holds it and why."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from claimant._drive.ports import LeaseRow
from claimant._model.rows import JobRow
from claimant.evidence import State, one_line, policy, report, state_of
from tests.evidence.rows import MINUTE, NOW, job, lease, tally

SKIPPING = job(
    skips_in_row=132,
    skips_since=NOW - 50 * MINUTE,
    last_skip=NOW - 10_000,
    last_skip_holder="web-2/9",
    last_skip_reason="held by web-2/9, 12.0 s left",
    skips_total=132,
)

CASES: dict[str, tuple[JobRow, LeaseRow | None, State, str]] = {
    "ok": (job(), None, State.OK, "rebuild-index: ok, last success 59 min ago"),
    "a key is named": (
        job(key="order_id=42"),
        None,
        State.OK,
        "rebuild-index[order_id=42]: ok, last success 59 min ago",
    ),
    "never": (
        job(runs=0, last_started=None, last_success=None, last_ended=None, last_kind="", stake=""),
        None,
        State.NEVER,
        "rebuild-index: never ran, no start is recorded",
    ),
    "running": (
        job(running_since=NOW - 3 * MINUTE, running_holder="web-1/17", last_started=NOW - 3 * MINUTE),
        lease(),
        State.RUNNING,
        "rebuild-index: running for 3 min by web-1/17, lease 21.0 s left",
    ),
    "running, others skipped": (
        job(running_since=NOW - 1_000, running_holder="web-1/17", skips_in_row=4, last_skip=NOW),
        lease(),
        State.RUNNING,
        "rebuild-index: running for 1.0 s by web-1/17, lease 21.0 s left; 4 starts skipped meanwhile",
    ),
    "running without a lease": (
        job(
            running_since=NOW - 3 * MINUTE,
            running_holder="web-1/17",
            last_started=NOW - 3 * MINUTE,
            stall_bound_ms=4 * MINUTE,
        ),
        None,
        State.UNFINISHED,
        "rebuild-index: unfinished, started 3 min ago by web-1/17, no end recorded, no lease: it crashed or was "
        "cut off; the next start runs it; last real success 59 min ago",
    ),
    "skipping": (
        SKIPPING,
        lease("web-2/9", 12_000),
        State.SKIPPING,
        "rebuild-index: skipping, 132 skips in a row for 50 min, held by web-2/9, lease 12.0 s left, claimed or renewed 18.0 s ago; last real success 59 min ago",
    ),
    "skipping, the lease is gone": (
        SKIPPING,
        None,
        State.SKIPPING,
        "rebuild-index: skipping, 132 skips in a row for 50 min, last held by web-2/9 10.0 s ago, no lease now; last real success 59 min ago",
    ),
    "skipping for ever": (
        SKIPPING,
        lease("web-2/9", None),
        State.SKIPPING,
        "rebuild-index: skipping, 132 skips in a row for 50 min, held by web-2/9, its lease has no end (immortal); "
        "last real success 59 min ago",
    ),
    "skipping, never ran": (
        job(
            runs=0,
            last_started=None,
            last_success=None,
            last_ended=None,
            skips_in_row=1,
            skips_since=NOW,
            last_skip=NOW,
            last_skip_reason="the lease store is absent",
            stake="",
        ),
        None,
        State.SKIPPING,
        "rebuild-index: skipping, 1 skip in a row for 0 ms, the lease store is absent; never a success",
    ),
    "a skip that the last run explains": (
        job(skips_in_row=2, last_skip=NOW - 59 * MINUTE + 40, last_skip_holder="web-1/17"),
        None,
        State.OK,
        "rebuild-index: ok, last success 59 min ago",
    ),
    "failed": (
        job(last_kind="failed", last_reason="OSError: no\nspace", failed=1, last_ended=NOW - 2 * MINUTE),
        None,
        State.FAILED,
        "rebuild-index: failed 2 min ago: OSError: no; last real success 59 min ago",
    ),
    "stopped": (
        job(last_kind="stopped", last_reason="the claim is gone", last_success=None),
        None,
        State.STOPPED,
        "rebuild-index: stopped 59 min ago: the claim is gone; never a success",
    ),
    "unknown": (
        job(last_kind="unknown", last_reason="x"),
        None,
        State.UNKNOWN,
        "rebuild-index: unknown 59 min ago: x; last real success 59 min ago",
    ),
    "uncommitted": (
        job(last_kind="uncommitted"),
        None,
        State.UNCOMMITTED,
        "rebuild-index: uncommitted 59 min ago; last real success 59 min ago",
    ),
    "crashed long ago": (
        job(
            last_started=NOW - 90 * MINUTE,
            unfinished=1,
            unfinished_since=NOW - 90 * MINUTE,
            unfinished_holder="web-3/2",
            last_ended=None,
            last_success=None,
        ),
        None,
        State.UNFINISHED,
        "rebuild-index: unfinished, started 1 h 30 min ago by web-3/2, no end recorded, no lease: it crashed or was cut "
        "off; the next start runs it; never a success",
    ),
    "an old crash, runs since": (
        job(unfinished=1, unfinished_since=NOW - 90 * MINUTE, unfinished_holder="web-3/2"),
        None,
        State.OK,
        "rebuild-index: ok, last success 59 min ago",
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_state_has_its_line(case: str) -> None:
    """What the rows say is what the line says: the state, who, since when, and the last real success."""
    row, held, state, line = CASES[case]
    assert state_of(row, held, NOW) is state
    assert one_line(row, held, NOW) == line


def test_an_unasked_store_is_not_an_empty_one() -> None:
    """Where the store did not answer, a missing lease makes no run a crashed one."""
    row = job(running_since=NOW - 3 * MINUTE, running_holder="web-1/17")
    assert state_of(row, None, NOW, asked=False) is State.RUNNING
    assert state_of(row, None, NOW, asked=True) is State.UNFINISHED


def test_names_and_reasons_of_strangers_stay_on_one_line() -> None:
    """Control characters in a name, a holder or a reason cannot forge a second line or colour the terminal."""
    nasty = "a\x1b[31m\nb"
    row = job(job=nasty, key=nasty, last_kind="failed", last_reason=nasty * 50, running_holder=nasty)
    for each in (
        row,
        job(job=nasty, running_since=NOW, running_holder=nasty),
        job(job=nasty, skips_in_row=1, last_skip=NOW, last_skip_holder=nasty, last_skip_reason=nasty),
    ):
        line = one_line(each, None, NOW)
        assert line.isprintable()
        assert len(line) < 600


def test_a_report_is_json_and_adds_up() -> None:
    """Jobs, causes of duplicates and totals, as plain values."""
    rows = [job(duplicates=2, without_claim=1, overlaps=4, skips_total=7, unfinished=1, failed=1), SKIPPING]
    found = report(
        rows,
        [tally(), tally(hole="claim lost", claim="lost", count=1, wasted_ms=500, joined=True)],
        NOW,
        lease_of=lambda _: lease(),
        asked=True,
    )
    data = json.loads(json.dumps(found.as_dict()))
    assert data["totals"] == {
        "runs": 6,
        "failed": 1,
        "unfinished": 1,
        "without_claim": 1,
        "overlaps": 4,
        "skips": 139,
        "would_skip": 0,
        "would_reject": 0,
        "forced": 0,
        "duplicates": 3,
        "wasted_ms": 2_000,
    }
    assert [each["state"] for each in data["jobs"]] == ["ok", "skipping"]
    assert data["jobs"][1]["lease"] == {"holder": "web-1/17", "remaining_ms": 21_000}
    assert [(each["hole"], each["claim"], each["count"]) for each in data["duplicates"]] == [
        ("deadline passed", "kept", 2),
        ("claim lost", "lost", 1),
    ]
    text = "\n".join(found.lines())
    assert "duplicates rejected: 3, 2.0 s of work wasted" in text
    assert (
        "debit (money): 1, claim lost, claim lost, in transactions that may have rolled back; 500 ms of work wasted"
        in text
    )
    assert "runs without a claim: 1" in text


def test_one_job_is_shown_with_its_policy() -> None:
    """A report that explains says what its job declared and what that means; others do not."""
    row = job(guarded=True, stake="money", duplicates=1)
    text = "\n".join(report([row], [], NOW).lines(explain=True))
    assert "stake money; guarded" in text
    assert (
        "after a crash another worker may start within 30.0 s, after a hang within 1 h 1 min; a run lasts 1 h at most"
        in text
    )
    assert "1 duplicate rejected" in text
    assert "no guard" in "\n".join(policy(job()))
    assert policy(job(stake="")) == ()
    assert "stake" not in "\n".join(report([row], [], NOW).lines())


def test_an_empty_ledger_makes_an_empty_report() -> None:
    """No job, no line, zero totals."""
    found = report([], [], NOW)
    assert found.lines() == []
    assert set(found.as_dict()["totals"].values()) == {0}


def test_a_holder_is_not_claimed_to_hold_what_nobody_asked_about() -> None:
    """Where the store did not answer, a skip's holder is told as of then, and nothing is said of a lease now."""
    line = one_line(SKIPPING, None, NOW, asked=False)
    assert "last held by web-2/9 10.0 s ago; last real success" in line
    assert "no lease" not in line


def test_the_last_renewal_is_told_only_where_it_is_known() -> None:
    """A lease's value and what is left of it say when it was renewed; a foreign value, or one without an end, does not."""
    assert "claimed or renewed 9.0 s ago" in one_line(SKIPPING, lease(remaining_ms=21_000), NOW)
    foreign = LeaseRow("claimant::rebuild-index", "somebody's own text", 21_000)
    for held in (foreign, lease(remaining_ms=None), lease(remaining_ms=31_000), None):
        assert "renewed" not in one_line(SKIPPING, held, NOW)


def test_a_start_without_any_end_is_not_unknown() -> None:
    """No kind at all means that no end was told, which is another thing than an end in doubt."""
    row = job(last_kind="", last_ended=None, last_success=None)
    assert state_of(row, None, NOW) is State.UNFINISHED
    assert "an unknown time" not in one_line(row, None, NOW)
    assert "no end recorded" in one_line(row, None, NOW)


def test_a_run_that_is_cut_off_still_has_its_lease() -> None:
    """A run without an end whose lease is there is told with who has the lease, and with no word of a crash."""
    row = job(
        last_started=NOW - 90 * MINUTE,
        unfinished=1,
        unfinished_since=NOW - 90 * MINUTE,
        unfinished_holder="web-3/2",
    )
    line = one_line(row, lease("web-4/1"), NOW)
    assert (
        "started 1 h 30 min ago by web-3/2, no end recorded; the lease is with web-4/1, lease 21.0 s left"
        in line
    )
    assert "crash" not in line


def test_without_the_store_the_stall_bound_is_what_can_be_said() -> None:
    """Where nobody knows of a lease, an unfinished run is told with the bound within which work resumes, or that it has passed."""
    fresh = job(last_started=NOW - MINUTE, unfinished=1, unfinished_since=NOW - MINUTE, unfinished_holder="w")
    assert "resumes within 30.0 s of a crash, 1 h 1 min of a hang" in one_line(fresh, None, NOW, asked=False)
    old = job(last_started=NOW - 90 * MINUTE, unfinished=1, unfinished_since=NOW - 90 * MINUTE)
    assert "its stall bound of 1 h 1 min has passed" in one_line(old, None, NOW, asked=False)


def test_the_worst_job_comes_first() -> None:
    """Jobs that do not work stand above those that do; equals stay in the order of their names."""
    rows = [
        job(job="a"),
        job(job="b", running_since=NOW, running_holder="w"),
        job(job="c", last_kind="failed"),
        job(job="d"),
        replace(SKIPPING, job="e"),
        job(job="f", key="1"),
        job(job="f", key="2", last_kind="unknown"),
    ]
    lines = report(
        rows, [], NOW, lease_of=lambda row: lease() if row.job == "b" else None, asked=True
    ).lines()
    assert [line[0] for line in lines] == ["e", "f", "c", "b", "a", "d"]


def test_jobs_of_several_namespaces_stay_apart() -> None:
    """Where all namespaces are shown each line says which one it is of, and jobs of one name are not summed up."""
    rows = [job(namespace="shop", without_claim=1), job(namespace=""), job(namespace="staging", key="k=1")]
    found = report(rows, [tally(namespace="shop")], NOW, namespaced=True)
    assert [line.split(":")[0] for line in found.lines()] == [
        "shop/rebuild-index",
        "rebuild-index",
        "staging/rebuild-index[k=1]",
        "duplicates rejected",
        "  shop/debit (money)",
        "runs without a claim",
        "  shop/rebuild-index",
    ]
    assert [each["namespace"] for each in found.as_dict()["jobs"]] == ["shop", "", "staging"]
    assert report(rows[:1], [], NOW).lines()[0].startswith("rebuild-index: ")


def test_runs_without_a_claim_are_told_by_job_and_why() -> None:
    """Each job with such runs has its own count, and the reason of the last one where its end still says it."""
    reason = "without a claim: connection refused\nIs the server running?"
    rows = [
        job(job="debit", key="a", without_claim=9, last_reason=reason, last_started=NOW),
        job(job="debit", key="b", without_claim=3, last_started=NOW - 1),
        job(job="index", without_claim=1),
        job(job="scan"),
    ]
    assert report(rows, [], NOW).lines()[3:] == [
        "runs without a claim: 13",
        "  debit: 12, the last: connection refused",
        "  index: 1",
    ]


def test_observe_mode_says_what_it_would_have_stopped() -> None:
    """Each job that is only observed has its counts, on the short page and in full; enforced since, they stay in full."""
    rows = [
        job(job="debit", key="a", mode="observe", would_skip=1, would_reject=3, last_started=NOW),
        job(job="debit", key="b", mode="observe", would_skip=11, last_started=NOW - 1),
        job(job="index", mode="observe"),
        job(job="scan", mode="enforce", would_skip=2),
        job(job="mail", mode="off"),
    ]
    found = report(rows, [], NOW)
    lines = found.lines()
    assert lines[-3:] == [
        "observe mode, where nothing is stopped:",
        "  debit: would have skipped 12 starts and rejected 3 effects",
        "  index: would have stopped nothing so far",
    ]
    told = "\n".join(found.lines(explain=True))
    assert "observe mode: nothing is stopped; it would have skipped 12 starts and rejected 3 effects" in told
    assert "in observe mode it would have skipped 2 starts and rejected 0 effects" in told
    assert "leases are off" in told
    totals = found.as_dict()["totals"]
    assert (totals["would_skip"], totals["would_reject"]) == (14, 3)


def test_forced_runs_are_told_in_full() -> None:
    """Runs that an operator forced are counted for all keys together; a job without any says nothing of them."""
    rows = [job(key="a", forced=1), job(key="b", forced=2)]
    assert "3 runs forced, of a slot that may have been closed" in policy(*rows)
    assert not any("forced" in line for line in policy(job()))
    found = report(rows, [], NOW)
    assert not any("forced" in line for line in found.lines())
    assert found.as_dict()["totals"]["forced"] == 3
    assert [each["forced"] for each in found.as_dict()["jobs"]] == [1, 2]


def test_the_policy_names_the_guard_and_the_schedule() -> None:
    """What is attested is told as attested, what is declared by where it is; a schedule is in words."""
    attested = policy(job(guarded=True, guard="attested: unique index one_debit", schedule="every 1 h"))
    assert attested[0].endswith("guarded, as the caller attests: unique index one_debit")
    assert attested[1] == "schedule: every 1 h"
    declared = policy(job(guarded=True, guard="once in postgresql://h/app"))
    assert declared[0].endswith("and counted (once in postgresql://h/app)")
    assert not any(line.startswith("schedule") for line in declared)
