"""One start of a job, in both colours: what the outcome, the ledger and the log say."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from claimant import Answer, AsyncRun, Claimant, LeaseLost, NotDone, Outcome, Refused, Run, once
from claimant._model.outcome import Claim, Kind

Held = Callable[..., AbstractContextManager[None]]
Absent = Callable[[], AbstractContextManager[None]]


Start = Callable[..., Outcome[Any]]


def test_a_start_runs_the_body_and_gives_its_result(claims: Claimant, start: Start) -> None:
    """Ran, with the claim kept, and the result as `.value`; the ledger has one run."""
    outcome = start(claims, lambda run: run.lease.remaining())
    assert (outcome.kind, outcome.claim) == (Kind.RAN, Claim.KEPT)
    assert 25 < (outcome.value or 0) < 30
    (row,) = claims.ledger.jobs("index")
    assert (row.runs, row.failed, row.last_kind) == (1, 0, "ran")


def test_the_claim_is_given_back_after_the_body(claims: Claimant, start: Start) -> None:
    """A second start right after the first one runs too."""
    assert [start(claims, lambda _: 1).kind for _ in range(3)] == [Kind.RAN] * 3


def test_a_held_name_is_a_value_that_says_who_and_how_long(
    claims: Claimant, start: Start, held: Held
) -> None:
    """Held is not ran: the body does not start, `.value` raises with a short back-off, the ledger has a skip."""
    ran: list[int] = []
    with held("index"):
        outcome = start(claims, lambda _: ran.append(1))
    assert not ran
    assert (outcome.kind, outcome.claim) == (Kind.HELD, Claim.NONE)
    assert outcome.details["holder"] == "somebody-else:1"
    assert "somebody-else:1" in outcome.reason
    with pytest.raises(NotDone) as not_done:
        _ = outcome.value
    assert 0 < not_done.value.retry_in <= 1
    assert claims.ledger.jobs("index")[0].skips_in_row == 1


def test_an_absent_store_does_not_stop_cheap_work(claims: Claimant, start: Start, absent: Absent) -> None:
    """A scan goes on without a claim, and says so in outcome, ledger and log."""
    with absent():
        outcome = start(claims, lambda run: run.lease.cause)
    assert (outcome.kind, outcome.claim, outcome.value) == (Kind.RAN, Claim.ABSENT, "absent")
    assert claims.ledger.jobs("index")[0].without_claim == 1


@pytest.mark.parametrize(
    "options", [{"absent": "skip"}, {"stake": "notify", "delivery": "at-most-once", "every": "1h"}]
)
def test_a_policy_of_skip_skips_while_the_store_is_absent(
    claims: Claimant, start: Start, absent: Absent, options: dict[str, Any]
) -> None:
    """Absent is its own outcome: not held, not done."""
    with absent():
        outcome = start(claims, lambda _: 1, **options)
    assert (outcome.kind, outcome.claim) == (Kind.ABSENT, Claim.NONE)
    with pytest.raises(NotDone, match="absent"):
        _ = outcome.value


def test_the_four_answers_are_four_log_events(
    claims: Claimant, start: Start, held: Held, absent: Absent, caplog: pytest.LogCaptureFixture
) -> None:
    """Ran, held and absent are told apart in the log as they are in the outcome."""
    caplog.set_level(logging.DEBUG, "claimant")
    start(claims, lambda _: 1)
    with held("index"):
        start(claims, lambda _: 1)
    with absent():
        start(claims, lambda _: 1, name="other", absent="skip")
    kinds = [record.claimant["kind"] for record in caplog.records]  # type: ignore[attr-defined]
    assert [kind for kind in kinds if kind.startswith("run.")] == ["run.ran", "run.held", "run.absent"]


def test_a_slot_is_done_once_and_its_result_is_kept(claims: Claimant, start: Start) -> None:
    """The second start of a slot answers done, with the first one's result."""
    first = start(claims, lambda _: {"rows": 7}, every="1h", stake="rebuild")
    second = start(claims, lambda _: {"rows": 8})
    assert (first.kind, second.kind) == (Kind.RAN, Kind.DONE)
    assert second.value == {"rows": 7}
    assert second.run_id == first.run_id
    assert first.slot == second.slot
    assert (first.slot or "").endswith(":00:00Z")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("bad row"), "failed"),
        (LookupError(), "failed"),
        (KeyboardInterrupt(), "stopped"),
        (SystemExit(4), "stopped"),
    ],
)
def test_the_bodys_own_exception_is_never_masked(
    claims: Claimant, start: Start, error: BaseException, kind: str
) -> None:
    """What the body raises comes out as it is, is recorded, and the claim is given back; an exit uses up no attempt."""

    def work(run: Any) -> None:
        if not failed:
            failed.append(True)
            raise error

    failed: list[bool] = []
    with pytest.raises(type(error)) as raised:
        start(claims, work)
    assert raised.value is error
    (row,) = claims.ledger.jobs("index")
    assert (row.last_kind, row.failed) == (kind, int(kind == "failed"))
    assert start(claims, work).kind is Kind.RAN


