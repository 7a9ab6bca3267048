"""The programs of a page, written into a folder with the addresses of the test's own servers."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs_support.pages import ROOT, all_pages


def written(name: str, folder: Path, changes: Mapping[str, str]) -> None:
    """Write the files of docs/how-to/`name`, with each key of `changes` replaced; each must occur."""
    [page] = [page for page in all_pages() if page.path == ROOT / "docs/how-to" / name]
    files = {block.file: block.text for block in page.blocks() if block.file is not None}
    assert files
    unused = set(changes)
    for path, text in files.items():
        for shown, real in changes.items():
            if shown in text:
                unused.discard(shown)
                text = text.replace(shown, real)  # noqa: PLW2901
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    assert not unused, f"{name} does not say {unused}"


def environment(**variables: str) -> dict[str, str]:
    """For the processes of a page: nothing of claimant's but what marks a test's processes."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("CLAIMANT_", "PYTEST_"))
    }
    marks = {name: value for name, value in os.environ.items() if name == "CLAIMANT_TEST_RUN"}
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    return {**kept, **marks, "PATH": path, "PYTHONUNBUFFERED": "1", **variables}


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
