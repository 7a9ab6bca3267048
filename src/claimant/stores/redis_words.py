"""What a Redis or Valkey error means for a lease, in words, and what to do about it. Never quotes a secret.

An error *reply* always means that the command was not applied: each of ours has one effect, at its end.
"""

from __future__ import annotations

import socket

MEANINGS = {
    "READONLY": "the server is a replica now: it was demoted, or the URL names one; point the URL at the primary",
    "LOADING": "the server is still loading its data after a restart; it answers again when it is done",
    "MASTERDOWN": "the server is a replica that has lost its primary; point the URL at the primary",
    "OOM": "the server is full (maxmemory, noeviction) and takes no new keys; make room or give the leases their own server",
    "NOREPLICAS": "the server has fewer replicas in reach than min-replicas-to-write asks for, and takes no writes",
    "MISCONF": "the server cannot save to its disk and takes no writes until that is mended",
    "BUSY": "the server is busy with somebody's long script",
    "NOAUTH": "the server wants a password, and the URL or client has none",
    "WRONGPASS": "the server refused the user name or the password",
    "CLUSTERDOWN": "the cluster is down or does not cover all slots",
    "NOSCRIPT": "the server forgot a script twice in a row; it is restarting, or somebody flushes scripts",
    "MOVED": "the server is a node of a cluster, and clusters are not available yet; use a standalone server",
    "ASK": "the server is a node of a cluster, and clusters are not available yet; use a standalone server",
    "CROSSSLOT": "the server is a cluster, and clusters are not available yet; use a standalone server",
    "DENIED": "the server runs in protected mode and takes no remote clients without a password",
}

READ_FIRST = frozenset({"OOM", "READONLY", "NOREPLICAS", "MISCONF"})
"""A create refused like this says nothing of the key: it may be held, by us or by another. Read it first."""


WITHIN = (*MEANINGS, "WRONGTYPE")
"""Codes to look for inside the text of a script's error."""


class ErrorReply(Exception):
    """An error that the server answered with; `text` as it came, code first."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.code = text.split(" ", 1)[0]
        if "in script" in text or "running script" in text:
            # Redis 6 wraps what a script ran into, and every version wraps a missing permission.
            inner = (
                "NOPERM"
                if "ACL failure" in text
                else next((code for code in WITHIN if f"-{code} " in text), "")
            )
            self.code = inner or self.code

    @property
    def unknown_here(self) -> bool:
        """Whether the server does not know this command or this form of it."""
        text = self.text.lower()
        return self.code == "ERR" and (
            "unknown command" in text or "syntax error" in text or "unknown subcommand" in text
        )


def meaning(error: ErrorReply, *commands: str) -> str:
    """One sentence for a `StoreAbsent`. `commands`: what was tried, for the ACL rule that is missing."""
    if error.code == "NOPERM":
        return forbidden(error, commands)
    known = MEANINGS.get(error.code)
    if known is not None:
        return f"{known} ({error.code})"
    if "max number of clients" in error.text:
        return "the server has no connection left (maxclients); raise it, or find who keeps them"
    # An unknown command is quoted with its arguments, which hold a token: what follows the command is cut.
    quoted = error.text.split(", with args", 1)[0][:80]
    return f"the server answered {quoted!r} to {' and '.join(commands) or 'a command'}"


def forbidden(error: ErrorReply, commands: tuple[str, ...]) -> str:
    """Names the permission that is missing and the rule that grants it."""
    if "access a key" in error.text or "of the keys" in error.text:
        return (
            f"this user may not both read and write the key with {' and '.join(commands)} (NOPERM); "
            "grant it: ACL SETUSER <user> ~claimant:*"
        )
    rules = " ".join(f"+{name.lower()}" for command in commands for name in command.split("/"))
    return f"this user may not run {' or '.join(commands)} (NOPERM); grant it: ACL SETUSER <user> {rules}"


def no_connection(error: BaseException, address: str, secrets: tuple[str, ...]) -> str:
    """Why there is no connection. `error` is what the client raised; `secrets` are cut out of what is quoted."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    cause = error.__cause__ or error.__context__
    text = str(error)
    for code in MEANINGS:
        if text.startswith(f"{code} "):
            return meaning(ErrorReply(text))
    if "max number of clients" in text:
        return meaning(ErrorReply(text))
    if isinstance(cause, socket.gaierror):
        return f"the name in {address} does not resolve"
    if isinstance(cause, ConnectionRefusedError):
        return f"nobody listens at {address} (connection refused); start the server, or mend the URL"
    if isinstance(cause, FileNotFoundError):
        return f"there is no socket at {address}; start the server, or mend the URL"
    if isinstance(cause, PermissionError):
        return f"this user may not connect to {address} (permission denied)"
    if cause is not None and any(kind.__name__ == "SSLError" for kind in type(cause).__mro__):
        return (
            f"TLS with {address} failed ({getattr(cause, 'verify_message', '') or getattr(cause, 'reason', '')}); a private "
            "CA is named with ?ssl_ca_certs=PATH, a server without TLS with redis://"
        )
    if "BusyLoadingError" in kinds:
        return meaning(ErrorReply("LOADING"))
    if "AuthenticationError" in kinds:
        wanted = "required" in text.lower()
        return meaning(ErrorReply("NOAUTH" if wanted else "WRONGPASS"))
    if "NoPermissionError" in kinds:
        return f"this user may not even say hello to {address} (NOPERM); grant it: ACL SETUSER <user> +@connection"
    if "TimeoutError" in kinds or isinstance(error, TimeoutError):
        return f"no connection to {address} in time: the network or the server's greeting did not answer"
    if not kinds & {"RedisError", "ValkeyError", "OSError"}:
        return f"no connection to {address}: {type(error).__name__} while connecting (a credential provider, or TLS files?)"
    for secret in secrets:
        text = text.replace(secret, "***")
    return f"no connection to {address}: {text[:160]}"
