"""Where an embedded lease file may live, and on whose clock its deadlines count.

A time domain is (boot id, time-namespace inode): the boot-time clock means the same instant only within one. Network
file systems are refused where the mount table names them: SQLite's locks and shared memory do not work there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from claimant._drive.clock import epoch_ms, now_ms
from claimant._model.errors import Refused

MOUNTS = Path("/proc/self/mounts")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = Path("/proc/self/ns/time")
NETWORK = frozenset(
    [
        "nfs",
        "nfs3",
        "nfs4",
        "cifs",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "afs",
        "ncpfs",
        "coda",
        "davfs",
        "davfs2",
        "ceph",
        "glusterfs",
        "lustre",
        "gpfs",
        "beegfs",
        "orangefs",
        "moosefs",
        "ocfs2",
        "gfs2",
        "wekafs",
        "pvfs2",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.ceph-fuse",
        "fuse.davfs",
        "fuse.gcsfuse",
        "fuse.goofys",
        "fuse.mfs",
        "fuse.juicefs",
        "fuse.smbnetfs",
        "fuse.cvmfs2",
        "fuse.quobyte",
    ]
)
"""As the mount table spells them."""
PERHAPS = frozenset(
    ["9p", "virtiofs", "vboxsf", "prl_fs", "vmhgfs", "fuse.vmhgfs-fuse", "fuse.osxfs", "fuse.grpcfuse"]
)
"""Folders shared with another kernel: the files are seen there too, the locks perhaps not."""


def domain() -> str:
    """This process's time domain, as text."""
    if BOOT_ID.exists():
        try:
            namespace = TIME_NAMESPACE.stat().st_ino
        except OSError:
            namespace = 0  # a kernel before 5.6 has one time namespace
        return f"{BOOT_ID.read_text().strip()}:{namespace}"
    if sys.platform == "darwin":
        import subprocess

        session = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False
        ).stdout.strip()
        if session:
            return session
    # Elsewhere: the minute of the boot. A stepped clock makes it look like another boot, which only costs time.
    return f"boot:{(epoch_ms() - now_ms()) // 60_000}"


def checked_place(path: Path) -> Path:
    """`path`, unless it is on a network. Raises `Refused` (CLM065); warns where that cannot be told."""
    folder = _existing(path)
    kind = _file_system(folder)
    if kind in NETWORK:
        raise Refused(
            "CLM065",
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold between hosts. Put the lease "
            "file on a local disk, or, if several hosts share the work, use redis://",
        )
    if kind in PERHAPS:
        import logging  # which few processes need here, and which costs more than the rest

        logging.getLogger("claimant").warning(
            "claimant: the lease file %s is on %s, a folder shared with another system; it serves this host only",
            path,
            kind,
        )
    return path


def _existing(path: Path) -> Path:
    """The nearest folder above `path` that exists, with links followed."""
    folder = Path(os.path.realpath(path)).parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _file_system(folder: Path) -> str:
    """The type of the file system that holds `folder`; "" where the system does not say."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # proc(5): a space in a mount point is written \040, and so on.
        point = fields[1].encode("utf-8", "surrogateescape").decode("unicode_escape")
        inside = point == "/" or str(folder) == point or str(folder).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind
