"""`mode=`: observe writes everything and stops nothing; off takes no leases and leaves guards alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest

from claimant import Claimant, NotDone, Outcome, Refused, Run, guards, once
from claimant._model.outcome import AnswerKind, Claim, Kind
from claimant.stores import open_store
from claimant.testing.faults import Switched, held_by_another, store_absent

Make = Callable[..., Claimant]
Start = Callable[..., Outcome[Any]]


@pytest.fixture
def store(tmp_path: Path) -> Switched:
    return Switched(open_store(f"memory:{tmp_path}"))


def test_observe_runs_what_somebody_else_holds(made: Make, store: Switched, start: Start) -> None:
    """The body runs beside the holder, without a claim, and is told of as one that would have been skipped."""
    events: list[str] = []
    claims = made(store, mode="observe", observers=[lambda event: events.append(event.kind)])
    seen: list[tuple[str | None, str, bool]] = []

    def work(run: Any) -> str:
        run.beat()
        seen.append((run.lease.cause, run.lease.checked, run.lease.lost))
        return "done"

    with held_by_another(claims, "index"):
        outcome = start(claims, work, on_loss="stop", held="wait:5s")
    assert (outcome.kind, outcome.claim, outcome.value) == (Kind.RAN, Claim.OFF, "done")
    assert seen == [("off", "off", False)]
    assert "run.would_skip" in events
    [row] = claims.ledger.jobs()
    assert (row.runs, row.skips_total, row.without_claim, row.would_skip) == (1, 0, 0, 1)
    [run] = claims.ledger.runs()
    assert (run.mode, run.would, run.claim) == ("observe", "held", "off")


def test_observe_claims_what_is_free(made: Make, store: Switched, start: Start) -> None:
    """Claims are written, so that the others see what would have been."""
    claims = made(store, mode="observe")
    other = made(store, mode="observe")
    kinds: list[tuple[Kind, Claim]] = []

    def work(run: Any) -> None:
        if not kinds:
            kinds.append((Kind.HELD, Claim.NONE))
            inner = other.job("index", stake="scan")(lambda run: None)()
            kinds.append((inner.kind, inner.claim))

    outcome = start(claims, work)
    assert (outcome.kind, outcome.claim) == (Kind.RAN, Claim.KEPT)
    assert kinds[1] == (Kind.RAN, Claim.OFF)
    [row] = claims.ledger.jobs()
    assert (row.runs, row.would_skip) == (2, 1)


def test_observe_runs_a_slot_that_is_done(made: Make, store: Switched, start: Start) -> None:
    """A closed slot is run again, recorded as what it would have been, and stays closed."""
    claims = made(store, mode="observe")
    kinds = [start(claims, lambda run: run.slot, every="1d", stake="rebuild").kind for _ in range(2)]
    assert kinds == [Kind.RAN, Kind.RAN]
    assert sorted(run.would for run in claims.ledger.runs()) == ["", "done"]
    [row] = claims.ledger.jobs()
    assert (row.runs, row.would_skip) == (2, 1)
    assert claims.ledger.runs()[0].slot is not None
    enforced = made(store)
    assert start(enforced, lambda run: None, every="1d", stake="rebuild").kind is Kind.DONE


def test_observe_goes_on_where_the_policy_would_not(made: Make, store: Switched, start: Start) -> None:
    """While the store is absent, absent="skip" stops nothing either."""
    claims = made(store, mode="observe")
    with store_absent(claims):
        outcome = start(claims, lambda run: "ran", absent="skip")
    assert (outcome.kind, outcome.claim) == (Kind.RAN, Claim.ABSENT)


@pytest.fixture(params=["sqlite", "postgres"])
def wallet(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Callable[[], Any]]:
    """A database with one wallet: its URL, and how to connect."""
    if request.param == "sqlite":
        path = tmp_path / "wallet.db"
        connect: Callable[[], Any] = lambda: closing(sqlite3.connect(path))  # noqa: E731
        url = f"sqlite:{path}"
    else:
        url = request.getfixturevalue("pg_dsn")
        connect = lambda: psycopg.connect(url)  # noqa: E731
        guards.init(url)
    with connect() as conn:
        conn.execute("CREATE TABLE wallet (cents BIGINT)")
        conn.execute("INSERT INTO wallet VALUES (100)")
        conn.commit()
    return url, connect


def cents(connect: Callable[[], Any]) -> int:
    with connect() as conn:
        return int(conn.execute("SELECT cents FROM wallet").fetchone()[0])


def debits(claims: Claimant, url: str, connect: Callable[[], Any], *, joined: bool = False) -> Any:
    """The job that debits one cent, told apart by `amount`, which is no part of the key."""

    @claims.job("debit", key=["order"], stake="money", guard=once(url))
    def debit(run: Run, order: int, amount: int = 1) -> str:
        with connect() as conn:
            if joined:
                conn.execute("BEGIN" if url.startswith("sqlite") else "SELECT 1")
            answer = run.once(
                conn, lambda tx: tx.execute(f"UPDATE wallet SET cents = cents - {amount}") and str(amount)
            )
            if joined:
                conn.commit()
        assert answer.value is not None
        return answer.value

    return debit


@pytest.mark.parametrize("joined", [False, True], ids=["owned", "joined"])
def test_observe_lets_the_second_effect_through_and_counts_it(
    made: Make, store: Switched, wallet: tuple[str, Callable[[], Any]], joined: bool
) -> None:
    """The guard's row is written by the first, and each later attempt does its effect and is counted as would-be rejected."""
    url, connect = wallet
    events: list[str] = []
    claims = made(store, mode="observe", observers=[lambda event: events.append(event.kind)])
    debit = debits(claims, url, connect, joined=joined)
    outcomes = [debit(42), debit(42), debit(42, 5)]
    assert [outcome.value for outcome in outcomes] == ["1", "1", "5"]
    assert cents(connect) == 100 - 1 - 1 - 5
    answers = [outcome.answers[0] for outcome in outcomes]
    assert [(answer.kind, answer.would_reject) for answer in answers] == [
        (AnswerKind.APPLIED, False),
        (AnswerKind.APPLIED, True),
        (AnswerKind.APPLIED, True),
    ]
    assert "duplicate" in answers[1].reason
    assert "mismatch" in answers[2].reason
    assert events.count("guard.would_reject") == 2
    [row] = claims.ledger.jobs("debit")
    assert (row.duplicates, row.would_reject) == (0, 2)
    counted = {each.cause: each.count for each in guards.rejections(url)}
    assert counted == ({} if joined else {"would_reject": 2})
    # Once it is enforced, the row of the first attempt is there, and the next one is rejected.
    enforced = debits(made(store), url, connect)
    assert enforced(42).answers[0].kind is AnswerKind.DUPLICATE
    assert cents(connect) == 93


