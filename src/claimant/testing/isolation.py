"""Jobs that were declared on a `Claimant` of their own, tested without its servers.

A module that declares its jobs at import has made a `Claimant` for production by then. Inside `isolated` the same object,
and so every job on it, uses a store in memory and a ledger in a temporary file. Guards are left where they are: they are
the test database's own business.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from tempfile import TemporaryDirectory

from claimant import Claimant
from claimant._model.policy import Mode
from claimant.ledger import Spooled, open_ledger
from claimant.stores import open_store
from claimant.testing.faults import Switched


@contextmanager
def isolated(claims: Claimant) -> Iterator[Claimant]:
    """`claims`, with a store in memory and a ledger in a temporary file inside the block; as it was after it.

    For one test at a time: the object is changed for the whole process meanwhile. A block may stand in another.
    """
    wiring = claims._wiring  # noqa: SLF001 - this package is a part of the library
    before = claims.store, claims.ledger
    with TemporaryDirectory(prefix="claimant-test-") as folder:
        store = Switched(open_store(f"memory:{folder}"))
        book = Spooled(open_ledger(f"sqlite:{folder}/ledger.db", namespace=claims.namespace))
        try:
            claims.store, claims.ledger = store, book
            wiring.move(store, book)
            yield claims
        finally:
            # First of all: later tests must not find themselves on this one's fakes, whatever goes wrong below.
            claims.store, claims.ledger = before
            wiring.move(*before)
            book.close()


@contextmanager
def leases_as(claims: Claimant, mode: Mode) -> Iterator[None]:
    """Inside the block the jobs of `claims` start in another mode."""
    wiring = claims._wiring  # noqa: SLF001 - this package is a part of the library
    before = wiring.mode
    wiring.mode = mode
    try:
        yield
    finally:
        wiring.mode = before


def leases_off(claims: Claimant) -> AbstractContextManager[None]:
    """Inside the block the jobs of `claims` take no leases, as with `mode="off"`: two starts at once both run."""
    return leases_as(claims, Mode.OFF)
