"""A thousand messages, two workers, and everything that goes wrong at once: each debit once, none missing, each duplicate counted."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg

from tests.frameworks.celery_traffic import Monitor, Traffic
from tests.frameworks.celery_workers import Shop, Worker
from tests.support.proxy import Proxy
from tests.support.servers import Server, wait

ORDERS, TWICE = 1_000, 100
CHANGES = {
    # Longer than a message takes to come again: it finds the dead worker's claim, is told "held", and must be retried.
    'max_run="2m"': 'max_run="2m", lifetime="6s"',
    '"visibility_timeout": 900': '"visibility_timeout": 4, "unacked_mutex_expire": 2',
    '"unacked_restore_interval": 10': '"unacked_restore_interval": 1',
    "retry_backoff_max = 60": "retry_backoff_max = 2",
    "interval '30 minutes'": "interval '0 minutes'",
}
TROUBLE = ("child", "reply", "prefork", "child", "reply", "threads")
EVERY = 45
"""How many debits lie between two troubles."""


def kept_up(shop: Shop, crew: dict[str, Worker]) -> list[psutil.Process]:
    """Start again what has given up, as a supervisor does; gives the children of the prefork pool.

    A worker gives up where a child of its pool is killed while it starts.
    """
    for pool, worker in crew.items():
        if worker.process.poll() is not None:
            crew[pool] = shop.work(f"{worker.name}-again", pool, 2, ready=False)
    return crew["prefork"].children()


def trouble(shop: Shop, proxy: Proxy, crew: dict[str, Worker], draw: random.Random) -> Counter[str]:
    """While the queue drains: kill a child of a pool, lose the replies to commits, kill a whole worker and start it again."""
    done: Counter[str] = Counter()
    with psycopg.connect(shop.dsn, autocommit=True) as connection:

        def debited(count: int) -> bool:
            time.sleep(0.05)
            kept_up(shop, crew)
            row = connection.execute("SELECT count(*) FROM claimant_guard").fetchone()
            return row is not None and row[0] >= count

        for number, count in enumerate(range(EVERY, ORDERS - EVERY, EVERY)):
            wait(lambda count=count: debited(count), f"{count} debits", 60)  # type: ignore[misc]
            match TROUBLE[number % len(TROUBLE)]:
                case "child":
                    found: list[psutil.Process] = []
                    wait(lambda found=found: found.extend(kept_up(shop, crew)) or found, "a child", 60)  # type: ignore[misc]
                    draw.choice(found).kill()
                    done["child"] += 1
                case "reply":
                    proxy.cut_after_request(times=2, match=b"COMMIT")
                    done["reply"] += 2
                case pool:
                    crew[pool].kill()
                    done["worker"] += 1
                    crew[pool] = shop.work(f"{pool}-{number}", pool, 2, ready=False)
    return done


@dataclass
class Book:
    """What the guard's tables and the ledger say of the debits."""

    winners: set[str]
    rejected: set[str]
    answers: dict[str, list[str]] = field(default_factory=dict)
    """Of each run that ended well."""
    others: Counter[str] = field(default_factory=Counter)
    """Runs that did not, by how they ended; "" for those that never did."""
    unfinished: set[str] = field(default_factory=set)
    counted: int = 0

    @classmethod
    def of(cls, shop: Shop) -> Book:
        """Read both."""
        book = cls(
            winners={attempt for (attempt,) in shop.ask("SELECT attempt FROM claimant_guard")},
            rejected={
                run for (run,) in shop.ask("SELECT run_id FROM claimant_rejection WHERE cause = 'duplicate'")
            },
        )
        runs = shop.ask(
            """
            SELECT r.run_id, r.kind, array_remove(array_agg(a.kind), NULL)
            FROM claimant_runs r JOIN claimant_jobs j ON j.id = r.job LEFT JOIN claimant_answers a ON a.run = r.id
            WHERE j.job = 'debit-wallet' GROUP BY r.run_id, r.kind
            """
        )
        for run, kind, answers in runs:
            if kind == "ran":
                book.answers[run] = answers
            else:
                book.others[kind] += 1
                book.unfinished.add(run)
        [(book.counted,)] = shop.ask(
            "SELECT sum(duplicates)::int FROM claimant_jobs WHERE job = 'debit-wallet'"
        )
        return book