def test_observe_still_refuses_an_effect_that_ends_its_transaction(
    made: Make, store: Switched, tmp_path: Path
) -> None:
    """A let-through effect that commits by itself is refused like any other: it could not be guarded later."""
    url = f"sqlite:{tmp_path / 'wallet.db'}"
    claims = made(store, mode="observe")

    @claims.job("debit", key=["order"], stake="money", guard=once(url))
    def debit(run: Run, order: int) -> None:
        with closing(sqlite3.connect(tmp_path / "wallet.db")) as conn:
            run.once(conn, (lambda tx: tx.commit()) if debit.name in seen else (lambda tx: None))

    seen: set[str] = set()
    debit(1)
    seen.add("debit")
    with pytest.raises(Refused, match="CLM047"):
        debit(1)


def test_off_takes_no_lease_and_leaves_guards_and_slots_alone(
    made: Make, store: Switched, wallet: tuple[str, Callable[[], Any]]
) -> None:
    """The store is not asked at all; a second effect is rejected, a closed slot is done, and the ledger says "off"."""
    url, connect = wallet
    claims = made(store, mode="off")
    with store_absent(claims) if url.startswith("sqlite") else nullcontext():
        debit = debits(claims, url, connect)
        first, second = debit(1), debit(1)
    assert (first.claim, second.claim) == (Claim.OFF, Claim.OFF)
    assert second.answers[0].kind is AnswerKind.DUPLICATE
    assert cents(connect) == 99
    tick = claims.job("tick", every="1d", stake="rebuild")(lambda run: run.lease.cause)
    assert [(tick().kind, tick().value)] == [(Kind.RAN, "off")] or tick().kind is Kind.DONE
    assert {run.claim for run in claims.ledger.runs()} == {"off"}
    [row] = claims.ledger.jobs("debit")
    assert (row.without_claim, row.duplicates) == (0, 1)
    [counted] = guards.rejections(url)
    assert counted.hole == "leases off"
    assert claims._wiring._port is None or not list(claims._wiring._port.scan("claimant:", 10**15))


@pytest.mark.parametrize(("mode", "cause"), [("observe", "off"), ("off", "off")])
def test_a_hold_is_not_refused_where_nothing_is_stopped(
    made: Make, store: Switched, mode: Any, cause: str
) -> None:
    """A block runs beside its holder; with leases off it makes no claim that another could meet."""
    claims = made(store, mode=mode)
    with held_by_another(claims, "report"), claims.hold("report", stake="scan", max_run="1m") as lease:
        assert (lease.cause, lease.remaining()) == (cause, 0.0)
    with claims.hold("report", stake="scan", max_run="1m") as lease:
        assert lease.cause == (None if mode == "observe" else "off")
        other = made(store)
        if mode == "off":
            with other.hold("report", stake="scan", max_run="1m") as free:
                assert free.cause is None
        else:
            with pytest.raises(NotDone), other.hold("report", stake="scan", max_run="1m"):
                pass