def test_a_stop_iteration_of_the_body_is_not_taken_for_the_end_of_a_flow(claims: Claimant) -> None:
    """Flows are generators, where a StopIteration would become another error: the body's comes out as it is."""
    error = StopIteration("mine")

    def work(run: Run) -> None:
        raise error

    with pytest.raises(StopIteration) as raised:
        claims.job("index", stake="scan")(work)()
    assert raised.value is error


def test_a_failed_slot_stays_closed_unless_attempts_allow(claims: Claimant, start: Start) -> None:
    """With one attempt the first failure closes the slot as not completed; with two the next start tries again."""

    def work(run: Any) -> None:
        raise ValueError("bad row")

    with pytest.raises(ValueError, match="bad row"):
        start(claims, work, name="once", every="1h")
    given_up = start(claims, work, name="once")
    assert (given_up.kind, given_up.completed) == (Kind.DONE, False)
    with pytest.raises(NotDone):
        _ = given_up.value
    for _ in range(2):
        with pytest.raises(ValueError, match="bad row"):
            start(claims, work, name="twice", every="1h", attempts=2)
    assert start(claims, work, name="twice").completed is False


def test_outcomes_have_no_truth_value_are_json_able_and_their_errors_pickle(
    claims: Claimant, start: Start, held: Held
) -> None:
    """`if outcome:` is a mistake waiting to happen; a task queue can send everything else."""
    with held("index"):
        outcome = start(claims, lambda _: object())
    with pytest.raises(TypeError, match="no truth value"):
        bool(outcome)
    assert json.loads(json.dumps(outcome.as_dict()))["kind"] == "held"
    with pytest.raises(NotDone) as not_done:
        _ = outcome.value
    copy = pickle.loads(pickle.dumps(not_done.value))
    assert (copy.retry_in, copy.name, str(copy)) == (not_done.value.retry_in, "index", str(not_done.value))
    for error in (Refused("CLM001", "x", name="n"), LeaseLost("x", cause="lost", name="n")):
        assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


@pytest.fixture
def app(tmp_path: Path) -> str:
    """The application's own database: a wallet and its debits."""
    path = str(tmp_path / "app.db")
    conn = sqlite3.connect(path)
    conn.execute("CREATE TABLE debit (order_id INTEGER, cents INTEGER)")
    conn.commit()
    conn.close()
    return path


def debits(path: str) -> list[tuple[int, int]]:
    conn = sqlite3.connect(path)
    try:
        return conn.execute("SELECT order_id, cents FROM debit").fetchall()
    finally:
        conn.close()


def debit_job(claims: Claimant, app: str, **options: Any) -> Any:
    @claims.job("debit", key=["order_id"], stake="money", guard=once(f"sqlite:{app}"), **options)
    def debit(run: Run, order_id: int, cents: int = 100) -> Answer[Any]:
        conn = sqlite3.connect(app)
        try:
            return run.once(
                conn, lambda tx: tx.execute("INSERT INTO debit VALUES (?, ?)", (order_id, cents)) and cents
            )
        finally:
            conn.close()

    return debit


