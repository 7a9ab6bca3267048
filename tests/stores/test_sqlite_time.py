"""The embedded store seen from another time: reboots, containers with a clock of their own, clocks far ahead."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from claimant._drive.ports import StorePort
from claimant._model.ops import (
    Create,
    Granted,
    Held,
    NotOurs,
    Peek,
    Release,
    Released,
    Renew,
    Renewal,
    Renewed,
    Repair,
    Vacant,
)
from claimant.stores import open_store, sqlite_rows
from claimant.stores.sqlite import SqliteStore
from claimant.testing.store_suite import MINUTE_MS, soon, value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


def create(port: StorePort, key: str, holder: int, lifetime_ms: int = MINUTE_MS) -> object:
    return port.call(Create(key, value(holder, lifetime_ms), lifetime_ms, soon()))


class Host:
    """A clock and a domain that can be moved."""

    def __init__(self, domain: str, ms: int) -> None:
        self.domain = domain
        self.ms = ms

    def port(self, path: Path) -> StorePort:
        return SqliteStore(str(path), now_ms=lambda: self.ms, domain=lambda: self.domain).blocking()


def test_a_row_of_another_domain_is_held_for_one_full_lifetime(path: Path) -> None:
    """Its deadline means nothing here, far ahead or long past: it counts anew from the first claim that meets it."""
    for ahead in (-10_000_000, 10_000_000):
        there, here = Host("boot-1:4026", 50_000_000), Host("boot-2:4026", 50_000_000 + ahead)
        target = path.with_name(f"l{ahead}.db")
        assert create(there.port(target), "k", 1) == Granted()
        port = here.port(target)
        assert create(port, "k", 2) == Held(value(1), MINUTE_MS)
        here.ms += MINUTE_MS - 1
        assert create(port, "k", 2) == Held(value(1), 1)
        # A second process, started later, finds the countdown written down.
        here.ms += 1
        assert create(here.port(target), "k", 3) == Granted()


def test_a_look_starts_no_countdown(path: Path) -> None:
    """Peeking and scanning write nothing; only a claim does."""
    there, here = Host("a", 1_000), Host("b", 9_000_000)
    create(there.port(path), "k", 1)
    port = here.port(path)
    for _ in range(3):
        assert port.call(Peek("k", soon())) == Held(value(1), MINUTE_MS)
        assert [row.remaining_ms for row in port.scan("", soon())] == [MINUTE_MS]
        here.ms += MINUTE_MS
    assert create(port, "k", 2) == Held(value(1), MINUTE_MS)


def test_a_renewal_in_another_domain_starts_the_countdown_anew(path: Path) -> None:
    """A holder that renews in its own domain is never taken over from ours."""
    there, here = Host("a", 1_000), Host("b", 9_000_000)
    holder, port = there.port(path), here.port(path)
    create(holder, "k", 1)
    for _ in range(10):
        assert isinstance(create(port, "k", 2), Held)
        here.ms += MINUTE_MS * 2 // 3
        there.ms += MINUTE_MS * 2 // 3
        assert holder.call(Renew((Renewal("k", value(1), MINUTE_MS),), soon())) == (Renewed(),)
    assert create(port, "k", 2) == Held(value(1), MINUTE_MS)
    here.ms += MINUTE_MS
    assert create(port, "k", 2) == Granted()
    assert holder.call(Renew((Renewal("k", value(1), MINUTE_MS),), soon())) == (NotOurs(),)


def test_contenders_of_two_domains_do_not_restart_each_others_countdown(path: Path) -> None:
    """A dead holder's lease ends after one lifetime, however many domains look at it in turn."""
    create(Host("dead", 5).port(path), "k", 1)
    hosts = [Host("a", 1_000), Host("b", 9_000_000), Host("c", 77)]
    ports = [host.port(path) for host in hosts]
    for at in range(60):
        reply = create(ports[at % 3], "k", 2)
        assert isinstance(reply, Held), at
        for host in hosts:
            host.ms += 1_000
    assert create(ports[0], "k", 2) == Granted()


def test_a_lapsed_lease_is_not_revived_from_another_domain(path: Path) -> None:
    """Renewal and release by the token's owner obey the countdown that a claim has started."""
    there, here = Host("a", 1_000), Host("b", 9_000_000)
    create(there.port(path), "k", 1)
    port = here.port(path)
    assert isinstance(create(port, "k", 2), Held)
    here.ms += MINUTE_MS
    assert port.call(Renew((Renewal("k", value(1), MINUTE_MS),), soon())) == (NotOurs(),)
    assert port.call(Release("k", value(1), soon())) == NotOurs()
    assert port.call(Peek("k", soon())) == Vacant()


def test_a_deadline_beyond_the_lifetime_is_shown_and_repaired(path: Path) -> None:
    """A clock that was far ahead leaves a deadline far ahead: the time left says so, and a repair ends it."""
    host = Host("a", 90_000_000)
    port = host.port(path)
    create(port, "k", 1)
    host.ms = 1_000
    assert create(port, "k", 2) == Held(value(1), 90_000_000 - 1_000 + MINUTE_MS)
    assert port.call(Repair("k", value(1), MINUTE_MS, soon())) == Renewed()
    assert create(port, "k", 2) == Held(value(1), MINUTE_MS)


def test_what_has_lapsed_is_cleaned_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that lapsed go with later claims; foreign ones after their countdown; live ones stay."""
    monkeypatch.setattr(sqlite_rows, "SWEEP_EVERY", 1)
    there, here = Host("a", 1_000), Host("b", 9_000_000)
    foreign = there.port(path)
    for at in range(20):
        create(foreign, f"foreign{at}", 1)
    port = here.port(path)
    for at in range(20):
        create(port, f"old{at}", 1)
    here.ms += MINUTE_MS
    create(port, "live", 1, 100 * MINUTE_MS)

    def rows(table: str) -> int:
        connection = sqlite3.connect(path)
        [(count,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
        connection.close()
        return int(count)

    assert rows("leases") == 1
    assert rows("sightings") == 0
    assert isinstance(create(port, "live", 2), Held)


OTHER_CLOCK = """
import sys
from claimant.stores import open_store
from claimant._drive.clock import now_ms
from claimant._model.ops import Create
print(open_store(sys.argv[1]).blocking().call(Create("k", "c1|t2|60000|h", 60_000, now_ms() + 5_000)))
"""


def test_a_real_time_namespace_is_another_domain(path: Path) -> None:
    """A process whose boot clock runs a day ahead does not take a live claim, and does not shorten it."""
    unshare = shutil.which("unshare")
    probe = [unshare or "unshare", "--time", "--boottime", "100000", "--fork", "true"]
    if (
        unshare is None
        or os.geteuid() != 0
        or subprocess.run(probe, capture_output=True, check=False).returncode
    ):
        # Without the right to make one, the property is held by the tests of the seam above.
        return
    port = open_store(f"sqlite:{path}").blocking()
    assert create(port, "k", 1) == Granted()
    said = subprocess.run(
        [
            unshare,
            "--time",
            "--boottime",
            "100000",
            "--fork",
            sys.executable,
            "-c",
            OTHER_CLOCK,
            f"sqlite:{path}",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith("Held")
    assert "remaining_ms=60000" in said
    assert port.call(Renew((Renewal("k", value(1), MINUTE_MS),), soon())) == (Renewed(),)
    assert port.call(Release("k", value(1), soon())) == Released()
    port.close()
