"""Configured values for people, without the secrets in them. What is not understood is hidden as a whole.

It shows what tells two places apart (scheme, host, database) and nothing that opens one.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(\S*)", re.IGNORECASE)
_PAIR = re.compile(
    r"(?i)([\w.-]*(?:pas|pwd|secret|token|credential|api[_-]?key)[\w.-]*\s*[=:]\s*)('[^']*'|\"[^\"]*\"|\S+)"
)
# Of the others nobody knows what they hold: "pasword" is a slip of the pen, and its value a password.
_HARMLESS = frozenset(
    [
        "application_name",
        "client_encoding",
        "client_name",
        "connect_timeout",
        "db",
        "dbname",
        "deadline",
        "host",
        "hostaddr",
        "port",
        "protocol",
        "socket_connect_timeout",
        "socket_timeout",
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "sslcert",
        "sslmode",
        "sslrootcert",
        "target_session_attrs",
        "user",
        "username",
    ]
)
_LOCAL = ("sqlite", "memory", "django")


def place_shown(url: str) -> str:
    """A store's or a ledger's URL without what opens it."""
    scheme, colon, rest = url.partition(":")
    if colon and scheme.lower() in _LOCAL:
        return url
    if not rest.startswith("//") or not scheme.replace("+", "").isalnum():
        return HIDDEN
    # Up to the last "@": a password may hold one, and "/" too, by mistake.
    secret, at, where = rest[2:].rpartition("@")
    if "?" in secret:
        return f"{scheme}://{HIDDEN}"  # a password before the host, or one behind the "?": it cannot be told
    user, colon, _ = secret.partition(":")
    # Only libpq takes a name alone for a user; elsewhere a lone word before "@" may be a password that lost its colon.
    user = user if scheme.lower() in ("postgresql", "postgres") else HIDDEN if at and not colon else user
    where, mark, query = where.partition("?")
    hidden = f"{user}:{HIDDEN}" if colon else user
    return f"{scheme}://{hidden}{at}{where}{mark}{'&'.join(map(_parameter, query.split('&')))}"


def _parameter(text: str) -> str:
    from urllib.parse import unquote

    name, equals, _ = text.partition("=")
    return (
        text if unquote(name).lower() in _HARMLESS or not text else f"{name}={HIDDEN}" if equals else HIDDEN
    )


def ping_shown(url: str) -> str:
    """A ping's URL: its scheme and host. Whoever knows the path may ping."""
    scheme, colon, rest = url.partition("://")
    host = re.split(r"[/?#]", rest.rpartition("@")[2], maxsplit=1)[0]
    return f"{scheme}://{host}/{HIDDEN}" if colon and host else HIDDEN


def text_shown(text: str) -> str:
    """Free text, such as a guard's: URLs in it as places, and what stands behind "password=" hidden."""
    return _PAIR.sub(rf"\1{HIDDEN}", _URL.sub(lambda found: place_shown(found[0]), text))


def value_shown(option: str, value: object) -> str:
    """A value of this option, for people."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"{value}"
        case _ if option in ("store", "ledger"):
            return place_shown(str(value))
        case _ if option == "ping":
            return ping_shown(str(value))
        case _:
            return text_shown(str(value))
