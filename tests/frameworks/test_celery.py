"""The Celery page's tasks in real workers on a real broker: what redelivery, killed workers and late retries come to."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from celery import Celery

from claimant import LeaseLost, NotDone, Refused
from tests.frameworks.celery_workers import PATIENCE_S, Shop
from tests.support.proxy import Proxy
from tests.support.servers import Server, wait

SHORT = {'max_run="2m"': 'max_run="2m", lifetime="1s"'}
"""Leases that a crash leaves behind for a second, so that no test waits for half a minute."""
SOON = {
    '"visibility_timeout": 900': '"visibility_timeout": 2',
    '"unacked_restore_interval": 10': '"unacked_restore_interval": 1',
    "retry_backoff_max = 60": "retry_backoff_max = 1",
}
"""What nobody acknowledged comes again after two or three seconds."""

MakeShop = Callable[..., Shop]


@pytest.fixture
def broker(private_valkey: Callable[..., Server]) -> Server:
    return private_valkey()


@pytest.fixture
def make_shop(tmp_path: Path, broker: Server, pg_dsn: str) -> Iterator[MakeShop]:
    """The page's project, with leases of a second and further changes."""
    made: list[Shop] = []

    def make(changes: dict[str, str] | None = None, *, orders: int = 2, through: str = "") -> Shop:
        made.append(Shop(tmp_path, broker, pg_dsn, SHORT | (changes or {}), through=through))
        made[0].orders(orders)
        return made[0].__enter__()

    yield make
    for shop in made:
        shop.__exit__()


# --- a message is acknowledged once its work is done


def test_a_held_message_is_retried_and_does_the_work_of_a_killed_worker(make_shop: MakeShop) -> None:
    """A delivery that is answered "held" while the first one runs is not dropped: when the first worker is killed, it does the work."""
    shop = make_shop()
    first = shop.work("first", "threads")
    with shop.gate() as arrived:
        shop.send(1000)
        arrived(1)
        shop.work("second")
        again = shop.send(1000)
        wait(lambda: again.state == "RETRY", "the second delivery to be told", PATIENCE_S)
        first.kill()
    assert again.get(timeout=PATIENCE_S) == 999_999
    assert shop.debits() == {1000: 1}
    # The first delivery is nobody's for 900 s yet: what did the work is the retry.
    assert [(message.task_id != again.id, message.args) for message in shop.unacked()] == [(True, [1000])]


def test_a_killed_pool_child_gives_its_message_back(make_shop: MakeShop) -> None:
    """The kernel kills the child in the middle of a debit: the message comes again at once, and the debit happens, once."""
    shop = make_shop()
    worker = shop.work("only")
    with shop.gate() as arrived:
        result = shop.send(1000)
        arrived(1)
        [child] = worker.children()
        child.kill()
    assert result.get(timeout=PATIENCE_S) == 999_999
    shop.settled()
    assert shop.debits() == {1000: 1}
    assert shop.rejections() == 0


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_killed_worker_s_message_comes_again(make_shop: MakeShop, pool: str) -> None:
    """The whole worker is killed after the debit and before it could acknowledge: the message comes again, and is a counted duplicate."""
    shop = make_shop(SOON)
    worker = shop.work("first", pool)
    connection = psycopg.connect(shop.dsn)
    with connection:
        # The effect stands, and the worker hangs at the very end of it: in the commit.
        connection.execute(
            b"""
            CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END';
            CREATE CONSTRAINT TRIGGER hangs AFTER UPDATE ON orders DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION hang();
            """
        )
    with psycopg.connect(shop.dsn) as gate:
        gate.execute("SELECT pg_advisory_xact_lock(7)")
        result = shop.send(1000)
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
        wait(lambda: shop.ask(waiting)[0][0] == 1, "the commit to hang", PATIENCE_S)
        worker.kill()
    wait(lambda: shop.debits() == {1000: 1}, "the commit to go on without the worker", PATIENCE_S)
    shop.work("second", pool)
    assert result.get(timeout=PATIENCE_S) == 999_999
    shop.settled()
    assert shop.debits() == {1000: 1}
    assert shop.rejections() == 1


