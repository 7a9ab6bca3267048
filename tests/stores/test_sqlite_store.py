"""The embedded store's file: made, shared, broken, forbidden, and seen from another time."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from claimant._drive.clock import now_ms
from claimant._drive.ports import StorePort
from claimant._model.errors import NotDone
from claimant._model.ops import (
    Create,
    Granted,
    Held,
    Peek,
    Renew,
    Renewal,
    StoreAbsent,
    Vacant,
)
from claimant.stores import open_store
from claimant.stores.sqlite_file import LeaseFile
from claimant.testing.store_suite import MINUTE_MS, Asked, soon, value

Ask = Callable[[object], Asked]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "er" / "leases.db"


def create(port: StorePort, key: str, holder: int, lifetime_ms: int = MINUTE_MS) -> object:
    return port.call(Create(key, value(holder, lifetime_ms), lifetime_ms, soon()))


# -- the file


def test_the_file_is_for_its_user_alone(path: Path) -> None:
    """File and journal are 0600, a folder that was made is 0700, whatever the umask."""
    before = os.umask(0)
    try:
        port = open_store(f"sqlite:{path}").blocking()
        assert create(port, "k", 1) == Granted()
        assert path.parent.stat().st_mode & 0o777 == 0o700
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o777 == 0o600, file
        port.close()
    finally:
        os.umask(before)


RACE = """
import sys
from claimant.stores import open_store
from claimant._drive.clock import now_ms
from claimant._model.ops import Create
url, me = sys.argv[1:]
port = open_store(url).blocking()
print("ready", flush=True)
sys.stdin.readline()
kinds = [type(port.call(Create(f"k{at}", f"c1|{me}|60000|h", 60_000, now_ms() + 20_000))).__name__ for at in range(50)]
print(*kinds)
"""


def test_many_processes_make_the_file_at_once_and_share_it(path: Path) -> None:
    """Six processes start on a file that is not there: each name is granted to exactly one of them."""
    for round_ in range(3):
        target = path.with_name(f"leases{round_}.db")
        children = [
            subprocess.Popen(
                [sys.executable, "-c", RACE, f"sqlite:{target}", f"t{at}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for at in range(6)
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        said = [child.communicate()[0].split() for child in children]
        assert {len(kinds) for kinds in said} == {50}
        for at in range(50):
            assert sorted(kinds[at] for kinds in said) == ["Granted", *["Held"] * 5]


def garbage(path: Path) -> None:
    """Everything overwritten, the header with nothing, as after a crash of the host."""
    path.write_bytes(bytes(100) + b"this is not a database at all " * 400)


def broken_page(path: Path) -> None:
    """The header stands, the pages are rubbish."""
    data = bytearray(path.read_bytes())
    data[100:] = b"\xa5" * (len(data) - 100)
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    """The end is missing."""
    path.write_bytes(path.read_bytes()[:3_000])


@pytest.mark.parametrize("spoil", [garbage, broken_page, cut_short])
def test_a_corrupt_file_is_moved_aside_and_made_anew(
    ask: Ask, path: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The claim is granted on a new file; the old one is kept, and both are named in an error."""
    port = open_store(f"sqlite:{path}").blocking()
    assert create(port, "k", 1) == Granted()
    port.close()
    spoil(path)
    spoiled = path.read_bytes()
    asked = ask(f"sqlite:{path}")
    with caplog.at_level(logging.ERROR, "claimant"):
        assert asked.call(Create("k", value(2), MINUTE_MS, soon())) == Granted()
    [aside] = [
        file
        for file in path.parent.iterdir()
        if ".corrupt-" in file.name and not file.name.endswith(("-wal", "-shm"))
    ]
    assert aside.read_bytes() == spoiled
    assert str(path) in caplog.text
    assert aside.name in caplog.text
    assert isinstance(asked.call(Create("k", value(3), MINUTE_MS, soon())), Held)


