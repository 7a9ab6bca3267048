"""Start a server so that it dies with the test process, then become that server.

Why a program and not a hook between fork and exec: that hook is unsafe in a process with threads. It runs
as ``python -I -S leash.py PARENT_PID USER -- COMMAND…`` and never stays: it replaces itself by the command, so the process
id is the server's. Linux kills the server when the process that started it ends, however it ends; elsewhere
the tests' own clean-up is all there is.
"""

import ctypes
import os
import pwd
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, user: str, command: list[str]) -> None:
    """Drop to `user` if one is named, bind our life to `parent`, become `command`."""
    libc = ctypes.CDLL(None)  # loaded first: the other account may not be able to read our Python
    if user:
        entry = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
        os.environ["HOME"] = "/"
    if sys.platform == "linux":
        # After the change of user, which clears it.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the test process is gone already")
    os.execv(command[0], command)


if __name__ == "__main__":
    split = sys.argv.index("--")
    main(int(sys.argv[1]), sys.argv[2], sys.argv[split + 1 :])
