"""Two hundred `claimant run` at once, as a fleet's crontab starts them: on one host's files, and on servers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from claimant import Claimant
from claimant.ledger import init
from claimant.testing.faults import held_by_another
from tests.cli.commands import alive, environ, words
from tests.face.outside import ask
from tests.support.servers import wait

POLITELY = ("nice", "-n", "19")
"""Other tests measure what a deadline is, on the same machine."""

# Whole processes, as far as the system goes, of an interpreter that has imported everything: they are at the servers within
# a second of each other, which two hundred interpreters that start on two cores are not.
_BURST = """
import json, os, sys
import psycopg, redis
import claimant.cli.starting, claimant.cli.supervise, claimant.ledger.postgres, claimant.stores.redis
from claimant.cli import main
line, starts = json.loads(sys.argv[1]), int(sys.argv[2])
wait, go = os.pipe()
started = {}
for number in range(starts):
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(wait, 1)
        os.dup2(os.open(f"errors-{number}", os.O_WRONLY | os.O_CREAT), 2)
        main(line)
    started[pid] = number
os.close(go)
ended = []
for _ in range(starts):
    pid, status = os.wait()
    ended.append((os.waitstatus_to_exitcode(status), open(f"errors-{started[pid]}").read()))
print(json.dumps(ended))
"""


def burst(kind: str, arguments: list[str], starts: int, folder: Path, mark: str) -> list[tuple[int, str]]:
    """Start all at once; exit code and errors of each."""
    variables = environ(CLAIMANT_TEST_BURST=mark, PYTHONPYCACHEPREFIX=str(folder / "compiled"))
    # Two hundred processes that compile everything anew would measure the compiler.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    if kind == "servers":
        line = [*POLITELY, sys.executable, "-c", _BURST, json.dumps(arguments[3:]), str(starts)]
        said = subprocess.run(
            line, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True, timeout=120, check=True
        )
        return [(code, errors) for code, errors in json.loads(said.stdout)]
    started = [
        subprocess.Popen(
            [*POLITELY, *arguments],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(starts)
    ]
    ended = []
    for process in started:
        _, errors = process.communicate(timeout=120)
        ended.append((process.returncode, errors))
    return ended


def marked(mark: str) -> list[str]:
    """The processes that a burst has left, wherever they were re-parented to."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CLAIMANT_TEST_BURST") == mark and alive(process.pid):
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def connections(store: str, dsn: str) -> int:
    """How many there are to both servers, beside the two that ask."""
    with psycopg.connect(dsn) as asking:
        row = asking.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return len(ask(store, "CLIENT LIST")) - 1 + int(row[0])


@pytest.mark.parametrize("kind", ["embedded", "servers"])
def test_of_many_starts_at_once_one_runs(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Two hundred at once on one name and slot: one runs, the others skip, and no process and no connection is left."""
    dsn = store = ""
    if kind == "servers":
        dsn = request.getfixturevalue("pg_dsn")
        store = request.getfixturevalue("private_valkey")().url
        init(dsn)
        places = ["--store", f"{store}?deadline=20s", "--ledger", f"{dsn}?deadline=20s"]
    else:
        store_file, ledger_file = tmp_path / "leases.db", tmp_path / "ledger.db"
        places = ["--store", f"sqlite:{store_file}?deadline=20s", "--ledger", f"sqlite:{ledger_file}"]
    starts = 200
    command = ("sh", "-c", "echo x >> ran; sleep 1")
    options = ("--stake", "rebuild", "--slot", "tonight", "-E", "99")
    mark = str(tmp_path)
    warm = words("warm", *places, "--stake", "rebuild", command=("true",))
    assert burst(kind, warm, 1, tmp_path, mark) == [(0, "")]
    ended = burst(kind, words("rebuild", *places, *options, command=command), starts, tmp_path, mark)
    codes = [code for code, _ in ended]
    assert (codes.count(0), codes.count(99)) == (1, starts - 1), [
        line for code, line in ended if code not in (0, 99)
    ]
    assert (tmp_path / "ran").read_text() == "x\n"
    skips = [line for code, line in ended if code == 99]
    assert all(
        re.match(r"claimant: rebuild skipped: (held by|slot tonight was done)", line) for line in skips
    ), skips
    assert marked(mark) == []
    if kind == "servers":
        wait(lambda: connections(store, dsn) == 0, "the last connection to be closed", 10)
    with Claimant(places[1], ledger=places[3]) as claims:
        [row] = claims.ledger.jobs("rebuild")
        assert row.runs == 1
        with held_by_another(claims, "rebuild"):
            pass  # nobody holds it any more
