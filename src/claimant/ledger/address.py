"""Where a ledger is: `sqlite:PATH` or `postgresql://…`, and a sentence for everything that cannot be one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from claimant._model.durations import duration_ms
from claimant._model.errors import Refused
from claimant._model.record import record

_VOLATILE = {
    *("memory", "redis", "rediss", "valkey", "valkeys", "memcached"),
    *(
        "redis+sentinel",
        "rediss+sentinel",
        "valkey+sentinel",
        "redis+cluster",
        "rediss+cluster",
        "valkey+cluster",
    ),
}
_WRITE = "write sqlite:PATH for one host, or postgresql://user@host/database for several"

_LIBPQ = frozenset(
    [
        "application_name",
        "authtype",
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "dbname",
        "fallback_application_name",
        "gssdelegation",
        "gssencmode",
        "gsslib",
        "host",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "krbsrvname",
        "load_balance_hosts",
        "max_protocol_version",
        "min_protocol_version",
        "oauth_client_id",
        "oauth_client_secret",
        "oauth_issuer",
        "oauth_scope",
        "options",
        "passfile",
        "password",
        "port",
        "replication",
        "require_auth",
        "requirepeer",
        "requiressl",
        "scram_client_key",
        "scram_server_key",
        "service",
        "servicefile",
        "ssl",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcertmode",
        "sslcompression",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslkeylogfile",
        "sslmode",
        "sslnegotiation",
        "sslpassword",
        "sslrootcert",
        "sslsni",
        "target_session_attrs",
        "tcp_user_timeout",
        "tty",
        "user",
    ]
)
"""What libpq takes after "?" (PostgreSQL 18, "Parameter Key Words"), so that an unknown option is refused without it."""
_SECRET = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


@record
class SqlitePlace:
    """A file on this host."""

    path: Path
    deadline_ms: int | None

    @property
    def address(self) -> str:
        """For people."""
        return f"sqlite:{self.path}"


@record
class PostgresPlace:
    """A database. `url` is what libpq is given, password and all; it is never shown."""

    url: str
    address: str
    deadline_ms: int | None
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return f"PostgresPlace({self.address!r})"

    def shown(self, text: str) -> str:
        """A text from elsewhere, without our password in it."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def place_of(target: str) -> SqlitePlace | PostgresPlace:
    """The place that a target names. Raises `Refused` (CLM081, CLM082, CLM010)."""
    if not isinstance(target, str):
        raise Refused("CLM082", f"ledger must be text, not {type(target).__name__}; {_WRITE}")
    scheme, colon, rest = target.partition(":")
    match scheme.lower() if colon else "":
        case "sqlite":
            return _sqlite(rest)
        case "postgresql" | "postgres":
            return _postgres(rest)
        case volatile if volatile in _VOLATILE:
            raise Refused(
                "CLM081",
                f'a {volatile} store cannot be the ledger: it may forget, and a forgotten "done" is a second run. The ledger '
                f"says what was completed, so it must be durable; {_WRITE}",
            )
        case other:
            named = f"the scheme {other!r}" if re.fullmatch(r"[a-z][a-z0-9+.-]*", other) else "this text"
            raise Refused("CLM082", f"{named} does not name a ledger; {_WRITE}")


def _sqlite(rest: str) -> SqlitePlace:
    path, deadline_ms, others = _options(rest)
    if others:
        raise Refused("CLM082", f"sqlite: has no option {others[0]!r}; the only one is ?deadline=1s")
    if path.startswith("//"):
        raise Refused(
            "CLM082",
            "sqlite:// is read in different ways by different tools; write sqlite:PATH, for instance sqlite:jobs/ledger.db "
            "or sqlite:/var/lib/app/ledger.db",
        )
    if path == ":memory:":
        raise Refused(
            "CLM081",
            "sqlite::memory: cannot be the ledger: it ends with the process, and completion must outlive it; name a file, "
            "sqlite:PATH",
        )
    if not path or "\0" in path:
        raise Refused("CLM082", "sqlite: needs the path of a file, for instance sqlite:ledger.db")
    try:
        return SqlitePlace(Path(path).expanduser().absolute(), deadline_ms)
    except RuntimeError as error:
        raise Refused(
            "CLM082", f"sqlite:{path}: there is no such home folder; write the whole path"
        ) from error


def _postgres(rest: str) -> PostgresPlace:
    if not rest.startswith("//"):
        raise Refused("CLM082", "postgresql: needs two slashes: postgresql://user@host/database")
    base, deadline_ms, others = _options(rest)
    _check_libpq(option.partition("=")[0] for option in others)
    # A password with a raw "?" or "/" is an error to libpq; it must not be shown on the way there.
    authority = rest if "@" not in base and "@" in rest else base
    userinfo, _, place = authority[2:].rpartition("@")
    user, _, password = userinfo.partition(":")
    address = f"postgresql://{user + '@' if user else ''}{place.partition('?')[0]}"
    options = dict(parse_qsl("&".join(others)))
    found = {password, unquote(password), *(options.get(name, "") for name in _SECRET)} - {""}
    url = f"postgresql:{base}" + (f"?{'&'.join(others)}" if others else "")
    return PostgresPlace(url, address, deadline_ms, tuple(sorted(found, key=len, reverse=True)))


def _check_libpq(names: Iterable[str]) -> None:
    for name in names:
        if name in _LIBPQ:
            continue
        if not re.fullmatch(r"[a-z_]{1,40}", name):
            # It may be the rest of a password, so it is not repeated.
            raise Refused(
                "CLM082",
                'postgresql: what follows "?" is not name=value. A "?", "/" or "@" in a password is written %3F, %2F or %40',
            )
        from difflib import get_close_matches

        near = get_close_matches(name, ["deadline", *sorted(_LIBPQ)], 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise Refused(
            "CLM082",
            f"postgresql: has no option {name!r}{hint} There are ?deadline=1s and those of libpq, such as sslmode",
        )


def _options(rest: str) -> tuple[str, int | None, list[str]]:
    """The text before "?", our deadline, and the options that are somebody else's, untouched."""
    base, _, query = rest.partition("?")
    others: list[str] = []
    deadline_ms: int | None = None
    for option in filter(None, query.split("&")):
        name, _, text = option.partition("=")
        if name == "deadline":
            deadline_ms = duration_ms(unquote(text), "deadline")
        else:
            others.append(option)
    return base, deadline_ms, others