def test_a_guarded_effect_happens_once_and_the_duplicate_is_counted(claims: Claimant, app: str) -> None:
    """The second start of an operation does no second effect, gets the first one's result, and is in the ledger."""
    debit = debit_job(claims, app)
    first, second = debit(42), debit(42)
    assert debits(app) == [(42, 100)]
    assert [outcome.answers[0].kind.value for outcome in (first, second)] == ["applied", "duplicate"]
    assert (second.value.value, second.value.replayed) == (100, True)
    assert debit(43).answers[0].kind.value == "applied"
    (tally,) = claims.ledger.tallies("debit")
    assert (tally.count, tally.hole, tally.stake) == (1, "redelivered", "money")


def test_a_duplicate_while_the_store_is_away_names_that_hole(
    claims: Claimant, app: str, absent: Absent
) -> None:
    """Work goes on without claims, the guard rejects, and the rejection says through which hole it came."""
    debit = debit_job(claims, app)
    debit(42)
    with absent():
        outcome = debit(42)
    assert (outcome.kind, outcome.claim, debits(app)) == (Kind.RAN, Claim.ABSENT, [(42, 100)])
    assert claims.ledger.tallies("debit")[0].hole == "store absent"


def test_the_same_operation_with_other_values_is_a_mismatch(claims: Claimant, app: str) -> None:
    """A changed amount is neither a duplicate nor a second debit: the run stops and `.value` says so."""
    debit = debit_job(claims, app)
    debit(42, 100)
    outcome = debit(42, 999)
    assert outcome.kind is Kind.STOPPED
    with pytest.raises(Refused, match="CLM043"):
        _ = outcome.value
    assert debits(app) == [(42, 100)]


def test_a_body_that_takes_the_value_of_a_mismatch_ends_stopped(claims: Claimant, app: str) -> None:
    """`run.once(…).value` raises inside the body: the outcome is stopped and not a failure, and its `.value` says why."""

    @claims.job("debit", key=["order_id"], stake="money", guard=once(f"sqlite:{app}"))
    def debit(run: Run, order_id: int, cents: int) -> int | None:
        conn = sqlite3.connect(app)
        try:
            return run.once(conn, lambda tx: tx.execute("SELECT 1") and cents).value
        finally:
            conn.close()

    assert debit(42, 100).value == 100
    outcome = debit(42, 999)
    assert outcome.kind is Kind.STOPPED
    with pytest.raises(Refused, match="CLM043"):
        _ = outcome.value
    assert claims.ledger.jobs("debit")[0].failed == 0


def test_a_body_that_takes_the_value_of_an_attempt_in_flight_leaves_its_slot_open(
    claims: Claimant, app: str
) -> None:
    """The first attempt still holds the lock: the outcome is unknown, no attempt is used up, and the next start does the work."""

    @claims.job(
        "close-day", every="1h", attempts=1, stake="money", guard=once(f"sqlite:{app}", longest="50ms")
    )
    def close_day(run: Run) -> int | None:
        conn = sqlite3.connect(app)
        try:
            return run.once(conn, lambda tx: tx.execute("INSERT INTO debit VALUES (1, 1)") and 1).value
        finally:
            conn.close()

    first = sqlite3.connect(app, isolation_level=None)
    first.execute("BEGIN IMMEDIATE")
    outcome = close_day()
    first.rollback()
    first.close()
    assert outcome.kind is Kind.UNKNOWN
    with pytest.raises(NotDone):
        _ = outcome.value
    assert close_day().value == 1
    assert debits(app) == [(1, 1)]


def test_keys_claim_separately(claims: Claimant, app: str, held: Held) -> None:
    """Two orders never exclude each other; one order does."""
    debit = debit_job(claims, app)
    with held("debit", order_id=42):
        assert debit(42).kind is Kind.HELD
        assert debit(43).kind is Kind.RAN


