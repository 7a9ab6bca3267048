"""The project of the Django page, as real processes on real servers: what requests and commands at the same time come to."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from claimant import Claimant
from claimant.ledger import init
from claimant.testing.faults import held_by_another
from tests.docs_support.running import POSTGRESQL, REDIS
from tests.frameworks.pages import environment, free_port, written
from tests.support.servers import wait

FULL = 100_000


@dataclass(frozen=True)
class Project:
    """The page's project, its tables made. `rows`: what others see of its database."""

    folder: Path
    settings: str
    store: str
    ledger: str
    rows: Callable[[str], list[tuple[Any, ...]]]

    @property
    def cents(self) -> int:
        return int(self.rows("SELECT cents FROM shop_wallet")[0][0])

    @property
    def debits(self) -> int:
        """How many operations the guard has rows of."""
        return int(self.rows("SELECT count(*) FROM claimant_guard")[0][0])

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment(DJANGO_SETTINGS_MODULE=self.settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def manage(self, *words: str) -> str:
        process = self.start("manage.py", *words)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return out + errors


@pytest.fixture(params=["postgres", "sqlite"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """Written from the page, migrated by Django."""
    folder = tmp_path
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("pg_dsn")
        store: str = request.getfixturevalue("valkey_url")
        init(dsn)

        def rows(sql: str) -> list[tuple[Any, ...]]:
            with psycopg.connect(dsn) as connection:
                return connection.execute(sql.encode()).fetchall()

        made = Project(folder, "config.settings", store, dsn, rows)
        written("live-inside-django.md", folder, {REDIS: store, POSTGRESQL: dsn})
    else:

        def rows(sql: str) -> list[tuple[Any, ...]]:
            with contextlib.closing(sqlite3.connect(folder / "app.db")) as connection:
                return connection.execute(sql).fetchall()

        store, ledger = f"sqlite:{folder / 'leases.db'}", f"sqlite:{folder / 'ledger.db'}"
        made = Project(folder, "config.settings_sqlite", store, ledger, rows)
        written("live-inside-django.md", folder, {})
    assert "Applying shop.0002_guard... OK" in made.manage("migrate")
    made.manage("shell", "-c", f"from shop.models import Wallet; Wallet.objects.create(pk=1, cents={FULL})")
    return made


@contextlib.contextmanager
def serving(project: Project, *words: str, port: int) -> Iterator[str]:
    """A server's process, from its first answer on until its end."""
    with (project.folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=project.folder,
            env=environment(DJANGO_SETTINGS_MODULE=project.settings),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/nothing").status_code == 404
        except httpx.TransportError:
            assert process.poll() is None, (project.folder / "server.log").read_text()
            return False

    try:
        wait(answers, "the server to answer", 30)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture
def server(project: Project) -> Iterator[str]:
    """Django's own server, a thread for each request, under ATOMIC_REQUESTS."""
    port = free_port()
    with serving(project, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}", port=port) as url:
        yield url


def post(url: str, **form: str) -> httpx.Response:
    return httpx.post(url, data={"cents": "10"} | form, timeout=60)


def one_debit_of(url: str, project: Project) -> None:
    """Ask twelve times at once, and once more."""
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(post(url))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 12
    log = (project.folder / "server.log").read_text()
    assert {answer.status_code for answer in answers} <= {200, 409}, log
    done = [answer.json()["answer"] for answer in answers if answer.status_code == 200]
    assert done.count("applied") == 1
    assert set(done) <= {"applied", "duplicate"}
    assert all("Retry-After" in answer.headers for answer in answers if answer.status_code == 409)
    again = post(url)
    assert (again.json()["answer"], again.json()["left"]) == ("duplicate", FULL - 10)
    assert (project.cents, project.debits) == (FULL - 10, 1)


def test_requests_for_one_order_at_the_same_time_are_one_debit(server: str, project: Project) -> None:
    """Of many requests for the same order one debits; each other is told so, or to come back, and comes back to the same answer."""
    one_debit_of(f"{server}/orders/7/debit", project)


def test_async_requests_for_one_order_are_one_debit(project: Project) -> None:
    """The same for an async view under an ASGI server, which calls the job on a thread."""
    port = free_port()
    words = (
        "-m",
        "uvicorn",
        "config.asgi:application",
        "--port",
        str(port),
        "--log-level",
        "warning",
        "--lifespan",
        "off",
    )
    with serving(project, *words, port=port) as url:
        one_debit_of(f"{url}/orders/7/debit-async", project)
        assert post(f"{url}/orders/8/debit-async").json()["kind"] == "ran"


def test_a_request_that_fails_after_the_debit_has_not_debited(server: str, project: Project) -> None:
    """The request's rollback takes the guard's row with it, so the order can be debited, once."""
    for _ in range(2):
        assert post(f"{server}/orders/8/debit", fail="yes").status_code == 500
        assert (project.cents, project.debits) == (FULL, 0)
    for expected in ("applied", "duplicate"):
        assert post(f"{server}/orders/8/debit").json()["answer"] == expected
    assert (project.cents, project.debits) == (FULL - 10, 1)


def test_a_reload_of_the_server_keeps_what_was_done(project: Project) -> None:
    """`runserver` starts a new process when a file changes: it knows the order that the old one debited."""
    port = free_port()
    views = project.folder / "shop/views.py"
    with serving(project, "manage.py", "runserver", f"127.0.0.1:{port}", port=port) as url:
        assert post(f"{url}/orders/7/debit").json()["answer"] == "applied"
        stamp = views.stat().st_mtime + 5
        views.write_text(
            views.read_text().replace('{"kind": outcome.kind, "answer"', '{"again": True, "answer"')
        )
        os.utime(views, (stamp, stamp))

        def reloaded() -> bool:
            try:
                answer = post(f"{url}/orders/7/debit").json()
            except httpx.TransportError:
                return False
            # The old process may have ended with the claim of a request in its hands, which lapses.
            if answer.get("kind") == "held":
                return False
            assert answer["answer"] == "duplicate"
            return "again" in answer

        wait(reloaded, "the server to come back with the change", 90)
    assert (project.cents, project.debits) == (FULL - 10, 1)


def test_commands_at_the_same_time_are_one_run(project: Project) -> None:
    """Three hosts run the command: one does the day's work, the others find it held or done, and the exit code tells held."""
    started = [project.start("manage.py", "rebuild_index") for _ in range(3)]
    said = [process.communicate(timeout=60) for process in started]
    kinds = sorted(out.split()[0] for out, _ in said)
    assert kinds.count("ran") == 1, said
    assert set(kinds) <= {"ran", "done", "held"}
    codes = [process.returncode for process in started]
    assert codes.count(1) == kinds.count("held")
    with Claimant(project.store, ledger=project.ledger, namespace="shop") as claims:
        [row] = claims.ledger.jobs("rebuild-index")
        assert (row.runs, row.last_kind) == (1, "ran")


def test_a_command_that_somebody_else_holds_is_no_success(project: Project) -> None:
    """Held is an error of the command, with who holds it."""
    with (
        Claimant(project.store, ledger=project.ledger, namespace="shop") as claims,
        held_by_another(claims, "rebuild-index"),
    ):
        process = project.start("manage.py", "rebuild_index")
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "held by somebody-else:1" in errors


def test_the_projects_own_tests_pass(project: Project) -> None:
    """In the database that Django's test runner makes: it has the guard's tables, and the guard follows the alias there."""
    said = project.manage("test", "--noinput")
    assert "Ran 1 test" in said
    assert "OK" in said.splitlines()
    assert (project.cents, project.debits) == (FULL, 0)
