"""The programs of the Django page, as real processes on real servers: what requests and commands at the same time come to."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from claimant import Claimant, guards
from claimant.ledger import init
from claimant.testing.faults import held_by_another
from tests.docs_support.pages import ROOT, all_pages
from tests.frameworks.pages import environment, free_port, written
from tests.support.servers import wait


@pytest.fixture
def project(tmp_path: Path, pg_dsn: str, valkey_url: str) -> Path:
    """The page's project, its tables made."""
    init(pg_dsn)
    guards.init(pg_dsn)
    [page] = [page for page in all_pages() if page.path == ROOT / "docs/how-to/live-inside-django.md"]
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute("".join(block.text for block in page.blocks("sql")).encode())
    written(
        "live-inside-django.md",
        tmp_path,
        {"redis://localhost:6379/0": valkey_url, "postgresql:///app": pg_dsn},
    )
    return tmp_path


@pytest.fixture
def server(project: Path) -> Iterator[str]:
    """Django's own server, with threads."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"],
        cwd=project,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/nothing").status_code == 404
        except httpx.TransportError:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            return False

    try:
        wait(answers, "the server to answer", 30)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=20)


def cents(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT cents FROM shop_wallet").fetchone()
        assert row is not None
        return int(row[0])


def test_requests_for_one_order_at_the_same_time_are_one_debit(server: str, pg_dsn: str) -> None:
    """Of many requests for the same order one debits; each other is told so, or to come back, and comes back to the same answer."""
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(f"{server}/orders/7/debit", data={"cents": "10"}, timeout=60))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {200, 409}
    done = [answer.json()["answer"] for answer in answers if answer.status_code == 200]
    assert done.count("applied") == 1
    assert set(done) <= {"applied", "duplicate"}
    assert all("Retry-After" in answer.headers for answer in answers if answer.status_code == 409)
    again = httpx.post(f"{server}/orders/7/debit", data={"cents": "10"}, timeout=60)
    assert again.json()["answer"] == "duplicate"
    assert cents(pg_dsn) == 100_000 - 10


def test_a_request_that_fails_after_the_debit_has_not_debited(server: str, pg_dsn: str) -> None:
    """The request's rollback takes the guard's row with it, so the order can be debited, once."""
    for _ in range(2):
        failed = httpx.post(f"{server}/orders/8/debit", data={"cents": "10", "fail": "yes"}, timeout=60)
        assert failed.status_code == 500
        assert cents(pg_dsn) == 100_000
    for expected in ("applied", "duplicate"):
        answer = httpx.post(f"{server}/orders/8/debit", data={"cents": "10"}, timeout=60)
        assert answer.json()["answer"] == expected
    assert cents(pg_dsn) == 100_000 - 10


def command(project: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "manage.py", *words],
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_commands_at_the_same_time_are_one_run(project: Path, pg_dsn: str, valkey_url: str) -> None:
    """Four hosts run the command: one does the day's work, the others find it held or done, and the exit code tells held."""
    started = [command(project, "rebuild_index") for _ in range(4)]
    said = [process.communicate(timeout=60) for process in started]
    kinds = sorted(out.split()[0] for out, _ in said)
    assert kinds.count("ran") == 1, said
    assert set(kinds) <= {"ran", "done", "held"}
    codes = [process.returncode for process in started]
    assert codes.count(1) == kinds.count("held")
    with Claimant(valkey_url, ledger=pg_dsn, namespace="shop") as claims:
        [row] = claims.ledger.jobs("rebuild-index")
        assert (row.runs, row.last_kind) == (1, "ran")


def test_a_command_that_somebody_else_holds_is_no_success(
    project: Path, pg_dsn: str, valkey_url: str
) -> None:
    """Held is an error of the command, with who holds it."""
    with (
        Claimant(valkey_url, ledger=pg_dsn, namespace="shop") as claims,
        held_by_another(claims, "rebuild-index"),
    ):
        process = command(project, "rebuild_index")
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "held by somebody-else:1" in errors
