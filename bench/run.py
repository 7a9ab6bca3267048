"""`make bench`: the rows of the speed table, beside peers and the floor, as ratios of one run.

Every contender is a process of its own; they are asked in shuffled turns, and a ratio is the median of the ratios within
each round, so that what a noisy machine does to one round it does to all of them. Absolute figures are shown and mean
little. A benchmark fails no build: it says which rows are reached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tests.support import servers  # noqa: E402 - the servers that the tests start

PEERS = ("raw redis-py", "redis-py Lock", "python-redis-lock")
OURS = ("claimant hold", "claimant flows")


class Contender:
    """A process that measures when it is told to."""

    def __init__(self, python: str, name: str, url: str, folder: str) -> None:
        self.process = subprocess.Popen(
            [python, str(HERE / "contender.py"), name, url],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a peer logs each refusal
            text=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit(f"bench: {name} did not start")

    def measure(self, what: str, times: int) -> float:
        """Microseconds for each, or a number for "threads"."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {times}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """Its input ends, and so does it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


@contextmanager
def contenders(peers: str, url: str, folder: str) -> Iterator[dict[str, Contender]]:
    """All of them, warmed up."""
    with ExitStack() as stack:
        found = {}
        for name in ("floor", *PEERS, *OURS):
            python = peers if name in PEERS else sys.executable
            found[name] = Contender(python, name, url, folder)
            stack.callback(found[name].close)
        yield found


def rounds_of(found: dict[str, Contender], what: str, rounds: int, times: int) -> dict[str, list[float]]:
    """Each contender's figures, by round."""
    figures: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name in random.sample(list(found), len(found)):
            figures[name].append(found[name].measure(what, times))
    return figures


