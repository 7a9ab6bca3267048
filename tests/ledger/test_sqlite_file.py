"""The embedded ledger's file: made for its owner only, shared by threads and processes, never repaired behind anybody's back."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from claimant._model.errors import LedgerAbsent, LedgerCorrupt
from claimant._model.records import Begin, LedgerNow, SlotClosed, SlotState
from claimant.ledger import init, open_ledger, schema_sql, sql_for
from claimant.ledger.sqlite import SqliteLedger
from claimant.testing.ledger_rows import SLOT, ended, started
from tests.ledger.conftest import Open

NOBODY = 65_534


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder outside pytest's own, which only its owner may enter."""
    folder = Path(tempfile.mkdtemp(prefix="claimant-ledger-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere, so for a while we are somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_opening_does_nothing(tmp_path: Path) -> None:
    """No file, no folder and no driver before the first call."""
    path = tmp_path / "deep" / "ledger.db"
    ledger = open_ledger(f"sqlite:{path}")
    assert not path.parent.exists()
    ledger.close()
    code = "import sys; from claimant.ledger import open_ledger; open_ledger('postgresql://h/d'); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "claimant.ledger" in loaded
    assert not {name for name in loaded if name.startswith("psycopg")}


def test_only_its_owner_may_read_it(tmp_path: Path, opened: Open) -> None:
    """New files are 0600, new folders 0700, whatever the umask; a folder that was there keeps its mode."""
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        ledger = opened(f"sqlite:{tmp_path / 'a' / 'b' / 'ledger.db'}")
        ledger.call(Begin(started()))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path, *tmp_path.rglob("*")]}
    assert modes.pop(tmp_path.name) == 0o755
    assert {modes.pop("a"), modes.pop("b")} == {0o700}
    assert set(modes) >= {"ledger.db", "ledger.db-wal"}
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(
    "content", [b"x" * 5_000, b"SQLite format 3\0" + b"\xff" * 9_000, b"{}"], ids=["text", "header", "json"]
)
def test_a_corrupt_ledger_is_never_touched(tmp_path: Path, content: bytes) -> None:
    """A file that is not a database is an error that names it and says what to do, and is left as it was, alone."""
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    ledger = open_ledger(f"sqlite:{path}")
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match="restore it from a backup") as caught:
            ledger.call(Begin(started()))
        assert str(path) in str(caught.value)
    with pytest.raises(LedgerCorrupt):
        init(f"sqlite:{path}")
    with pytest.raises(LedgerAbsent, match="damaged"):
        ledger.call(ended(started()))  # the body has run: its result goes first
    ledger.close()
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_damage_inside_is_found_and_left(tmp_path: Path) -> None:
    """A ledger with an overwritten page is an error once the page is read, and is not repaired."""
    path = tmp_path / "ledger.db"
    with closing(open_ledger(f"sqlite:{path}")) as ledger:
        for number in range(50):
            ledger.call(Begin(started(slot=str(number), holder="x" * 400)))
    data = bytearray(path.read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096 : page * 4096 + 200] = b"\xee" * 200
    path.write_bytes(data)
    with closing(open_ledger(f"sqlite:{path}")) as ledger, pytest.raises(LedgerCorrupt, match="damaged"):
        ledger.jobs()
    assert path.read_bytes() == bytes(data)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("9, 3", "Upgrade claimant"),
        ("'x', 1", "no version of claimant"),
        ("0, 1", "no version of claimant"),
        (None, "no version of claimant"),
    ],
)
def test_a_ledger_of_another_version_is_refused(tmp_path: Path, version: str | None, says: str) -> None:
    """A schema that shuts us out, or that nobody has written, is not read and not written; the error says what to do."""
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema_sql("sqlite"))
        connection.execute("DELETE FROM claimant_ledger")
        if version is not None:
            connection.execute(f"INSERT INTO claimant_ledger VALUES ({version})")
        connection.commit()
    before = path.read_bytes()
    with closing(open_ledger(f"sqlite:{path}")) as ledger:
        with pytest.raises(LedgerCorrupt, match=says):
            ledger.jobs()
        with pytest.raises(LedgerCorrupt, match=says):
            ledger.call(Begin(started()))
    assert path.read_bytes() == before


def test_tables_of_somebody_else_stay(tmp_path: Path, opened: Open) -> None:
    """An application's own database may hold the ledger; its tables and its `user_version` are not ours."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE invoices (id); INSERT INTO invoices VALUES (1); PRAGMA user_version = 77"
        )
    opened(f"sqlite:{path}").call(Begin(started()))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM invoices").fetchall() == [(1,)]
        assert connection.execute("PRAGMA user_version").fetchall() == [(77,)]


def test_a_folder_that_cannot_be_written_is_an_absent_ledger(open_folder: Path) -> None:
    """At first use, not at opening: absent, naming the folder and what to give."""
    open_folder.chmod(0o555)
    ledger = open_ledger(f"sqlite:{open_folder / 'ledger.db'}")
    with unprivileged(), pytest.raises(LedgerAbsent, match="write access") as caught:
        ledger.call(Begin(started()))
    assert str(open_folder) in str(caught.value)
    assert list(open_folder.iterdir()) == []
    ledger.close()


def test_a_ledger_of_another_user_is_absent(open_folder: Path) -> None:
    """A file that we may read and not write, or not even read, is absent, and works once the right is given."""
    path = open_folder / "ledger.db"
    init(f"sqlite:{path}")
    open_folder.chmod(0o777)
    ledger = open_ledger(f"sqlite:{path}")
    for mode in (0o400, 0o444):
        path.chmod(mode)
        with unprivileged(), pytest.raises(LedgerAbsent, match="write access"):
            ledger.call(Begin(started()))
    for each in open_folder.iterdir():
        each.chmod(0o666)
    with unprivileged():
        ledger.call(Begin(started()))
        ledger.close()


def test_a_path_through_a_file_is_an_absent_ledger(tmp_path: Path) -> None:
    """A parent that is a file, or a path that is a folder, is told as absent, not as a stray error."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "ledger.db", tmp_path):
        ledger = open_ledger(f"sqlite:{path}")
        with pytest.raises(LedgerAbsent, match="write access"):
            ledger.call(Begin(started()))
        ledger.close()


def test_a_writer_that_never_lets_go_costs_one_deadline(tmp_path: Path, opened: Open) -> None:
    """While another connection holds the write lock, a call is absent after its deadline and the next ones at once; later it works."""
    url = f"sqlite:{tmp_path / 'ledger.db'}"
    init(url)
    ledger = open_ledger(f"{url}?deadline=300ms")
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        spent = []
        for _ in range(50):
            began = time.monotonic()
            with pytest.raises(LedgerAbsent):
                ledger.call(Begin(started()))
            spent.append(time.monotonic() - began)
        assert 0.29 < spent[0] < 0.8
        assert sum(spent[1:]) < 0.1
        other.execute("ROLLBACK")
    ledger._patience._closed_until = 0  # a second has passed
    ledger.call(Begin(started()))
    ledger.close()


def test_a_ledger_that_was_replaced_is_opened_anew(tmp_path: Path, opened: Open) -> None:
    """A long-lived process writes where the name leads now, never into a file that was deleted or moved away."""
    path = tmp_path / "ledger.db"
    ledger = opened(f"sqlite:{path}")
    ledger.call(Begin(started()))
    ledger.close()
    ledger.call(Begin(started()))
    for each in list(tmp_path.iterdir()):
        each.rename(tmp_path / f"old-{each.name}")
    ledger.call(Begin(started()))
    with closing(open_ledger(f"sqlite:{path}", namespace="shop")) as other:
        assert other.jobs()[0].runs == 1


def test_what_closes_a_slot_reaches_the_disk(tmp_path: Path) -> None:
    """Ends that close a slot, or count towards it, commit with synchronous=FULL; begins and skips do not wait for the disk."""
    ledger = open_ledger(f"sqlite:{tmp_path / 'ledger.db'}")
    assert isinstance(ledger, SqliteLedger)

    def level() -> int:
        return int(ledger._held[0].execute("PRAGMA synchronous").fetchone()[0])

    run, other, third = started(slot=SLOT), started(slot="b"), started(slot="c")
    ledger.call(Begin(run))
    assert level() == 1
    ledger.call(ended(run))
    assert level() == 2
    ledger.call(Begin(other))
    assert level() == 1
    ledger.call(ended(other, "failed"))
    assert level() == 2
    ledger.call(ended(started()))
    assert level() == 1
    ledger.call(Begin(third, close_at_start=True))
    assert level() == 2
    assert ledger._held[0].execute("PRAGMA journal_mode").fetchone() == ("wal",)
    ledger.close()


def test_threads_share_one_file(sqlite_url: str, opened: Open) -> None:
    """Forty threads each write a run; none is lost and none sees "database is locked"."""
    ledger = opened(sqlite_url)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                run = started()
                ledger.call(Begin(run))
                ledger.call(ended(run))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert ledger.jobs()[0].runs == 200


# The check of newer Pythons that a process with threads should not fork: that is what is tested here.
THREADS = "ignore:This process:DeprecationWarning"
FORKS = """
import os, sys
from claimant.ledger import open_ledger
from claimant.testing.ledger_rows import started, ended
from claimant._model.records import Begin
url = sys.argv[1]
ledger = open_ledger(url, namespace="shop")
first = started()
ledger.call(Begin(first))
for _ in range(3):
    child = os.fork()
    if child == 0:
        if url.startswith("sqlite") and os.path.isdir("/proc/self/fd"):
            path = url.removeprefix("sqlite:")
            links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
            inherited = [link for link in links if os.path.islink(link) and os.readlink(link).startswith(path)]
            assert not inherited, "the child inherited an open file"
        run = started(run_id=os.urandom(16).hex())
        ledger.call(Begin(run))
        ledger.call(ended(run))
        ledger.close()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
ledger.call(ended(first))
print(ledger.jobs()[0].runs)
ledger.close()
"""


def test_a_forked_child_owns_nothing_of_its_parent(url: str, opened: Open) -> None:
    """Parent and forked children write one ledger with connections of their own, and no warning is given."""
    opened(url)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-W", THREADS, "-c", FORKS, url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "4", "")


def test_an_abandoned_ledger_warns_nobody(url: str) -> None:
    """A ledger that is never closed is collected without a ResourceWarning."""
    ledger = open_ledger(url, namespace="shop")
    ledger.call(Begin(started()))
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del ledger
        gc.collect()
    assert [str(each.message) for each in caught] == []


def test_the_clock_is_the_hosts(tmp_path: Path) -> None:
    """Instants in rows are the host's wall clock, in milliseconds."""
    ledger = SqliteLedger(
        tmp_path / "l.db", namespace="", deadline_ms=1_000, epoch_ms=lambda: 1_796_000_000_123
    )
    assert ledger.call(LedgerNow()) == ledger.now() == 1_796_000_000_123
    ledger.call(Begin(started()))
    assert ledger.jobs()[0].last_started == 1_796_000_000_123
    ledger.close()


def test_the_printed_schema_is_the_one_that_is_made(tmp_path: Path, opened: Open) -> None:
    """`schema_sql` run by hand gives a ledger that works, and running it again harms nothing."""
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql_for(f"sqlite:{path}"))
        connection.executescript(sql_for(f"sqlite:{path}"))
    ledger = opened(f"sqlite:{path}")
    run = started(slot=SLOT)
    ledger.call(Begin(run))
    ledger.call(ended(run))
    assert isinstance(ledger.call(SlotState("rebuild-index", "", SLOT)), SlotClosed)