def test_a_message_that_comes_again_while_its_first_delivery_runs_is_one_debit(make_shop: MakeShop) -> None:
    """The broker's patience is shorter than the run: the same message goes to a second worker, is told "held", and ends as a duplicate."""
    shop = make_shop(SOON)
    shop.work("first")
    shop.work("second", "threads")
    with shop.gate() as arrived:
        result = shop.send(1000)
        arrived(1)
        # Longer than a lifetime: were the claim not renewed in the pool's child, two bodies would stand at the gate.
        wait(lambda: result.state == "RETRY", "the second delivery to be told", PATIENCE_S)
        assert len(shop.leases()) == 1
    shop.settled()
    assert result.get(timeout=PATIENCE_S) == 999_999
    assert shop.debits() == {1000: 1}
    assert shop.rejections() >= 1


def test_a_retry_that_cannot_be_sent_keeps_its_message(make_shop: MakeShop) -> None:
    """The database ends the body and the broker, out of memory, takes no retry: the message is kept, and comes again."""
    shop = make_shop(SOON)
    worker = shop.work("only")
    with shop.gate() as arrived:
        result = shop.send(1000)
        arrived(1)
        shop.redis.config_set("maxmemory", 1)
        shop.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass"
        )
        wait(lambda: "Reject" in worker.log, "the retry to fail", PATIENCE_S)
        shop.redis.config_set("maxmemory", 0)
    # To be told "no" by the broker ends some workers: it is for their supervisor to start them again.
    shop.work("second")
    assert result.get(timeout=PATIENCE_S) == 999_999
    shop.settled()
    assert shop.debits() == {1000: 1}


def test_a_lost_reply_to_the_commit_is_one_debit(make_shop: MakeShop, pg_dsn: str) -> None:
    """The debit is committed and its reply is lost: the run finds out that it stands, and the task ends with the debit's own result."""
    with Proxy(urlsplit(pg_dsn).port or 0) as proxy:
        shop = make_shop(through=proxy.url(pg_dsn))
        shop.work("only")
        with shop.gate() as arrived:
            result = shop.send(1000)
            arrived(1)
            proxy.cut_after_request(times=1, match=b"COMMIT")
        assert result.get(timeout=PATIENCE_S) == 999_999
        assert proxy.counts.faults == 1
        shop.settled()
        assert shop.debits() == {1000: 1}


@pytest.mark.parametrize(
    ("task", "state"),
    [("debit_wallet(order_id)", "FAILURE"), ("debit_wallet(order_id).kind.value", "SUCCESS")],
    ids=["outcome", "kind"],
)
def test_what_the_page_says_not_to_do(make_shop: MakeShop, task: str, state: str) -> None:
    """Without `.value` a debit that stands is a failure to Celery, or else a held message is acknowledged: the reason for both ways out."""
    shop = make_shop({"debit_wallet(order_id).value": task})
    first = shop.work("first", "threads")
    with shop.gate() as arrived:
        shop.send(1000)
        arrived(1)
        shop.work("second")
        held = shop.send(1000)
        wait(lambda: held.state == state, "the second delivery to end", PATIENCE_S)
        first.kill()
    # The second message is gone, and nothing of it was done.
    wait(lambda: [message.task_id != held.id for message in shop.unacked()] == [True], "its acknowledgement")
    assert shop.queued() == 0
    assert shop.debits() == {}
    done = shop.send(1001)
    wait(lambda: done.state == state, "a debit to end", PATIENCE_S)
    assert shop.debits() == {1001: 1}


def test_a_run_over_the_time_limit_keeps_its_message(make_shop: MakeShop) -> None:
    """Celery kills a child whose task takes too long: the message is not acknowledged, and comes again."""
    shop = make_shop({"worker_prefetch_multiplier=1,": "worker_prefetch_multiplier=1, task_time_limit=1,"})
    worker = shop.work("only")
    with shop.gate() as arrived:
        shop.send(1000)
        arrived(1)
        wait(lambda: "Hard time limit" in worker.log, "the limit", PATIENCE_S)
    wait(lambda: shop.debits() == {1000: 1}, "the work to be done", PATIENCE_S)
    shop.settled()
    assert shop.debits() == {1000: 1}


