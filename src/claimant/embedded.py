"""Where the embedded store and ledger live when none is named: this user's state folder on this host.

A container's file system ends with the container, so there the embedded default must be asked for by path.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from claimant._model.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path


def state_folder() -> Path:
    """`$XDG_STATE_HOME/claimant`, by default `~/.local/state/claimant` (XDG Base Directory Specification)."""
    from pathlib import Path

    base = os.environ.get("XDG_STATE_HOME", "")
    return (
        Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state"
    ) / "claimant"


def default_store() -> str:
    """The URL of this host's embedded store."""
    _not_in_a_container("store", "Claimant('sqlite:/var/lib/app/leases.db')")
    return f"sqlite:{state_folder() / 'leases.db'}"


def default_ledger() -> str:
    """The URL of this host's embedded ledger."""
    _not_in_a_container("ledger", "ledger='sqlite:/var/lib/app/ledger.db'")
    return f"sqlite:{state_folder() / 'ledger.db'}"


def in_a_container() -> bool:
    """Whether this process runs in a container, as far as Docker, Podman and Kubernetes leave marks."""
    from pathlib import Path

    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return "KUBERNETES_SERVICE_HOST" in os.environ or any(mark.exists() for mark in marks)


def _not_in_a_container(what: str, how: str) -> None:
    if in_a_container():
        raise Refused(
            "CLM051",
            f"no {what} is named, and this is a container: the embedded {what} would be seen by nobody else and end with it. "
            f"Name one that your workers share, or, if one host is all there is, ask for a file on a volume: {how}",
        )