def test_what_somebody_wrote_is_left_where_it_is(ask: Ask, path: Path) -> None:
    """A path that was given by mistake: the store is absent and says why, and the file is as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("my notes")
    reply = ask(f"sqlite:{path}").call(Create("k", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert "left alone" in reply.reason
    assert path.read_text() == "my notes"
    assert [file.name for file in path.parent.iterdir() if "corrupt" in file.name] == []


def test_a_file_that_breaks_under_us_is_noticed(path: Path) -> None:
    """A port that has it open goes on with a new file, and so does another that finds it moved."""
    first, second = open_store(f"sqlite:{path}").blocking(), open_store(f"sqlite:{path}").blocking()
    assert create(first, "k", 1) == Granted()
    assert isinstance(create(second, "k", 2), Held)
    first.close()
    second.close()
    broken_page(path)
    assert create(first, "k", 1) == Granted()
    assert isinstance(create(second, "k", 2), Held)
    first.close()
    second.close()


def test_a_file_that_was_removed_or_replaced_is_made_anew(path: Path) -> None:
    """Two ports never go on with two files under one name."""
    first, second = open_store(f"sqlite:{path}").blocking(), open_store(f"sqlite:{path}").blocking()
    assert create(first, "k", 1) == Granted()
    assert isinstance(create(second, "k", 2), Held)
    for file in list(path.parent.iterdir()):
        file.unlink()
    assert create(first, "k", 1) == Granted()
    assert isinstance(create(second, "k", 2), Held)
    shutil.rmtree(path.parent)
    assert create(second, "k", 2) == Granted()
    assert isinstance(create(first, "k", 1), Held)
    first.close()
    second.close()


def test_a_corrupt_file_is_moved_once_however_many_find_out(path: Path) -> None:
    """Six processes meet a corrupt file together: it is moved once, and each name has one holder."""
    open_store(f"sqlite:{path}").blocking().close()
    port = open_store(f"sqlite:{path}").blocking()
    create(port, "k", 1)
    port.close()
    garbage(path)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, f"sqlite:{path}", f"t{at}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for at in range(6)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    said = [child.communicate()[0].split() for child in children]
    for at in range(50):
        assert sorted(kinds[at] for kinds in said) == ["Granted", *["Held"] * 5]
    moved = [
        file
        for file in path.parent.iterdir()
        if ".corrupt-" in file.name and file.name[-4:] not in ("-wal", "-shm")
    ]
    assert len(moved) == 1


def test_who_finds_out_late_does_not_move_the_new_file(path: Path) -> None:
    """Two look at one corrupt file; the first moves it and begins a new one, which the second leaves in place."""
    port = open_store(f"sqlite:{path}").blocking()
    create(port, "k", 1)
    port.close()
    garbage(path)
    first, second = LeaseFile(path), LeaseFile(path)
    for file in (first, second):
        with pytest.raises(sqlite3.DatabaseError):
            file.begin(soon())
    first.move_aside(soon())
    assert create(port, "k", 1) == Granted()
    second.move_aside(soon())
    assert isinstance(create(port, "k", 2), Held)
    port.close()


def test_somebody_elses_database_is_left_alone(ask: Ask, tmp_path: Path) -> None:
    """An application's file is neither used nor moved, healthy or broken."""
    theirs = tmp_path / "app.db"
    with sqlite3.connect(theirs) as connection:
        connection.execute("CREATE TABLE orders (id)")
    connection.close()
    before = theirs.read_bytes()
    reply = ask(f"sqlite:{theirs}").call(Create("k", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert "somebody else's" in reply.reason
    assert theirs.read_bytes() == before
    broken_page(theirs)
    before = theirs.read_bytes()
    reply = ask(f"sqlite:{theirs}").call(Create("k", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert theirs.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if "corrupt" in file.name] == []


def test_a_file_of_another_format_is_left_alone(ask: Ask, path: Path) -> None:
    """A later version's lease file is not understood, and not touched."""
    port = open_store(f"sqlite:{path}").blocking()
    create(port, "k", 1)
    port.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    reply = ask(f"sqlite:{path}").call(Create("k", value(1), MINUTE_MS, soon()))
    assert isinstance(reply, StoreAbsent)
    assert "99" in reply.reason


# -- places that cannot be written

AS_NOBODY = """
import os, sys
from claimant.stores import open_store
from claimant._drive.clock import now_ms
from claimant._model.ops import Create
# What is imported late is imported now: another user may not be able to read our Python.
port = open_store(sys.argv[2]).blocking()
port.call(Create("k", "v", 60_000, now_ms() + 5_000))
port.close()
os.setgid(65534); os.setuid(65534)
print(open_store(sys.argv[1]).blocking().call(Create("k", "v", 60_000, now_ms() + 5_000)))
"""


def test_a_folder_that_cannot_be_written_is_absent_with_a_sentence(tmp_path: Path) -> None:
    """The reply names the file, the cause and a remedy; nothing is raised."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    if os.geteuid() == 0:
        # Root may write anywhere, so a child without that right looks.
        with tempfile.TemporaryDirectory(dir="/tmp") as open_to_all:
            Path(open_to_all).chmod(0o555)
            words = [f"sqlite:{open_to_all}/leases.db", f"sqlite:{tmp_path}/first.db"]
            said = subprocess.run(
                [sys.executable, "-c", AS_NOBODY, *words], capture_output=True, text=True, check=True
            ).stdout
    else:
        said = str(
            open_store(f"sqlite:{folder}/leases.db").blocking().call(Create("k", value(1), MINUTE_MS, soon()))
        )
    assert said.startswith("StoreAbsent")
    assert "leases.db" in said
    assert "Permission denied" in said
    assert "sqlite:/var/lib" in said


def test_a_path_that_cannot_be_a_file_is_absent(ask: Ask, tmp_path: Path) -> None:
    """A folder at the path, or a file where a folder must be: a sentence, in every request and in a scan."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "file" / "leases.db", tmp_path / "folder"):
        asked = ask(f"sqlite:{place}")
        assert isinstance(asked.call(Create("k", value(1), MINUTE_MS, soon())), StoreAbsent)
        replies = asked.call(Renew((Renewal("a", value(1), 1), Renewal("b", value(1), 1)), soon()))
        assert [type(reply) for reply in replies] == [StoreAbsent] * 2
        with pytest.raises(NotDone):
            asked.store.blocking().scan("", soon())


# -- a frozen writer


@pytest.fixture
def frozen(path: Path) -> Iterator[Callable[[], None]]:
    """Freezes the file in the hands of a stopped process; called, that process is thawed and ends."""
    port = open_store(f"sqlite:{path}").blocking()
    assert create(port, "held", 9) == Granted()
    port.close()
    code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN IMMEDIATE'); print('in', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGSTOP)

    def end() -> None:
        child.send_signal(signal.SIGCONT)
        child.kill()
        child.wait()

    yield end
    end()
    for stream in (child.stdin, child.stdout):
        assert stream is not None
        stream.close()


def test_a_frozen_writer_costs_one_deadline(ask: Ask, path: Path, frozen: Callable[[], None]) -> None:
    """Absent by the deadline, for the keeper's probe as well; when the writer is gone all goes on."""
    asked = ask(f"sqlite:{path}")
    for request in (Create("k", value(1), MINUTE_MS, now_ms() + 150), Peek("held", now_ms() + 400)):
        began = now_ms()
        reply = asked.call(request)
        assert isinstance(reply, StoreAbsent)
        assert "frozen" in reply.reason
        assert now_ms() - began < 900
    frozen()
    assert asked.call(Create("k", value(1), MINUTE_MS, soon())) == Granted()


def test_a_frozen_writer_does_not_block_the_loop(path: Path, frozen: Callable[[], None]) -> None:
    """While a claim waits for the file, the loop serves others; many claims at once all end by their deadline."""
    import asyncio

    async def main() -> int:
        port = open_store(f"sqlite:{path}").aio()
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticker = asyncio.ensure_future(tick())
        began = now_ms()
        replies = await asyncio.gather(
            *(port.call(Create(f"k{at}", value(at), 1_000, began + 200)) for at in range(10))
        )
        assert now_ms() - began < 800
        assert all(isinstance(reply, StoreAbsent) for reply in replies)
        ticker.cancel()
        await port.aclose()
        return ticks

    assert asyncio.run(main()) >= 10


def test_a_cancelled_claim_leaves_nothing_behind(path: Path, frozen: Callable[[], None]) -> None:
    """A create that is carried out after its caller was cancelled is taken back."""
    import asyncio

    async def main() -> None:
        port = open_store(f"sqlite:{path}").aio()
        task = asyncio.ensure_future(port.call(Create("k", value(1), MINUTE_MS, soon())))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        frozen()
        reply: object = None
        end = now_ms() + 5_000
        while reply != Vacant():  # the same thread answers, after what it still has to do
            assert now_ms() < end, "the create was carried out and not taken back"
            reply = await port.call(Peek("k", soon()))
        assert await port.call(Create("k", value(2), MINUTE_MS, soon())) == Granted()
        await port.aclose()

    asyncio.run(main())


def test_threads_take_turns_until_their_deadline(path: Path, frozen: Callable[[], None]) -> None:
    """A thread that waits for another thread's turn leaves at its own deadline."""
    port = open_store(f"sqlite:{path}").blocking()
    replies: list[object] = []
    long = threading.Thread(
        target=lambda: replies.append(port.call(Create("a", value(1), MINUTE_MS, now_ms() + 700)))
    )
    long.start()
    began = now_ms()
    reply = port.call(Create("b", value(1), MINUTE_MS, began + 100))
    assert now_ms() - began < 500
    assert isinstance(reply, StoreAbsent)
    long.join()
    assert isinstance(replies[0], StoreAbsent)
    port.close()
