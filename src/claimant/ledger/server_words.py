"""What PostgreSQL and libpq say about a connection that failed, and what it means.

libpq gives no error code for one, so these are the server's words. In another language they are not recognised, and the
ledger counts as absent at once, which is as safe. It never sees a password, and asks nobody.
"""

from __future__ import annotations

_FOR_EVER = (
    (
        "pg_hba.conf",
        "Allow this user, database and host in the server's pg_hba.conf, or name others in the URL",
    ),
    (
        "password authentication failed",
        "Give the right user and password in the URL, PGPASSWORD or ~/.pgpass",
    ),
    ("no password supplied", "Give the password in the URL, PGPASSWORD or ~/.pgpass"),
    ("authentication failed", "Give a user in the URL whom the server lets in from here"),
    ("is not permitted to log in", "Give a user in the URL who may log in"),
    ("permission denied for database", "Grant CONNECT on the database to its user"),
    ("but SSL was required", "Turn SSL on in the server, or name another sslmode in the URL"),
    (
        "invalid URI",
        "Write postgresql://user@host/database, and percent-encode what is special in a password",
    ),
    ("invalid percent-encoded", "Percent-encode what is special in the URL's user and password"),
    ("invalid port number", "Write postgresql://user@host:5432/database"),
    ("invalid connection option", "Leave that option out of the URL"),
    ("invalid sslmode value", "Write sslmode=disable, prefer, require, verify-ca or verify-full"),
    ("does not exist", "Create it, or name in the URL what is there"),
)
"""What will not pass by waiting, as the server or libpq says it, and what to do."""

# The last is what a pooler in between says.
_NO_ROOM = (
    "too many",
    "connection slots",
    "starting up",
    "not yet accepting connections",
    "no more connections allowed",
)


def advice_for(error: Exception) -> str | None:
    """What to do about a connection that will fail the same way for ever; None for what may pass."""
    text = str(error)
    return next((advice for words, advice in _FOR_EVER if words in text), None)


def may_have_room(error: Exception) -> bool:
    """Whether a server that is alive had no room for us, or is starting: asking again soon may help."""
    text = str(error)
    return any(words in text for words in _NO_ROOM)