def test_an_unknown_mode_is_refused() -> None:
    """The three modes are named."""
    with pytest.raises(Refused, match=r"CLM052.*enforce.*observe.*off"):
        Claimant("memory:modes", ledger="sqlite:never.db", mode="dry-run")  # type: ignore[arg-type]


def test_two_schedules_and_a_lone_zone_are_refused(made: Make, store: Switched) -> None:
    """`every=` and `cron=` are two schedules, and a zone belongs to a cron expression."""
    claims = made(store)
    for options in ({"every": "1h", "cron": "0 * * * *"}, {"tz": "UTC"}, {"every": "1h", "tz": "UTC"}):
        with pytest.raises(Refused, match="CLM019"):
            claims.job("tick", stake="rebuild", **options)  # type: ignore[call-overload]


def test_a_cron_job_has_slots(made: Make, store: Switched, start: Start) -> None:
    """`cron=` computes slots as `every=` does, keeps a done one closed, and its schedule is recorded with its zone."""
    claims = made(store)
    options: dict[str, Any] = {"cron": "0 3 29 2 *", "tz": "Europe/Berlin", "stake": "rebuild"}
    outcome = start(claims, lambda run: run.slot, **options)
    assert (outcome.kind, outcome.slot) == (Kind.RAN, "2024-02-29T02:00:00Z")
    assert start(claims, lambda run: run.slot, **options).kind is Kind.DONE
    [row] = claims.ledger.jobs()
    assert row.schedule == "cron 0 3 29 2 * Europe/Berlin"


def test_a_named_slot_is_done_once_and_forced_again(made: Make, store: Switched) -> None:
    """A trigger's slot is closed by its run; `force` runs it again, recorded as forced; the schedule's own slot is the same instant."""
    claims = made(store)
    ran: list[str | None] = []
    tick = claims.job("tick", every="1d", stake="rebuild")(lambda run: ran.append(run.slot))
    midnight = tick().slot
    assert midnight is not None
    assert tick.at(midnight.replace("T00:00:00Z", "T01:00:00+01:00"))().kind is Kind.DONE
    assert tick.at("backfill-7")().kind is Kind.RAN
    assert tick.at("backfill-7")().kind is Kind.DONE
    assert tick.at("backfill-7", force=True)().kind is Kind.RAN
    assert tick.at(force=True)().kind is Kind.RAN
    assert ran == [midnight, "backfill-7", "backfill-7", midnight]
    assert [run.forced for run in sorted(claims.ledger.runs(), key=lambda run: run.started)].count(True) == 2
    with held_by_another(claims, "tick"):
        assert tick.at("backfill-8", force=True)().kind is Kind.HELD


def test_a_named_slot_of_a_job_without_a_schedule(made: Make, store: Switched) -> None:
    """The trigger's slot makes the operation of a job that has none of its own; attempts are counted for it."""
    claims = made(store)
    tries: list[int] = []

    @claims.job("import", stake="scan", attempts=2)
    def import_all(run: Run) -> str | None:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError(run.slot)
        return run.operation

    for _ in range(2):
        with pytest.raises(ValueError, match="build-7"):
            import_all.at("build-7")()
    gone = import_all.at("build-7")()
    assert (gone.kind, gone.completed) == (Kind.DONE, False)
    assert import_all.at("build-7", force=True)().kind is Kind.RAN
    assert import_all().slot is None


def test_a_slot_cannot_hide_a_key_of_its_name(made: Make, store: Switched) -> None:
    """A key part called "slot" and a trigger's slot would be one part of the identity."""
    claims = made(store)
    job = claims.job("tick", key=["slot"], stake="rebuild")(lambda run, slot: None)
    with pytest.raises(Refused, match="CLM030"):
        job.at("today")


def test_a_named_slot_needs_a_ledger_that_hosts_share(made: Make, valkey_url: str) -> None:
    """On a store that hosts share, a host's own ledger would let each host do the slot."""
    job = made(valkey_url).job("tick", stake="rebuild")(lambda run: None)
    with pytest.raises(Refused, match="CLM050"):
        job.at("today")


def test_an_attested_guard_is_shown_and_not_asked_for(made: Make, store: Switched, start: Start) -> None:
    """What the caller attests lets money be declared, is recorded as attested, and makes no unused-guard event."""
    events: list[str] = []
    claims = made(store, observers=[lambda event: events.append(event.kind)])
    guard = guards.Attested("unique index one_debit")
    outcome = start(claims, lambda run: "paid", stake="money", guard=guard)
    assert (outcome.kind, outcome.reason) == (Kind.RAN, "")
    assert "guard.unused" not in events
    [row] = claims.ledger.jobs()
    assert (row.guarded, row.guard) == (True, "attested: unique index one_debit")
    other = claims.job("other", stake="money", guard=guard)(lambda run: run.once(None, lambda tx: None))  # type: ignore[call-overload]
    with pytest.raises(Refused, match="CLM035"):
        other()
    for text in ("", " ", "two\nlines", "x" * 201):
        with pytest.raises(Refused, match="CLM048"):
            guards.Attested(text)
