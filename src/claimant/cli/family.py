"""Who lives of what a command started: its group, and those that have made a group of their own in our session.

timeout(1) and a shell's `set -m` make such groups. A session of one's own is how something says that it is to outlive
the command (setsid, a daemon): it is left alone, with all that is under it. Linux tells by /proc; elsewhere, and where
/proc is another namespace's, only the group is known. It signals nobody.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
_DEAD = ("Z", "X")


class Process(NamedTuple):
    """One line of the table of processes, as far as it is looked at. See proc_pid_stat(5)."""

    pid: int
    state: str
    parent: int
    group: int
    session: int


def adopt(*, orphans: bool) -> None:
    """Become, or stop being, the parent of the orphans among our descendants: they stay known, and can be reaped."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def group_exists(group: int) -> bool:
    """Whether anybody is in it whom we may signal, a zombie included."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        # Or they are somebody else's by now (setuid): not ours to stop.
        return False
    return True


def children() -> frozenset[int]:
    """Our children of now. Who replaced a shell (exec) has children that it did not start."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()  # as nearly always, and no table has to be read
    return frozenset(each.pid for each in _table() if each.parent == os.getpid())


def living(group: int, strangers: Collection[int]) -> list[int]:
    """Who lives of the command that leads `group`. `strangers`: our children that are not its."""
    table = _table()
    exists = group_exists(group)
    members = [each for each in table if each.group == group]
    if exists and not members:
        return [group]  # there is no table, or it was read while they were forking: look again
    ours, session = os.getpgrp(), os.getsid(0)
    under: dict[int, list[Process]] = {}
    for each in table:
        under.setdefault(each.parent, []).append(each)
    found = {each.pid for each in members if exists and each.state not in _DEAD}
    parents = [os.getpid()]
    while parents:
        for each in under.get(parents.pop(), ()):
            if each.session != session or each.group == ours or each.pid in strangers:
                continue
            parents.append(each.pid)
            if each.state not in _DEAD and (each.group != group or exists):
                found.add(each.pid)
    return sorted(filter(_signalled, found))


def _signalled(pid: int) -> bool:
    """Whether it may be: what has become somebody else's (setuid) is not ours to stop."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _table() -> list[Process]:
    """All processes; none where nobody tells."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 - text, and no object for each of a thousand
            return []
        pids = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - as above
    except OSError:
        return []
    found = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
                # The command's name, in brackets, may hold anything.
                state, parent, group, session = file.read().rpartition(b")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        found.append(Process(int(pid), state.decode(), int(parent), int(group), int(session)))
    return found
