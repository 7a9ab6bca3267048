"""The files that may configure a command: where they are, which of them are believed, and what is in them.

A folder is often somebody else's, so `./claimant.toml` is believed only if nobody but this user, or root, could have
written it. The other places are believed as they are. A file that is there and cannot be read is an error, never
nothing: a command that silently looked elsewhere would claim nothing that others see. Nothing here is ever written.
"""

# Without pathlib, an import that most commands have no other use for.
# ruff: noqa: PTH100, PTH111, PTH116, PTH117, PTH118

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from claimant.cli.misconfigured import Misconfigured

NAME = "claimant.toml"
HERE = f"./{NAME}"
SYSTEM = "/etc/claimant/claimant.toml"
LARGEST = 1_000_000
"""Bytes. What is larger is no configuration but a mistaken path."""


# Named tuples, here and in `config`, because every command pays for its imports: they are made six times faster.


class Found(NamedTuple):
    """One file's content. `text` is kept to say in which line something stands."""

    path: str
    content: dict[str, Any]
    text: str

    def __repr__(self) -> str:
        """Without the content, which may hold a password."""
        return f"Found({self.path!r})"

    def table(self, path: tuple[str, ...]) -> Any:
        """What stands at a table's name; {} where nothing does."""
        here: Any = self.content
        for piece in path:
            here = here.get(piece, {})
            if not isinstance(here, dict):
                return here
        return here

    def line_of(self, path: tuple[str, ...]) -> int | None:
        """The line of a key or table, where it can be told."""
        from claimant.cli.config_lines import line_of

        return line_of(self.text, path)


class Files(NamedTuple):
    """The files that were read, the one that wins first; the ones that are not there; and each that is ignored, with why.

    `looked_at`: all of them, the one that would win first.
    """

    looked_at: tuple[str, ...] = ()
    read: tuple[Found, ...] = ()
    missing: tuple[str, ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()

    def warnings(self) -> list[str]:
        """One line for each file that is ignored."""
        return [f"{path} is ignored: {why}" for path, why in self.ignored]


def find(environ: Mapping[str, str]) -> Files:
    """Look at the four places and read what is there. Raises `Misconfigured` (CLM090, CLM091)."""
    read: list[Found] = []
    missing: list[str] = []
    ignored: list[tuple[str, str]] = []
    named, users = environ.get("CLAIMANT_CONFIG", ""), _users(environ)
    # Named, a file is believed, also if it is the one right here.
    here = "" if named and os.path.abspath(named) == os.path.abspath(HERE) else HERE
    places = tuple(path for path in (named, here, users, SYSTEM) if path)
    for path in places:
        try:
            read.append(_parsed(path, _text(path, anybodys=path == here)))
        except _NotBelievedError as reason:
            ignored.append((path, str(reason)))
        except (FileNotFoundError, NotADirectoryError):
            if path == named:
                raise Misconfigured(
                    "CLM090",
                    f"CLAIMANT_CONFIG names {path}, and there is no such file. Correct the variable, or unset it",
                ) from None
            missing.append(path)
        except OSError as error:
            if path == users and not _can_be_seen(path):
                # Another user's home, as after `sudo -u`: no file of this user's is missed.
                ignored.append((path, "this user may not look into its folder; HOME is somebody else's"))
                continue
            raise Misconfigured(
                "CLM090",
                f"{path} cannot be read ({error.strerror or type(error).__name__}), and what it says would be missed. "
                "Make it readable for the user who runs this, or remove it",
            ) from None
    return Files(places, tuple(read), tuple(missing), tuple(ignored))


def _users(environ: Mapping[str, str]) -> str:
    """`$XDG_CONFIG_HOME/claimant/claimant.toml`, by default in ~/.config (XDG Base Directory Specification)."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".config")
    # A user without a home has no file; "~" itself would be a folder of that name right here.
    return os.path.join(base, "claimant", NAME) if os.path.isabs(base) else ""


def _can_be_seen(path: str) -> bool:
    try:
        os.stat(path)
    except PermissionError:
        return False
    return True


class _NotBelievedError(Exception):
    """Somebody else could have written the file in the current folder."""


def _believed(found: os.stat_result) -> None:
    """Raise `_NotBelievedError` unless only this user, and root, could have written it."""
    if not hasattr(os, "geteuid"):
        return  # a system whose files have no owner of this kind
    me = os.geteuid()
    if found.st_uid not in (0, me):
        raise _NotBelievedError(
            f"it belongs to {_user(found.st_uid)}, and this runs as {_user(me)}. Give it to this user or to root, or name it "
            "with CLAIMANT_CONFIG"
        )
    if not stat.S_ISLNK(found.st_mode) and found.st_mode & stat.S_IWOTH:
        raise _NotBelievedError("everybody may write it. Say chmod o-w, or name it with CLAIMANT_CONFIG")


def _user(number: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"user {number}"


def _text(path: str, *, anybodys: bool) -> str:
    """What is in the file. `anybodys`: it stands in a folder of anybody's, so it must be this user's or root's."""
    if anybodys:
        # A link counts as well as what it leads to; a file that may not be opened is judged before it is.
        _believed(os.lstat(path))
        _believed(os.stat(path))
    # Not blocking: a pipe in a file's place must not hang a job.
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        kind = os.fstat(opened)
        if anybodys:
            _believed(kind)
        if path == os.devnull:
            return ""
        if not stat.S_ISREG(kind.st_mode) or kind.st_size > LARGEST:
            raise Misconfigured(
                "CLM090",
                f"{path} is not a plain file of at most {LARGEST // 1000} kB, and a configuration is",
            )
        with open(opened, "rb", closefd=False) as file:
            raw = file.read()
    finally:
        os.close(opened)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Misconfigured("CLM091", f"{path}, line {line}: it is not UTF-8, which TOML must be") from None


def _parsed(path: str, text: str) -> Found:
    import tomllib  # only where there is a file

    try:
        return Found(path, tomllib.loads(text), text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(
            "CLM091", f"{path} is not TOML: {error}. Text stands in quotes, tables in [brackets]"
        ) from None
