"""The application of the FastAPI page under uvicorn: real processes on real servers, and what requests at the same time come to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from claimant import Claimant
from claimant._model.rows import RunRow
from tests.docs_support.pages import ROOT, Page
from tests.docs_support.running import POSTGRESQL, REDIS, prepare
from tests.frameworks.pages import environment, free_port, written
from tests.support.servers import Server, alive, resp, wait
from tests.support.shared import Shared

PAGE = "live-inside-fastapi.md"
TABLES = "".join(block.text for block in Page(ROOT / "docs/how-to" / PAGE).blocks("sql"))
FULL = 100_000
SLOTS = 60
GATE = """
CREATE TABLE gate (shut text NOT NULL);
CREATE FUNCTION pass_gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    WHILE EXISTS (SELECT FROM gate WHERE shut = tg_table_name) LOOP PERFORM pg_sleep(0.02); END LOOP;
    RETURN new;
END $$;
CREATE TRIGGER gate BEFORE UPDATE ON wallet FOR EACH ROW EXECUTE FUNCTION pass_gate();
CREATE TRIGGER gate BEFORE INSERT ON balance FOR EACH ROW EXECUTE FUNCTION pass_gate();
"""
PREFORK = """
import os, socket, sys
import uvicorn
from app import app
from jobs import claims
with claims.hold("before-the-fork", stake="scan", max_run="1m"):
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
    children = []
    for _ in range(2):
        if (child := os.fork()) == 0:
            uvicorn.Server(uvicorn.Config(app)).run(sockets=[listening])
            os._exit(0)
        children.append(child)
listening.close()
for child in children:
    os.waitpid(child, 0)
"""
"""What a server with --preload does: the application is imported, and a claim was taken, before the workers are forked."""


@dataclass(frozen=True)
class Shop:
    """The page's application in a folder, its tables made."""

    folder: Path
    dsn: str

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    @property
    def cents(self) -> int:
        with psycopg.connect(self.dsn) as connection:
            [(cents,)] = connection.execute("SELECT cents FROM wallet").fetchall()
            return int(cents)

    @contextlib.contextmanager
    def shut(self, table: str) -> Iterator[Callable[[], None]]:
        """Whoever writes to `table` waits in the middle of the effect, until the block ends. Gives a wait for the first one."""
        asleep = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
        )
        with psycopg.connect(self.dsn, autocommit=True) as connection:

            def begun() -> None:
                wait(lambda: connection.execute(asleep).fetchone() is not None, "an effect to begin")

            connection.execute("INSERT INTO gate VALUES (%s)", [table])
            try:
                yield begun
            finally:
                connection.execute("DELETE FROM gate")

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "server.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, *words], cwd=self.folder, env=environment(), stdout=log, stderr=log
            )

    @contextlib.contextmanager
    def serving(self, *words: str, workers: int = 1) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
        """The server's address and its process, from the start of every worker on; it is ended by SIGTERM."""
        port = free_port()
        uvicorn = ("-m", "uvicorn", "app:app", "--port", str(port), "--workers", str(workers))
        process = self.start(*(words or uvicorn), *([str(port)] if words else []))

        def started() -> bool:
            assert process.poll() is None, self.log
            return self.log.count("Application startup complete.") == workers

        try:
            wait(started, "the workers to start", 60)
            yield f"http://127.0.0.1:{port}", process
        finally:
            family = [process, *psutil.Process(process.pid).children()] if process.poll() is None else []
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                for each in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
                process.wait()
                raise


Make = Callable[..., Shop]


@pytest.fixture
def make(tmp_path: Path, pg_dsn: str, request: pytest.FixtureRequest) -> Make:
    """Writes the page's application: `make(changes, store=, tables=)`."""

    def made(changes: Mapping[str, str] | None = None, *, store: str = "", tables: bool = True) -> Shop:
        store = store or request.getfixturevalue("valkey_url")
        written(PAGE, tmp_path, {REDIS: store, POSTGRESQL: pg_dsn, **(changes or {})})
        if tables:
            prepare(pg_dsn, TABLES + GATE)
        return Shop(tmp_path, pg_dsn)

    return made


def post(url: str, **params: str) -> httpx.Response:
    return httpx.post(url, params={"cents": "10"} | params, timeout=60)


def one_debit_of(url: str, shop: Shop) -> None:
    """Ask twelve times at once, then until every one is told that it is done."""
    before = shop.cents
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: post(url), range(12)))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert all(answer.headers["Retry-After"] == "1" for answer in answers if answer.status_code == 409)
    answers.append(post(url))
    done = [answer.json() for answer in answers if answer.status_code == 200]
    assert sorted(answer["answer"] for answer in done) == ["applied"] + ["duplicate"] * (len(done) - 1)
    assert {answer["left"] for answer in done} == {before - 10}
    assert shop.cents == before - 10