def test_what_the_broker_itself_loses_is_sent_again(make_shop: MakeShop) -> None:
    """A worker that dies between taking a message and noting it takes it along; the page's sweep finds the order, and sends it again."""
    shop = make_shop(orders=1)
    worker = shop.work("first")
    shop.asked()
    worker.pause()
    shop.send(1000)
    wait(shop.idle, "the broker to hand the message to the frozen worker", PATIENCE_S)
    worker.kill()
    assert shop.idle()  # gone, and nothing of ours ever saw it
    shop.ask("UPDATE orders SET placed_at = now() - interval '1 hour' WHERE id = 1000 RETURNING id")
    shop.work("second", "threads")
    assert shop.send(None, "tasks.resend").get(timeout=PATIENCE_S) == 1
    wait(lambda: shop.debits() == {1000: 1}, "the debit", PATIENCE_S)
    assert shop.spent() == 1


# --- schedules


def test_two_schedulers_are_one_run_a_slot(make_shop: MakeShop) -> None:
    """Two live schedulers send each occasion twice, to two workers: each slot has one run, and the other message finds it done."""
    shop = make_shop({'every="1m"': 'every="1s"', '"schedule": 60.0': '"schedule": 0.5'})
    shop.work("first")
    shop.work("second", "threads", 2)
    shop.beat("beat-1")
    shop.beat("beat-2")
    runs = "SELECT slot_text, count(*) FROM claimant_runs GROUP BY slot_text ORDER BY slot_text"
    wait(lambda: len(shop.ask(runs)) >= 5, "five slots", PATIENCE_S)
    assert {count for _, count in shop.ask(runs)} == {1}
    assert sum(worker.log.count("Task tasks.resend[") // 2 for worker in shop.workers) >= 2 * 5


# --- what Celery keeps of results and errors


def test_errors_come_back_from_the_result_backend_as_themselves() -> None:
    """Celery's JSON keeps an error's class and its arguments; each of ours is made again from them."""
    errors = [
        NotDone("debit: held: by web-1", retry_in=0.5, reason="held: by web-1", name="debit"),
        Refused("CLM043", "debit: other values", name="debit"),
        LeaseLost("debit: lost", cause="lost", name="debit"),
    ]
    with Celery("test", backend="cache+memory://") as app:
        for error in errors:
            back = app.backend.exception_to_python(
                json.loads(json.dumps(app.backend.prepare_exception(error, "json")))
            )
            assert type(back) is type(error)
            assert str(back) == str(error)


# --- ending


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_deploy_releases_the_claim_after_the_body(make_shop: MakeShop, pool: str) -> None:
    """SIGTERM while a body runs: the claim is held, for longer than its lifetime, until the body has ended; then the worker ends."""
    shop = make_shop()
    worker = shop.work("only", pool)
    with shop.gate() as arrived:
        result = shop.send(1000)
        arrived(1)
        worker.process.terminate()
        wait(lambda: "Warm shutdown" in worker.log, "the worker to be told", PATIENCE_S)
        assert len(shop.leases()) == 1
        with pytest.raises(TimeoutError):
            wait(lambda: not shop.leases(), "the claim to go", 2.5)
        assert worker.process.poll() is None
    assert worker.process.wait(PATIENCE_S) == 0
    assert shop.leases() == []
    assert result.get(timeout=PATIENCE_S) == 999_999
    assert shop.idle()
    assert shop.debits() == {1000: 1}


def test_a_stop_of_the_whole_group_leaves_the_message(make_shop: MakeShop) -> None:
    """SIGTERM to the pool's children as well, as some supervisors send it: the body is stopped, nothing is debited, the message stays."""
    shop = make_shop()
    worker = shop.work("first")
    with shop.gate() as arrived:
        result = shop.send(1000)
        arrived(1)
        os.killpg(worker.process.pid, signal.SIGTERM)
        assert worker.process.wait(PATIENCE_S) == 0
        assert shop.queued() == 1
        assert shop.leases() == []
    shop.work("second")
    assert result.get(timeout=PATIENCE_S) == 999_999
    shop.settled()
    assert shop.debits() == {1000: 1}
