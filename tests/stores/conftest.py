"""A store asked through each runtime, and a proxy in front of a real server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from claimant._drive.ports import Store
from claimant.stores import open_store
from claimant.testing.store_suite import Asked
from tests.support.proxy import Proxy
from tests.support.shared import Shared


@pytest.fixture(params=["blocking", "asyncio"])
def ask(request: pytest.FixtureRequest) -> Iterator[Callable[[object], Asked]]:
    """Opens a store (a URL, a client or a `Store`) through each of the two runtimes; closed at the end."""
    with contextlib.ExitStack() as stack:

        def open_one(target: object) -> Asked:
            made = cast("Store", target) if hasattr(target, "blocking") else open_store(target)
            asked = Asked(made, request.param)
            stack.callback(asked.close)
            return asked

        yield open_one


@pytest.fixture
def proxy(valkey: Shared) -> Iterator[Proxy]:
    """A proxy in front of the shared Valkey."""
    with Proxy(valkey.port) as proxy:
        yield proxy
