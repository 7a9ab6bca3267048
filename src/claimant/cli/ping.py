"""Tell a monitor of the outside that the work was done, or was not: a skip tells it nothing."""

from __future__ import annotations

TIMEOUT_S = 10.0


def ping(url: str, *, failed: bool) -> str:
    """GET `url`, with "/fail" at the end of its path where the work `failed`. What went wrong, or "". Never raises.

    The "/fail" is what services of this kind have in common (https://healthchecks.io/docs/http_api/). It takes ten seconds at
    most: a timeout of urllib's is one of each step, and a name that never resolves has none.
    """
    import threading
    from queue import Empty, SimpleQueue

    said: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=lambda: said.put(_asked(url, failed=failed)), daemon=True).start()
    try:
        return said.get(timeout=TIMEOUT_S)
    except Empty:
        return f"no answer within {TIMEOUT_S:.0f} s"


def _asked(url: str, *, failed: bool) -> str:
    from urllib.error import HTTPError
    from urllib.parse import urlsplit, urlunsplit
    from urllib.request import Request, urlopen

    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return "its URL must begin with https:// or http://"
        path = f"{parts.path.rstrip('/')}/fail" if failed else parts.path
        target = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, parts.query, ""))
        request = Request(target, headers={"User-Agent": "claimant"})  # noqa: S310 - the scheme is checked above
        if parts.username is not None:
            # Not for whoever it redirects to.
            request.add_unredirected_header("Authorization", _basic(parts.username, parts.password or ""))
        with urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - as above
            return ""
    except HTTPError as error:
        error.close()
        return f"it answered {error.code}"
    except Exception as error:  # a monitor that is away, in whatever way, is no reason to fail
        return _in_our_words(getattr(error, "reason", error))


def _in_our_words(error: object) -> str:
    """What went wrong, without the error's own text: it may quote what may not be shown."""
    from http.client import InvalidURL
    from os import strerror
    from socket import gaierror

    kind = type(error).__name__
    match error:
        case InvalidURL() | ValueError():
            return (
                f"{kind}: its URL cannot be read; write what is special in it as %XX, in a password as well"
            )
        case gaierror():
            return f"{kind}: its host is not known"
        case OSError(errno=int(number)) if kind != "SSLCertVerificationError" and not kind.startswith("SSL"):
            return f"{kind}: {strerror(number)}"
        case _:
            return kind


def _basic(user: str, password: str) -> str:
    from base64 import b64encode
    from urllib.parse import unquote

    return "Basic " + b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
