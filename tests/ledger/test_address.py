"""What may be a ledger, and what is told of everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from claimant._model.errors import Refused
from claimant.ledger import open_ledger, sql_for
from claimant.ledger.address import PostgresPlace, place_of


@pytest.mark.parametrize(
    ("target", "code", "says"),
    [
        ("memory:", "CLM081", "may forget"),
        ("redis://localhost/0", "CLM081", "redis"),
        ("rediss://h", "CLM081", "durable"),
        ("valkey://h", "CLM081", "durable"),
        ("redis+sentinel://h/name", "CLM081", "durable"),
        ("memcached://h", "CLM081", "durable"),
        ("sqlite::memory:", "CLM081", "outlive"),
        ("sqlite:", "CLM082", "path of a file"),
        ("sqlite:a\0b", "CLM082", "path of a file"),
        ("sqlite:///x.db", "CLM082", "sqlite:PATH"),
        ("sqlite:x.db?mode=ro", "CLM082", "mode=ro"),
        ("postgresql:app", "CLM082", "two slashes"),
        ("mysql://h/d", "CLM082", "sqlite:PATH"),
        ("etcd://h", "CLM082", "sqlite:PATH"),
        ("ledger.db", "CLM082", "sqlite:PATH"),
        ("", "CLM082", "sqlite:PATH"),
        (None, "CLM082", "NoneType"),
        ("sqlite:x.db?deadline=never", "CLM010", "deadline"),
        ("sqlite:x.db?deadline=0", "CLM010", "deadline"),
    ],
)
def test_what_cannot_be_a_ledger_is_refused_with_what_to_write(target: str, code: str, says: str) -> None:
    """Volatile, unknown and unreadable targets are refused by code, in a sentence."""
    with pytest.raises(Refused, match=says) as caught:
        open_ledger(target)
    assert caught.value.code == code


def test_a_bad_target_shows_no_password() -> None:
    """The refusal of an unknown scheme does not repeat the URL."""
    with pytest.raises(Refused) as caught:
        open_ledger("mysql://me:hunter2@h/d")
    assert "hunter2" not in str(caught.value)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths are of the working folder at opening, "~" is the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = {
        text: open_ledger(text).address
        for text in ("sqlite:a.db", "sqlite:~/b.db", f"sqlite:{tmp_path}/c d.db?deadline=2s")
    }
    assert list(found.values()) == [f"sqlite:{tmp_path}/{rest}" for rest in ("a.db", "home/b.db", "c d.db")]


def test_the_deadline_is_ours() -> None:
    """`?deadline=` is taken from the URL, wins over the argument, and leaves the other options as they were."""
    assert open_ledger("sqlite:x.db").deadline_ms == 1_000
    assert open_ledger("sqlite:x.db", deadline_ms=70).deadline_ms == 70
    assert open_ledger("sqlite:x.db?deadline=250ms", deadline_ms=70).deadline_ms == 250
    place = place_of("postgres://h/d?sslmode=require&deadline=2s&options=-c%20work_mem%3D1MB")
    assert isinstance(place, PostgresPlace)
    assert (place.deadline_ms, place.url) == (
        2_000,
        "postgresql://h/d?sslmode=require&options=-c%20work_mem%3D1MB",
    )


@pytest.mark.parametrize(
    "rest",
    [
        "me:hunter2@h:5433,h2/d?sslmode=require",
        "me:hunter%32@h/d",
        "me@h/d?password=hunter2",
        "me:hunter2/x@h/d",
        ":hunter2@h/d",
    ],
)
def test_passwords_are_in_no_address(rest: str) -> None:
    """However it is written, right or wrong, the password is in neither address nor repr."""
    place = place_of(f"postgresql://{rest}")
    assert isinstance(place, PostgresPlace)
    for text in (place.address, repr(place), str(place)):
        assert "hunter" not in text
    assert place.address.startswith("postgresql://")


def test_texts_from_elsewhere_lose_the_password() -> None:
    """A driver's message is shown without the password in it, encoded or not."""
    place = place_of("postgresql://me:p%40ss@h/d")
    assert isinstance(place, PostgresPlace)
    assert place.shown("bad p%40ss, bad p@ss") == "bad ***, bad ***"


def test_sql_is_printed_without_a_server() -> None:
    """`sql_for` gives each database its own words."""
    assert "BYTEA" in sql_for("postgresql://nowhere.invalid/d")
    assert "BLOB" in sql_for("sqlite:x.db")
    assert "BYTEA" not in sql_for("sqlite:x.db")


@pytest.mark.parametrize("rest", ["me:hunter2?x@h/d", "me:hunter2@h/d?deadlin=1s", "me:hunter2@h/d?nosuch=1"])
def test_an_option_that_nobody_knows_is_refused_when_the_ledger_is_opened(rest: str) -> None:
    """A typing error in an option is no outage; the password is not in the refusal."""
    with pytest.raises(Refused, match="CLM082") as refused:
        place_of(f"postgresql://{rest}")
    assert "hunter" not in str(refused.value)


def test_a_near_miss_is_named_and_libpq_keeps_its_own() -> None:
    """`?deadlin=` asks whether the deadline was meant; what libpq knows is left to it, untouched."""
    with pytest.raises(Refused, match=r"did you mean deadline\?"):
        open_ledger("postgresql://h/d?deadlin=1s")
    libpq = (
        "sslmode=require&options=-c%20x%3D1&application_name=shop&connect_timeout=3&target_session_attrs=any"
    )
    place = place_of(f"postgresql://h/d?{libpq}")
    assert isinstance(place, PostgresPlace)
    assert place.url == f"postgresql://h/d?{libpq}"


def test_no_parameter_of_libpq_is_refused() -> None:
    """Every keyword that the installed libpq takes in a URL is on our list."""
    from psycopg import pq

    from claimant.ledger.address import _LIBPQ

    assert {option.keyword.decode() for option in pq.Conninfo.get_defaults()} <= _LIBPQ