@pytest.mark.parametrize("bad", [None, "", "order_None", 1.5, True])
def test_a_key_that_names_nothing_is_refused_before_anything_starts(
    claims: Claimant, app: str, bad: Any
) -> None:
    """None, empty and inexact keys never reach the store, the ledger or the database."""
    debit = debit_job(claims, app)
    with pytest.raises(Refused, match="CLM031"):
        debit(bad)
    assert claims.ledger.jobs("debit") == []


def test_an_operation_must_be_named_once_in_a_run(claims: Claimant, app: str) -> None:
    """A batch names each item; the same item twice, or none at all, is refused."""

    def insert(number: int, tx: Any) -> None:
        tx.execute("INSERT INTO debit VALUES (?, 1)", (number,))

    @claims.job("batch", stake="money", guard=once(f"sqlite:{app}"))
    def batch(run: Run) -> None:
        conn = sqlite3.connect(app)
        try:
            for number in (1, 2, 3):
                run.once(
                    conn,
                    partial(insert, number),
                    operation=("invoice", number),
                )
            with pytest.raises(Refused, match="CLM034"):
                run.once(conn, lambda tx: None, operation=("invoice", 1))
            with pytest.raises(Refused, match="CLM033"):
                run.once(conn, lambda tx: None)
        finally:
            conn.close()

    assert batch().kind is Kind.RAN
    assert len(debits(app)) == 3


def test_once_without_a_declared_guard_is_refused(claims: Claimant, app: str) -> None:
    """The declaration says where the effect lands; without it nothing is guarded by accident."""

    @claims.job("scan", stake="scan", every="1h")
    def scan(run: Run) -> None:
        with closing(sqlite3.connect(app)) as conn:
            run.once(conn, lambda tx: None)

    with pytest.raises(Refused, match="CLM035"):
        scan()


@pytest.mark.claimant_unguarded("what this test is about")
def test_a_declared_guard_that_was_not_used_is_told(
    claims: Claimant, app: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A money job that never called its guard is an event."""

    @claims.job("pay", key=["order_id"], stake="money", guard=once(f"sqlite:{app}"))
    def pay(run: Run, order_id: int) -> None: ...

    caplog.set_level(logging.INFO, "claimant")
    assert pay(1).reason == "the declared guard was not used"
    assert any("guard.unused" in record.getMessage() for record in caplog.records)


def test_beats_pass_items_through(claims: Claimant) -> None:
    """`beats` gives each item once, in order, and beats after each one that was completed."""
    seen: list[int] = []

    def work(run: Run) -> None:
        seen.extend(run.beats(range(5)))

    async def work_later(run: AsyncRun) -> None:
        seen.extend([item async for item in run.beats(range(5, 10))])

    async def main() -> None:
        await claims.job("later", stake="scan")(work_later)()
        await claims.aclose()

    claims.job("sum", stake="scan")(work)()
    asyncio.run(main())
    assert seen == list(range(10))


def test_a_hold_is_a_lease_for_a_block(claims: Claimant, held: Held, absent: Absent) -> None:
    """Held raises NotDone; absent goes on and says so; the claim is free after the block."""
    with claims.hold("report", stake="scan", max_run="1m") as lease:
        assert lease.remaining() > 25
        assert lease.cause is None
        with pytest.raises(NotDone), claims.hold("report", stake="scan", max_run="1m"):
            pass
    with (
        held("report"),
        pytest.raises(NotDone, match="somebody-else"),
        claims.hold("report", stake="scan", max_run="1m"),
    ):
        pass
    with absent(), claims.hold("report", stake="scan", max_run="1m") as lease:
        assert (lease.cause, lease.remaining()) == ("absent", 0.0)


def test_namespaces_are_apart(tmp_path: Path) -> None:
    """Staging on production's store and ledger neither holds its claims nor does its slots."""
    kinds = []
    for namespace in ("staging", "production"):
        with Claimant(
            "memory:shared", ledger=f"sqlite:{tmp_path / 'ledger.db'}", namespace=namespace
        ) as claims:
            kinds.append(claims.job("index", stake="rebuild", every="1h")(lambda run: None)().kind)
    assert kinds == [Kind.RAN, Kind.RAN]
