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
from claimant._model.records import Began, Begin, CloseSlot
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
        connection.execute("UPDATE claimant_ledger SET version = 9, compatible = 9")
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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda url: url.rpartition("/")[0] + "/nosuch", 'database "nosuch" does not exist'),
        (lambda url: url.replace("postgres@", "nobody@"), 'role "nobody" does not exist'),
        (lambda url: f"{url}?sslmode=require", "SSL"),
        (lambda url: f"{url}?sslmode=perhaps", "sslmode"),
    ],
    ids=["database", "user", "no ssl", "sslmode"],
)
def test_what_will_never_answer_is_no_outage(
    pg_url: str, opened: Open, change: Callable[[str], str], says: str
) -> None:
    """A place that is wrong for ever is refused at the first start, with what to do; the end of a run is never masked by it."""
    ledger = opened(change(pg_url))
    asked: list[Callable[[], object]] = [
        lambda: ledger.call(Begin(started())),
        ledger.now,
        ledger.jobs,
        lambda: init(change(pg_url)),
    ]
    for ask in asked:
        with pytest.raises(Refused, match="CLM083") as caught:
            ask()
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
    for request in (ended(started()), CloseSlot("r")):
        with pytest.raises(LedgerAbsent, match="CLM083"):
            ledger.call(request)


def test_a_place_that_answered_once_may_be_away(pg_dsn: str) -> None:
    """Once it has answered, "does not exist" is an outage of a running fleet, and stops nobody's work."""
    init(pg_dsn)
    ledger = open_ledger(pg_dsn)
    ledger.call(Begin(started()))
    ledger.close()
    server, _, name = pg_dsn.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" RENAME TO "{name}_gone"')
        try:
            with pytest.raises(LedgerAbsent, match="does not exist"):
                ledger.call(Begin(started()))
        finally:
            connection.execute(f'ALTER DATABASE "{name}_gone" RENAME TO "{name}"')
    assert isinstance(ledger.call(Begin(started())), Began)
    ledger.close()


def test_an_unknown_host_is_an_outage() -> None:
    """Names come and go with the network: a host that is not found now is absent, not refused."""
    ledger = open_ledger("postgresql://someone@nosuch.invalid/app?deadline=5s")
    with pytest.raises(LedgerAbsent):
        ledger.call(Begin(started()))
    ledger.close()
