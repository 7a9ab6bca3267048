"""Real Celery workers on the Celery page's tasks, with a broker and a database of the test's own."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
import redis
from celery import Celery

from tests.docs_support.pages import ROOT, all_pages
from tests.docs_support.running import prepare
from tests.frameworks.pages import environment, written
from tests.support.servers import Server, wait

PAGE = "live-inside-celery.md"
PATIENCE_S = 60.0


class Worker:
    """One `celery worker` and its pool."""

    def __init__(self, folder: Path, name: str, pool: str, size: int) -> None:
        self.name, self.pool, self.size = name, pool, size
        self.log_path = folder / f"{name}.log"
        words = ["-A", "tasks", "worker", "-P", pool, "-c", str(size), "-n", f"{name}@here", "-l", "INFO"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", *words, "--without-gossip", "--without-mingle"],
                cwd=folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self.log_path.read_text(errors="replace")

    def ready(self) -> bool:
        """Whether it takes messages."""
        assert self.process.poll() is None, self.log
        return f"{self.name}@here ready." in self.log

    def children(self) -> list[psutil.Process]:
        """The processes of its pool."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """End all of it at once, as the kernel does for want of memory."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def pause(self) -> None:
        """Freeze the process that talks to the broker."""
        psutil.Process(self.process.pid).suspend()
        wait(
            lambda: psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED, "the worker to freeze"
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it was sent. A retry is another message of the same task."""

    tag: str
    task: str
    task_id: str
    args: list[Any]
    retries: int


class Shop:
    """The page's project in a folder, its broker and its database."""

    def __init__(
        self, folder: Path, broker: Server, dsn: str, changes: Mapping[str, str], *, through: str = ""
    ) -> None:
        """`through`: the database's URL for the page's own programs, where it is another one."""
        self.folder, self.broker, self.dsn = folder, broker, dsn
        self.workers: list[Worker] = []
        self.others: list[subprocess.Popen[bytes]] = []
        [page] = [page for page in all_pages() if page.path == ROOT / "docs/how-to" / PAGE]
        prepare(dsn, "".join(block.text for block in page.blocks("sql")))
        written(
            PAGE,
            folder,
            {"redis://localhost:6379/0": broker.url, "postgresql:///app": through or dsn} | dict(changes),
        )
        self.redis = redis.Redis.from_url(broker.url)
        self.sender = Celery("test", broker=broker.url, backend=broker.url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        for process in self.others:
            process.kill()
            process.wait(PATIENCE_S)
        self.sender.close()
        self.redis.close()

    # --- processes

    def work(self, name: str, pool: str = "prefork", size: int = 1, *, ready: bool = True) -> Worker:
        """Start a worker."""
        worker = Worker(self.folder, name, pool, size)
        self.workers.append(worker)
        if ready:
            wait(worker.ready, f"worker {name}", PATIENCE_S)
        return worker

    def beat(self, name: str) -> None:
        """Start a scheduler."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.others.append(
                subprocess.Popen(
                    [sys.executable, "-m", "celery", "-A", "tasks", "beat", "-s", name, "--pidfile="],
                    cwd=self.folder,
                    env=environment(),
                    stdout=log,
                    stderr=log,
                )
            )

    # --- messages

    def send(self, order_id: object, task: str = "tasks.debit") -> Any:
        """Send one message; returns Celery's result object."""
        return self.sender.send_task(task, args=[] if order_id is None else [order_id])

    def queued(self) -> int:
        """Messages that no worker has."""
        return int(self.redis.llen("celery"))

    def unacked(self) -> list[Message]:
        """Messages that a worker has, or had when it died."""
        raw: dict[bytes, bytes] = self.redis.hgetall("unacked")  # type: ignore[assignment]
        return [message_of(json.loads(each)[0]) for each in raw.values()]

    def asked(self) -> None:
        """Wait until a worker has just asked for a message: the broker hands it the next one within a second."""
        with self.redis.monitor() as watching:
            for seen in watching.listen():
                if seen["command"].startswith("BRPOP"):
                    return

    def idle(self) -> bool:
        """Whether there is no message left anywhere."""
        return self.queued() == 0 and self.redis.hlen("unacked") == 0

    def settled(self) -> None:
        """Wait until there is no message left; between being taken and being noted it is nowhere, so look again and again."""
        quiet = 0

        def still() -> bool:
            nonlocal quiet
            quiet = quiet + 1 if self.idle() else 0
            return quiet >= 20

        try:
            wait(still, "the queue to drain", PATIENCE_S)
        except TimeoutError as late:
            raise AssertionError(
                f"{late}: {self.queued()} in the queue, {self.unacked()} with workers"
            ) from None

    # --- the database

    def orders(self, count: int) -> None:
        """Orders 1000, 1001, … of 1, 2, … cents, in place of the page's; and note each debit of an order in a table that only this test has."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("DELETE FROM orders")
            connection.execute(
                "INSERT INTO orders (id, cents) SELECT 999 + n, n FROM generate_series(1, %s) n", [count]
            )
            connection.execute(
                b"""
                CREATE TABLE debits (order_id bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
                CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
                    'BEGIN INSERT INTO debits (order_id) VALUES (NEW.id); RETURN NEW; END';
                CREATE TRIGGER noted AFTER UPDATE OF paid_at ON orders FOR EACH ROW EXECUTE FUNCTION note();
                """
            )

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()

    def debits(self) -> dict[int, int]:
        """How often each order was debited."""
        return dict(self.ask("SELECT order_id, count(*) FROM debits GROUP BY order_id"))

    def spent(self) -> int:
        """What the wallet has lost."""
        return 1_000_000 - int(self.ask("SELECT cents FROM wallet")[0][0])

    def rejections(self) -> int:
        """What the guard has counted."""
        return int(self.ask("SELECT count(*) FROM claimant_rejection WHERE cause = 'duplicate'")[0][0])

    @contextlib.contextmanager
    def gate(self) -> Iterator[Callable[[int], None]]:
        """Bodies stop before their effect while the block lasts. Gives a function that waits until so many have."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")

            def arrived(count: int) -> None:
                statement = (
                    "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass"
                )
                wait(lambda: self.ask(statement)[0][0] >= count, f"{count} bodies at the gate", PATIENCE_S)

            yield arrived

    def leases(self) -> list[bytes]:
        """The names that are claimed now."""
        found: list[bytes] = self.redis.keys("claimant:*")  # type: ignore[assignment]
        return found


def message_of(raw: dict[str, Any]) -> Message:
    """A message as the broker keeps it."""
    headers = raw["headers"]
    args = json.loads(base64.b64decode(raw["body"]))[0]
    return Message(
        raw["properties"]["delivery_tag"], headers["task"], headers["id"], args, headers.get("retries") or 0
    )