def test_a_thousand_messages_are_a_thousand_debits(
    tmp_path: Path, private_valkey: Callable[..., Server], pg_dsn: str
) -> None:
    """Kills, redelivery and lost replies: one debit an order, each further attempt counted, no message gone before its work."""
    seed = random.randrange(sys.maxsize)
    print(f"seed {seed}")
    draw, broker = random.Random(seed), private_valkey()
    proxy = Proxy(urlsplit(pg_dsn).port or 0)
    with (
        proxy,
        Shop(tmp_path, broker, pg_dsn, CHANGES, through=proxy.url(pg_dsn)) as shop,
        Monitor(broker.port) as monitor,
    ):
        shop.orders(ORDERS)
        ids = list(range(1000, 1000 + ORDERS))
        sent = ids + draw.sample(ids, TWICE)
        draw.shuffle(sent)
        for order_id in sent:
            shop.send(order_id)
        crew = {pool: shop.work(pool, pool, 2) for pool in ("prefork", "threads")}
        done = trouble(shop, proxy, crew, draw)
        shop.settled()
        traffic = Traffic.of(monitor.told())
        missing = set(ids) - set(shop.debits())
        # A worker that is killed between taking a message and noting it takes the message along. That is the broker's
        # transport, which nothing of ours can see; what it lost is known here, and nothing else may be missing.
        assert missing <= {message.args[0] for message in traffic.lost()}
        if missing:
            assert shop.send(None, "tasks.resend").get(timeout=60) == len(missing)
            shop.settled()
        for worker in crew.values():
            worker.process.terminate()
        for worker in crew.values():
            assert worker.process.wait(60) == 0
        assert shop.idle()

        assert shop.debits() == dict.fromkeys(ids, 1)
        debited_at = dict(shop.ask("SELECT order_id, extract(epoch FROM at)::float8 FROM debits"))
        assert shop.spent() == sum(range(1, ORDERS + 1))
        early = [
            (message, at)
            for message, at in traffic.acknowledged
            if message.task == "tasks.debit"
            and debited_at[message.args[0]] > at
            and not traffic.retried_before(message, at)
        ]
        assert not early
        assert len(traffic.acknowledged) >= len(sent) - len(traffic.lost())

        book = Book.of(shop)
        assert len(book.winners) == ORDERS
        applied = {run for run, answers in book.answers.items() if answers == ["applied"]}
        duplicates = {run for run, answers in book.answers.items() if answers == ["duplicate"]}
        # Each attempt that ended well was answered once, either way.
        assert applied | duplicates == set(book.answers)
        assert applied <= book.winners
        assert duplicates <= book.rejected
        assert not book.rejected & book.winners
        assert book.winners | book.rejected <= set(book.answers) | book.unfinished
        # Attempts that ended well, less those that debited, are the duplicates, to the last one.
        assert len(book.answers) - len(book.winners & set(book.answers)) == len(duplicates) == book.counted
        assert len(duplicates) >= TWICE - len(traffic.lost()) - book.others.total()
        print(
            f"{dict(done)}, {len(traffic.acknowledged)} acknowledged, {len(traffic.lost())} lost by the broker"
        )
        print(
            f"{len(applied)} applied, {len(book.rejected)} rejected ({len(duplicates)} heard of it), others {dict(book.others)}"
        )
        assert (done["child"], done["worker"]) == (7, 7)
        assert proxy.counts.faults >= done["reply"]
        assert book.others[""] >= 1  # some run was killed in the middle
