"""The programs of the plain script page, as real processes on real servers: two at once, stopped, killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from claimant import Claimant
from claimant._model.rows import RunRow
from claimant.testing.faults import held_by_another
from tests.docs_support.pages import ROOT, Page
from tests.docs_support.running import POSTGRESQL, REDIS, prepare
from tests.frameworks.pages import environment, written
from tests.support.servers import Server, resp, wait

PAGE = "run-from-a-plain-script.md"
TABLES = "".join(block.text for block in Page(ROOT / "docs/how-to" / PAGE).blocks("sql"))
LIFETIME_S = 2
EXTRA_S = 3
"""What a loaded machine may take to notice that a lifetime is over, besides the lifetime."""


@dataclass(frozen=True)
class Scripts:
    """The page's programs in a folder, with short lifetimes, and the test's own look at what they do."""

    folder: Path
    dsn: str
    store: Server
    claims: Claimant

    @property
    def claimed(self) -> bool:
        return resp(self.store.port, "DBSIZE") != b":0\r\n"

    @property
    def carts(self) -> int:
        with psycopg.connect(self.dsn) as connection:
            [(carts,)] = connection.execute("SELECT count(*) FROM cart").fetchall()
            return int(carts)

    def runs(self, job: str = "clean-carts") -> list[RunRow]:
        return sorted(self.claims.ledger.runs(job=job), key=lambda row: row.started)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[Callable[[], None]]:
        """A script that comes to its table waits there, until the block ends. Gives a wait for the first one."""
        text = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'cart'::regclass"
        with psycopg.connect(self.dsn) as holding, psycopg.connect(self.dsn, autocommit=True) as looking:
            holding.execute("LOCK TABLE cart IN SHARE MODE")

            def begun() -> None:
                wait(lambda: looking.execute(text).fetchone() is not None, "a body to come to its table", 30)

            yield begun
            holding.rollback()

    @contextlib.contextmanager
    def started(self, program: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, program],
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, program: str) -> tuple[int, str, str]:
        with self.started(program) as process:
            return ended(process)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=30)
    return process.returncode, out, errors


@pytest.fixture
def scripts(tmp_path: Path, pg_dsn: str, private_valkey: Callable[..., Server]) -> Iterator[Scripts]:
    store = private_valkey()
    changes = {REDIS: store.url, POSTGRESQL: pg_dsn, 'lifetime="30s"': f'lifetime="{LIFETIME_S}s"'}
    written(PAGE, tmp_path, changes)
    prepare(pg_dsn, TABLES)
    with Claimant(store.url, ledger=pg_dsn, namespace="shop") as claims:
        yield Scripts(tmp_path, pg_dsn, store, claims)


def test_of_two_scripts_at_once_one_works_and_one_says_held(scripts: Scripts) -> None:
    """The exit code tells held from done; the next trigger finds the slot done."""
    with scripts.started("nightly.py") as first:
        with scripts.frozen() as begun:
            begun()
            code, out, errors = scripts.run("nightly.py")
            assert (code, out) == (75, "")
            assert errors.endswith("\n")
            assert f":{first.pid}" in errors
            assert errors.splitlines()[-1].startswith("held: ")
        assert ended(first)[:2] == (0, "cleaned 2 carts\n")
    code, out, _ = scripts.run("nightly.py")
    assert code == 0
    assert out.endswith("was done before\n")
    assert [row.kind for row in scripts.runs()] == ["ran"]
    assert (scripts.carts, scripts.claimed) == (1, False)


def test_a_script_that_fails_says_so_and_so_does_the_next(scripts: Scripts) -> None:
    """An exception is exit code 1 with its traceback; the slot whose attempts are used up is no success either."""
    with psycopg.connect(scripts.dsn) as connection:
        connection.execute("DELETE FROM cart; ALTER TABLE cart RENAME TO basket")
    code, _, errors = scripts.run("nightly.py")
    assert code == 1
    assert "UndefinedTable" in errors
    code, out, _ = scripts.run("nightly.py")
    assert code == 1
    assert "was done before" in out
    assert [row.kind for row in scripts.runs()] == ["failed"]
    assert not scripts.claimed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_is_stopped_ends_its_body_first(scripts: Scripts, number: signal.Signals) -> None:
    """The signal of a deploy, and Ctrl-C: the claim is kept until the body has ended, then given back; exit code 0."""
    with scripts.started("daemon.py") as daemon:
        with scripts.frozen() as begun:
            begun()
            daemon.send_signal(number)
            # Longer than the claim lives without renewal: whoever waits for the body keeps its claim.
            time.sleep(1.5 * LIFETIME_S)
            assert daemon.poll() is None
            assert scripts.claimed
            assert [row.ended for row in scripts.runs()] == [None]
        code, _, errors = ended(daemon)
    assert code == 0, errors
    assert "Traceback" not in errors
    [run] = scripts.runs()
    assert (run.kind, run.claim) == ("ran", "kept")
    assert (scripts.carts, scripts.claimed) == (1, False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_sleeps_ends_at_once(scripts: Scripts, number: signal.Signals) -> None:
    """Between two slots nothing is waited for."""
    with scripts.started("daemon.py") as daemon:
        wait(lambda: [row.kind for row in scripts.runs()] == ["ran"], "the slot to be run", 30)
        wait(lambda: not scripts.claimed, "the claim to be given back")
        before = time.monotonic()
        daemon.send_signal(number)
        code, _, errors = ended(daemon)
        assert time.monotonic() - before < EXTRA_S
    assert code == 0, errors


def test_a_second_signal_ends_a_daemon_in_its_body(scripts: Scripts) -> None:
    """Whoever does not want to wait sends it again; what was claimed lapses."""
    with scripts.started("daemon.py") as daemon, scripts.frozen() as begun:
        begun()
        # Apart from each other: a driver that waits for its server looks at signals a few times a second.
        while daemon.poll() is None:
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=0.5)
        code, _, _ = ended(daemon)
        assert code == -signal.SIGTERM
        wait(lambda: not scripts.claimed, "the claim to lapse", LIFETIME_S + EXTRA_S)


def test_the_slot_of_a_killed_daemon_is_run_by_another_within_the_lifetime(scripts: Scripts) -> None:
    """The other one stands by from the start, and nobody has to do anything."""
    with scripts.started("daemon.py") as one, scripts.started("daemon.py") as other:
        with scripts.frozen() as begun:
            begun()
            [run] = scripts.runs()
            pid = int(run.holder.rpartition(":")[2])
            killed, heir = (one, other) if pid == one.pid else (other, one)
            assert pid == killed.pid
            killed.kill()
            killed.communicate()
            at = time.monotonic()
        wait(lambda: len(scripts.runs()) == 2, "the slot to be taken over", LIFETIME_S + EXTRA_S)
        assert time.monotonic() - at < LIFETIME_S + EXTRA_S
        wait(lambda: [row.kind for row in scripts.runs()] == ["", "ran"], "the slot to be run")
        crashed, taken = scripts.runs()
        assert crashed.slot == taken.slot
        assert taken.holder.endswith(f":{heir.pid}")
        heir.terminate()
        code, _, errors = ended(heir)
    assert code == 0, errors
    assert (scripts.carts, scripts.claimed) == (1, False)


@pytest.mark.parametrize(
    ("number", "kind", "given_back"), [(signal.SIGTERM, "", False), (signal.SIGINT, "stopped", True)]
)
def test_a_script_without_a_loop_ends_in_its_body(
    scripts: Scripts, number: signal.Signals, kind: str, given_back: bool
) -> None:
    """As Python scripts do. What SIGTERM leaves behind lapses; SIGINT is recorded. The slot is open, and the next trigger runs it."""
    with scripts.started("nightly.py") as script, scripts.frozen() as begun:
        begun()
        script.send_signal(number)
        assert ended(script)[0] == -number
        assert scripts.claimed is not given_back
        wait(lambda: not scripts.claimed, "the claim to be gone", LIFETIME_S + EXTRA_S)
    assert [row.kind for row in scripts.runs()] == [kind]
    # What the database was asked for before the end, it does.
    code, out, _ = scripts.run("nightly.py")
    assert (code, out.split()[0], scripts.carts) == (0, "cleaned", 1)


def test_a_block_that_is_held_by_somebody_else_is_not_entered(scripts: Scripts) -> None:
    """`hold` ends the script with a code of its own, names the holder, and leaves no claim behind when it is through."""
    with scripts.started("compact.py") as first:
        with scripts.frozen() as begun:
            begun()
            code, _, errors = scripts.run("compact.py")
            assert code == 75
            assert f":{first.pid}" in errors
        assert ended(first)[0] == 0
    assert not scripts.claimed
    assert scripts.run("compact.py")[0] == 0


def test_a_block_runs_where_the_store_is_absent(scripts: Scripts) -> None:
    """A claim stops nobody whom it cannot ask."""
    scripts.store.kill()
    assert scripts.run("compact.py")[0] == 0
    assert scripts.run("nightly.py")[:2] == (0, "cleaned 2 carts\n")
    [run] = scripts.runs()
    assert (run.kind, run.claim) == ("ran", "absent")


def test_a_script_that_somebody_holds_for_long_is_counted(scripts: Scripts) -> None:
    """Every skip is in the ledger, so that a host that only ever skips is seen."""
    with held_by_another(scripts.claims, "clean-carts"):
        assert [scripts.run("nightly.py")[0] for _ in range(2)] == [75, 75]
    [job] = scripts.claims.ledger.jobs("clean-carts")
    assert (job.skips_in_row, job.last_skip_holder, job.runs) == (2, "somebody-else:1", 0)