def test_requests_for_one_order_at_the_same_time_are_one_debit(make: Make) -> None:
    """Whichever of the workers is asked, one request debits, and every other is told so, or to come back."""
    shop = make()
    with shop.serving(workers=4) as (url, _):
        one_debit_of(f"{url}/orders/7/debit", shop)
        one_debit_of(f"{url}/orders/8/debit-by-dependency", shop)


def test_a_server_that_forks_after_the_import_is_as_good(make: Make) -> None:
    """A Claimant that was made and used before the fork is each child's own, and the loops of the children share the slots."""
    shop = make()
    (shop.folder / "prefork.py").write_text(PREFORK)
    with shop.serving("prefork.py", workers=2) as (url, process):
        workers = psutil.Process(process.pid).children()
        assert len(workers) == 2
        one_debit_of(f"{url}/orders/7/debit", shop)
        for worker in workers:
            worker.terminate()
        process.wait(timeout=20)
    with psycopg.connect(shop.dsn) as connection:
        rows = connection.execute("SELECT slot FROM balance").fetchall()
    assert len(rows) == len(set(rows)) > 0
    assert "Traceback" not in shop.log


def test_a_request_that_runs_while_a_deploy_comes_is_answered(make: Make) -> None:
    """SIGTERM lets the debit of a request end, and its answer is sent."""
    shop = make()
    with shop.serving() as (url, process), ThreadPoolExecutor(1) as pool:
        with shop.shut("wallet") as begun:
            asked = pool.submit(post, f"{url}/orders/7/debit")
            begun()
            process.terminate()
            wait(lambda: "Waiting for connections to close" in shop.log, "the server to close")
        assert asked.result().json() == {"kind": "ran", "answer": "applied", "left": FULL - 10}
        assert process.wait(timeout=20) == -signal.SIGTERM


def test_a_debit_in_doubt_is_503_and_the_same_request_again_is_safe(
    make: Make, private_valkey: Callable[..., Server]
) -> None:
    """With the store gone a second request waits at the guard while the first still works; then it is told to come back."""
    store = private_valkey()
    shop = make(
        {"guard=once(DATABASE), max_run": 'guard=once(DATABASE, longest="1s"), max_run'}, store=store.url
    )
    with shop.serving(workers=2) as (url, _), ThreadPoolExecutor(1) as pool:
        with shop.shut("wallet") as begun:
            first = pool.submit(post, f"{url}/orders/7/debit")
            begun()
            store.kill()
            doubt = post(f"{url}/orders/7/debit")
            assert (doubt.status_code, doubt.json()) == (503, {"kind": "unknown"})
            assert int(doubt.headers["Retry-After"]) >= 1
        assert first.result().json()["answer"] == "applied"
        assert post(f"{url}/orders/7/debit").json()["answer"] == "duplicate"
    assert shop.cents == FULL - 10


def test_a_job_that_does_not_go_on_without_the_store_is_503(
    make: Make, private_valkey: Callable[..., Server]
) -> None:
    """Absent is an answer of its own: nothing was done, come back."""
    store = private_valkey()
    shop = make({'max_run="2m"': 'max_run="2m", absent="skip"'}, store=store.url)
    with shop.serving() as (url, _):
        store.kill()
        answer = post(f"{url}/orders/7/debit")
        assert (answer.status_code, answer.json()) == (503, {"kind": "absent"})
        assert int(answer.headers["Retry-After"]) >= 1
        assert shop.cents == FULL
        store.restart()
        wait(lambda: post(f"{url}/orders/7/debit").status_code == 200, "the store to be found again", 20)
    assert shop.cents == FULL - 10


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loop_that_cannot_work_ends_the_server(make: Make, workers: int) -> None:
    """Without the ledger's tables the server does not go on as if its loop ran: it ends, and says why."""
    shop = make(tables=False)
    process = shop.start("-m", "uvicorn", "app:app", "--port", str(free_port()), "--workers", str(workers))
    try:
        if workers == 1:
            assert process.wait(timeout=30) != 0
        else:
            # The supervisor starts another worker for each that ends, and says so each time.
            wait(lambda: "died" in shop.log, "a worker to end", 30)
    finally:
        process.terminate()
        process.wait(timeout=20)
    assert "claimant init" in shop.log


@contextlib.contextmanager
def watching() -> Iterator[list[tuple[datetime, datetime]]]:
    """The periods in which this machine let a sleeping process wait: in such a second nobody can begin a slot of a second."""
    stalls: list[tuple[datetime, datetime]] = []
    over = threading.Event()

    def watch() -> None:
        before = datetime.now(UTC)
        while not over.wait(0.1):
            now = datetime.now(UTC)
            if (now - before).total_seconds() > 0.4:
                stalls.append((before - timedelta(seconds=1), now + timedelta(seconds=1)))
            before = now

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield stalls
    finally:
        over.set()
        watcher.join()


def test_sixty_slots_by_four_workers_are_one_run_each(make: Make, valkey_url: str, valkey: Shared) -> None:
    """A loop in each worker's lifespan: none of sixty slots is missing or run twice, though bodies fail and a worker is killed;
    a deploy's SIGTERM waits for the body, and gives the claim back after it.
    """
    shop = make({'every="15m"': 'every="1s"', 'lifetime="30s"': 'lifetime="1s"'})
    with psycopg.connect(shop.dsn) as connection:
        connection.execute(
            "ALTER TABLE balance ADD CONSTRAINT not_now CHECK (extract(second FROM slot)::int % 15 <> 7)"
        )
    with (
        Claimant(valkey_url, ledger=shop.dsn, namespace="shop") as claims,
        watching() as stalls,
        shop.serving(workers=4) as (_, process),
    ):

        def runs() -> dict[datetime, list[RunRow]]:
            found: dict[datetime, list[RunRow]] = {}
            for row in claims.ledger.runs(job="note-balance"):
                assert row.slot is not None
                found.setdefault(datetime.fromisoformat(row.slot), []).append(row)
            return found

        def ran(slots: int) -> None:
            wait(lambda: len(runs()) >= slots, f"{slots} slots", slots + 10)

        ran(20)
        wait(lambda: max(runs()).second % 15 == 9, "a slot whose body does not fail", 20)
        with shop.shut("balance") as begun:
            begun()
            [job] = claims.ledger.jobs("note-balance")
            killed = int(job.running_holder.rpartition(":")[2])
            assert killed in {each.pid for each in psutil.Process(process.pid).children()}
            os.kill(killed, signal.SIGKILL)
        ran(SLOTS)
        with shop.shut("balance") as begun:
            begun()
            workers = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            wait(lambda: shop.log.count("Waiting for application shutdown.") == 4, "the workers to be told")
            wait(lambda: shop.log.count("Application shutdown complete.") == 3, "those that only wait to end")
            assert process.poll() is None
            assert keys(valkey, valkey_url) == 1
        assert process.wait(timeout=20) == 0
        wait(lambda: not any(alive(worker.pid) for worker in workers), "the last process to end")
        assert keys(valkey, valkey_url) == 0

        done = runs()
        first, last = min(done), max(done)
        missing = {
            first + timedelta(seconds=number) for number in range(int((last - first).total_seconds()))
        } - set(done)
        assert len(done) >= SLOTS
        [(crashed, pair)] = [(slot, rows) for slot, rows in done.items() if len(rows) != 1]
        # A slot is as long as a lifetime: those that began and ended while the dead worker's was taken over are past.
        taken_over = datetime.fromtimestamp(max(row.started for row in pair) / 1_000, UTC)
        missing -= {slot for slot in missing if crashed < slot < taken_over}
        missing -= {slot for slot in missing if any(since <= slot <= until for since, until in stalls)}
        assert not missing
        assert sorted((row.kind, row.holder.endswith(f":{killed}")) for row in pair) == [
            ("", True),
            ("ran", False),
        ]
        stalled_ms = sum((until - since).total_seconds() for since, until in stalls) * 1_000
        assert max(row.started for row in pair) - min(row.started for row in pair) < 2_000 + stalled_ms
        failing = {slot for slot in done if slot.second % 15 == 7}
        assert len(failing) >= 4
        assert {slot for slot, rows in done.items() if rows[-1].kind == "failed"} == failing
        assert all(rows[-1].kind == "ran" for slot, rows in done.items() if slot not in failing | {crashed})
        assert len({row.holder for rows in done.values() for row in rows}) > 1
    with psycopg.connect(shop.dsn) as connection:
        noted = [slot for (slot,) in connection.execute("SELECT slot FROM balance").fetchall()]
    assert sorted(noted) == sorted(set(done) - failing)
    # No loop has ended by itself: the page's callback would have ended its worker.
    assert shop.log.count("] died") == 1
    assert "never awaited" not in shop.log
    assert "never retrieved" not in shop.log


def keys(server: Shared, url: str) -> int:
    """How many claims there are in the store."""
    return int(resp(server.port, f"SELECT {url.rpartition('/')[2]}", "DBSIZE").strip(b":\r\n"))
