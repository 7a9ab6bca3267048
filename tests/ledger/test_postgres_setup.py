"""The ledger in PostgreSQL before it works: tables, versions, drivers, rights, passwords."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from claimant._model.errors import LedgerAbsent, LedgerCorrupt, Refused
from claimant._model.records import Began, Begin
from claimant.ledger import init, open_ledger, schema_sql
from claimant.testing.ledger_rows import ended, started
from tests.ledger.conftest import Open
from tests.support.servers import Server


@pytest.mark.parametrize("partly", [False, True])
def test_jobs_never_make_the_tables(pg_dsn: str, opened: Open, partly: bool) -> None:
    """A database without our tables is a mistake in the set-up: refused, with the command that mends it."""
    if partly:
        init(pg_dsn)
        with psycopg.connect(pg_dsn) as connection:
            connection.execute("DROP TABLE claimant_runs")
    ledger = opened(pg_dsn)
    with pytest.raises(Refused, match=r"CLM080.*claimant init --ledger postgresql://"):
        ledger.call(Begin(started()))
    with pytest.raises(LedgerAbsent, match="claimant init"):
        ledger.call(ended(started()))  # the body has run: its result goes first
    init(pg_dsn)
    assert ledger.call(Begin(started())) == Began(1, 0)


def test_init_may_be_repeated_and_keeps_what_is_there(pg_url: str, opened: Open) -> None:
    """A second `init` changes nothing; the printed schema is the same one."""
    ledger = opened(pg_url)
    ledger.call(Begin(started()))
    assert init(pg_url) == ledger.address
    with psycopg.connect(pg_url) as connection:
        connection.execute(schema_sql("postgresql").encode())
    assert ledger.jobs()[0].runs == 1


def test_two_inits_take_turns(pg_dsn: str) -> None:
    """An `init` waits while another is at it, and then finds everything there."""
    from claimant.ledger.postgres import _INIT_LOCK

    done: list[str] = []
    thread = threading.Thread(target=lambda: done.append(init(pg_dsn)))
    with psycopg.connect(pg_dsn, autocommit=True) as other:
        other.execute(f"SELECT pg_advisory_lock({_INIT_LOCK})")
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until = time.monotonic() + 10
        while not other.execute(waits).fetchall()[0][0]:
            assert time.monotonic() < until, "it did not wait"
        assert done == []
    thread.join(10)
    assert done == [pg_dsn]


def test_a_newer_schema_is_not_written(pg_url: str, opened: Open) -> None:
    """A ledger that a newer version made is refused with the advice to upgrade."""
    with psycopg.connect(pg_url) as connection:
        connection.execute("UPDATE claimant_ledger SET version = 9")
    with pytest.raises(LedgerCorrupt, match="Upgrade claimant"):
        opened(pg_url).call(Begin(started()))
    with pytest.raises(LedgerCorrupt, match="Upgrade claimant"):
        init(pg_url)


def test_a_missing_driver_says_what_to_install() -> None:
    """Without psycopg the first call, not the opening, names the extra."""
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from claimant.ledger import open_ledger\n"
        "ledger = open_ledger('postgresql://h/d')\n"
        "try: ledger.now()\nexcept Exception as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'claimant[postgres]'" in said


def test_a_password_is_shown_nowhere(private_postgres: Callable[..., Server]) -> None:
    """Neither the right nor a wrong password is in an error, an address or a repr, in whatever form it was given."""
    server = private_postgres(fsync=False, password="s3cret%2Fword")
    right = server.url.replace("s3cret%2Fword", "s3cret%252Fword")
    init(right)
    wrong = server.url.replace("s3cret%2Fword", "hunter%2Ftwo")
    texts = []
    for url in (wrong, f"postgresql://postgres@127.0.0.1:{server.port}/postgres?password=hunter%2Ftwo"):
        ledger = open_ledger(url)
        with pytest.raises(Refused, match="CLM083") as caught:
            ledger.call(Begin(started()))
        texts += [
            str(caught.value),
            repr(caught.value),
            repr(ledger),
            ledger.address,
            repr(caught.value.__cause__),
        ]
        texts += [repr(ledger.__dict__)]
        ledger.close()
    with pytest.raises(Refused, match="CLM083") as caught:
        init(wrong)
    texts.append(str(caught.value))
    good = open_ledger(right)
    texts.append(good.address)
    good.close()
    assert not [text for text in texts if "hunter" in text or "s3cret" in text]
    assert "authentication" in texts[0]


def test_a_read_only_database_is_absent(pg_url: str) -> None:
    """A standby or a read-only session is told as such."""
    ledger = open_ledger(
        f"{pg_url}?options=-c%20transaction_read_only%3Don%20-c%20default_transaction_read_only%3Don"
    )
    assert ledger.now()
    ledger.close()
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    limited = open_ledger(pg_url.replace("postgres@", "reader@"))
    try:
        with pytest.raises(LedgerAbsent, match="Grant its user"):
            limited.call(Begin(started()))
    finally:
        limited.close()
        with psycopg.connect(pg_url, autocommit=True) as connection:
            connection.execute("DROP OWNED BY reader")
            connection.execute("DROP ROLE reader")