def ratio(figures: dict[str, list[float]], ours: str, theirs: str) -> dict[str, float]:
    """The median of the ratios within each round, with its quartiles."""
    ratios = [mine / other for mine, other in zip(figures[ours], figures[theirs], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": round(middle, 3), "low": round(low, 3), "high": round(high, 3)}


def allocations(python: str, name: str, url: str, folder: str) -> float | None:
    """How often a cycle asks for memory: calls of malloc, calloc and realloc, with Python's own pools off.

    Counted by glibc's libmemusage, in a process with few cycles and in one with many. None where there is no glibc.
    """
    environ = os.environ | {"PYTHONMALLOC": "malloc", "LD_PRELOAD": "libmemusage.so"}
    counts = []
    for cycles in (500, 2_500):
        said = subprocess.run(
            [python, str(HERE / "contender.py"), name, url, str(cycles)],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        plain = re.sub(r"\x1b\[[0-9;]*m", "", said)
        counts.append(
            sum(int(calls) for calls in re.findall(r"^\W*(?:m|c|re)alloc\|\s+(\d+)", plain, re.MULTILINE))
        )
    return (counts[1] - counts[0]) / 2_000 if all(counts) else None


def commands(found: Contender, url: str, what: str) -> float:
    """Commands that the server carries out for one of them."""
    import redis

    client = redis.Redis.from_url(url)

    def done() -> int:
        return sum(
            each["calls"]
            for name, each in client.info("commandstats").items()
            if name not in ("cmdstat_info", "cmdstat_config|resetstat")
        )

    before = done()
    found.measure(what, 100)
    said = (done() - before) / 100
    client.close()
    return said


def processes(lines: dict[str, list[str]], rounds: int, environ: dict[str, str]) -> dict[str, list[float]]:
    """Whole processes, in shuffled turns; milliseconds."""
    figures: dict[str, list[float]] = {name: [] for name in lines}
    for turn in range(rounds + 1):
        for name in random.sample(list(lines), len(lines)):
            began = time.perf_counter()
            subprocess.run(lines[name], env=environ, check=True, stdout=subprocess.DEVNULL)
            if turn:  # the first writes the byte code
                figures[name].append((time.perf_counter() - began) * 1e3)
    return figures


def row(rows: list[dict[str, Any]], what: str, found: Any, limit: float, peer: str = "") -> None:
    """One row of the table. `found`: a ratio, a figure, or None for what is not there or could not be measured."""
    value = found["median"] if isinstance(found, dict) else found
    spread = f"{found['low']:.2f} to {found['high']:.2f}" if isinstance(found, dict) else ""
    rows.append(
        {
            "row": what,
            "value": value,
            "spread": spread,
            "at most": limit,
            "reached": value is not None and bool(value <= limit),
            "peer": peer,
        }
    )


def measured(arguments: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    """Everything, on servers that are started for it and stopped with `stack`."""
    rounds = arguments.rounds
    rows: list[dict[str, Any]] = []
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    valkey = servers.valkey()
    stack.callback(valkey.stop)
    import redis

    with redis.Redis.from_url(valkey.url) as client:
        client.set("bench:held", "held", px=600_000)
    with contenders(arguments.peers, valkey.url, folder) as found:
        cycle = rounds_of(found, "cycle", rounds, 200)
        failed = rounds_of(found, "failed", rounds, 200)
        threads = found["claimant hold"].measure("threads", 1_000)
        sent = {what: commands(found["claimant hold"], valkey.url, what) for what in ("cycle", "failed")}
    beside = ", ".join(
        f"{name} {ratio(cycle, name, 'raw redis-py')['median']:.2f}"
        for name in ("redis-py Lock", "python-redis-lock", "floor")
    )
    for ours in OURS:
        row(rows, f"cycle of {ours} / raw redis-py", ratio(cycle, ours, "raw redis-py"), 0.65, beside)
        row(rows, f"cycle of {ours} / floor", ratio(cycle, ours, "floor"), 2.0)
    beside = ", ".join(
        f"{name} {ratio(failed, name, 'raw redis-py')['median']:.2f}"
        for name in ("redis-py Lock", "python-redis-lock")
    )
    for ours in OURS:
        row(
            rows,
            f"refused {ours}, with holder and time left / raw redis-py's bare SET",
            ratio(failed, ours, "raw redis-py"),
            1.0,
            beside,
        )
    row(rows, "commands of a cycle", sent["cycle"], 2)
    row(rows, "commands of a refused claim", sent["failed"], 2)
    row(rows, "commands for a name that is held in this process: not offered", None, 0)
    row(rows, "threads started in 1,000 cycles", threads, 0)
    asked = {}
    for name in ("raw redis-py", "redis-py Lock", "python-redis-lock", *OURS):
        python = arguments.peers if name in PEERS else sys.executable
        asked[name] = allocations(python, name, valkey.url, folder)
    known = {name: count for name, count in asked.items() if count}
    part = {
        name: round(count / known["raw redis-py"], 3)
        for name, count in known.items()
        if "raw redis-py" in known
    }
    row(
        rows,
        "allocations of a cycle (`hold`) / raw redis-py",
        part.get("claimant hold"),
        0.35,
        ", ".join(f"{name} {value:.2f}" for name, value in part.items() if name in PEERS[1:]),
    )
    postgres = servers.postgres(fsync=True)
    stack.callback(postgres.stop)
    said = subprocess.run(
        [sys.executable, str(HERE / "guard.py"), postgres.url, str(rounds)],
        capture_output=True,
        text=True,
        check=True,
    )
    guard = json.loads(said.stdout)
    row(
        rows, "guarded transaction of our own / bare, durable PostgreSQL", ratio(guard, "owned", "bare"), 1.45
    )
    row(rows, "guarded inside the caller's / bare, durable PostgreSQL", ratio(guard, "joined", "bare"), 2.0)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = f"{folder}/pycache"
    places = ["--store", f"sqlite:{folder}/leases.db", "--ledger", f"sqlite:{folder}/ledger.db"]
    command = ["run", "bench", *places, "--stake", "rebuild", "--", "true"]
    whole = processes(
        {
            "pass": [sys.executable, "-c", "pass"],
            "import": [sys.executable, "-c", "import claimant"],
            "run": [str(Path(sys.executable).with_name("claimant")), *command],
        },
        rounds,
        environ,
    )
    over = [mine - bare for mine, bare in zip(whole["import"], whole["pass"], strict=True)]
    row(rows, "`import claimant` over bare Python, ms", round(statistics.median(over), 1), 60)
    row(rows, "`claimant run … -- true` / `python -c pass`, whole processes", ratio(whole, "run", "pass"), 6)
    figures = {
        "cycle_us": {name: round(statistics.median(each), 1) for name, each in cycle.items()},
        "refused_us": {name: round(statistics.median(each), 1) for name, each in failed.items()},
        "guard_us": {name: round(statistics.median(each), 1) for name, each in guard.items()},
        "process_ms": {name: round(statistics.median(each), 1) for name, each in whole.items()},
        "allocations": asked,
    }
    return {
        "when": datetime.now(tz=UTC).date().isoformat(),
        "rounds": rounds,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "rows": rows,
        "figures": figures,
    }


def shown(found: dict[str, Any]) -> str:
    """The table for a terminal."""
    lines = []
    for each in found["rows"]:
        mark = "reached" if each["reached"] else "NOT reached"
        spread = f" ({each['spread']})" if each["spread"] else ""
        peer = f"; {each['peer']}" if each["peer"] else ""
        value = "not there" if each["value"] is None else f"{each['value']:g}"
        lines.append(f"{mark:11}  {value}{spread}, at most {each['at most']:g}: {each['row']}{peer}")
    return "\n".join(lines)


def page(found: dict[str, Any]) -> str:
    """The same as a page of the documentation."""
    lines = [
        "# Performance",
        "",
        'This page is written by `make bench ARGS="--page docs/reference/performance.md"`, on servers that it starts and stops.',
        f"This one: {found['when']}, Python {found['python']}, {found['machine']}, {found['cores']} cores, {found['rounds']} rounds.",
        "",
        "Only ratios mean something. They are medians of the ratios within each round, with the quartiles behind them; in each",
        "round all contenders have their turn, in another order. A *cycle* is a create and a release that checks the token, with nobody",
        "else there. *Raw redis-py* is `SET NX PX` and a script, with hiredis. The *floor* is a blocking socket and hand-written",
        "protocol. *Flows* are our decisions below the face, *hold* is `with claims.hold(…)`. An *allocation* is one call of malloc,",
        "calloc or realloc, with Python's own pools off.",
        "",
        "| figure | here | at most | reached | peers |",
        "|---|---|---|---|---|",
    ]
    for each in found["rows"]:
        value = "not there" if each["value"] is None else f"{each['value']:g}"
        spread = f" ({each['spread']})" if each["spread"] else ""
        reached = "yes" if each["reached"] else "**no**"
        lines.append(
            f"| {each['row']} | {value}{spread} | {each['at most']:g} | {reached} | {each['peer']} |"
        )
    lines += [
        "",
        "The guard's ratios depend on what a commit costs: the quicker the disk, the more the guard's own round trip weighs. Here the bare",
        f"transaction took {found['figures']['guard_us']['bare']:.0f} µs. A refused claim is one round trip where this process was refused under that name",
        "before, and two the first time.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print the table, and write the JSON where it was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write everything here as well")
    parser.add_argument("--page", type=Path, help="write the documentation's page here as well")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        found = measured(arguments, stack)
    print(shown(found))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    if arguments.page is not None:
        arguments.page.write_text(page(found))


main()
