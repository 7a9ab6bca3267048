"""A database that hangs up, falls silent or is not there: the effect happens once, and the answer says what is known."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from claimant._model.guarding import ConnectionGone
from claimant._model.outcome import AnswerKind
from claimant.guards import Once, Said, once, rejections, sessions
from claimant.guards.on_psycopg import PsycopgSession
from tests.guards.attempts import CHARGE, attempt, attempt_aio, charge, charge_aio, core_charge, notes, rows
from tests.support.proxy import Proxy
from tests.support.shared import Shared

COMMIT = b"COMMIT"


@pytest.fixture
def proxy(postgres: Shared) -> Iterator[Proxy]:
    with Proxy(postgres.port) as proxy:
        yield proxy


def core(url: str, driver: str = "psycopg") -> str:
    return url.replace("postgresql:", f"postgresql+{driver}:")


async def core_charge_aio(tx: Any) -> str:
    await tx.execute(sa.text(CHARGE))
    return "ok"


@asynccontextmanager
async def handle(kind: str, url: str) -> AsyncIterator[tuple[Any, Callable[[Any], Any]]]:
    """A handle of each kind, and an effect for it."""
    match kind:
        case "connection":
            conn = psycopg.connect(url)
            try:
                yield conn, charge
            finally:
                conn.close()
        case "pool":
            with psycopg_pool.ConnectionPool(url, min_size=1, max_size=2) as pool:
                yield pool, charge
        case "engine" | "session" | "maker":
            engine = sa.create_engine(core(url))
            try:
                if kind == "session":
                    with orm.Session(engine) as session:
                        yield session, lambda tx: tx.execute(sa.text(CHARGE)) and "ok"
                elif kind == "maker":
                    yield orm.sessionmaker(engine), lambda tx: tx.execute(sa.text(CHARGE)) and "ok"
                else:
                    yield engine, core_charge
            finally:
                engine.dispose()
        case "async connection":
            async_conn = await psycopg.AsyncConnection.connect(url)
            try:
                yield async_conn, charge_aio
            finally:
                await async_conn.close()
        case "async pool":
            async with psycopg_pool.AsyncConnectionPool(
                url, min_size=1, max_size=2, open=False
            ) as async_pool:
                yield async_pool, charge_aio
        case "async engine" | "asyncpg engine":
            async_engine = sa_aio.create_async_engine(
                core(url, "asyncpg" if kind == "asyncpg engine" else "psycopg")
            )
            try:
                yield async_engine, core_charge_aio
            finally:
                await async_engine.dispose()


KINDS = [
    *("connection", "pool", "engine", "session", "maker"),
    *("async connection", "async pool", "async engine", "asyncpg engine"),
]


async def once_on(
    guard: Once, kind: str, given: Any, effect: Callable[[Any], Any], run_id: str = "run-1"
) -> Said[Any]:
    if kind.startswith("async"):
        return await attempt_aio(guard, given, effect, run_id)
    return attempt(guard, given, effect, run_id)


@pytest.mark.parametrize("kind", KINDS)
def test_lost_acknowledgement_of_the_commit(guarded: str, proxy: Proxy, kind: str) -> None:
    """The server commits, its answer is lost: the same call finds out, answers `applied` with the result, one effect."""
    url = proxy.url(guarded)

    async def scenario() -> Said[Any]:
        async with handle(kind, url) as (given, effect):
            proxy.cut_after_request(times=1, match=COMMIT)
            return await once_on(once(url), kind, given, effect)

    said = asyncio.run(scenario())
    assert proxy.counts.faults == 1
    assert (said.answer.kind, said.answer.value, said.answer.replayed) == (AnswerKind.APPLIED, "ok", False)
    assert notes(guarded) == 1
    assert rejections(guarded) == []


@pytest.mark.parametrize("kind", KINDS)
def test_commit_that_never_arrived(guarded: str, proxy: Proxy, kind: str) -> None:
    """The connection is lost before the COMMIT: the call runs the effect again, and it happened once.

    Not so on a connection of the caller's own: nothing happened, and the answer says so. What replaces it does not know what was
    set on it.
    """
    url = proxy.url(guarded)
    own = kind in ("connection", "async connection")

    async def scenario() -> Said[Any]:
        async with handle(kind, url) as (given, effect):
            tries = 0

            def last_moment() -> None:
                nonlocal tries
                tries += 1
                if tries == 1:
                    proxy.drop_connections()

            async def aio(tx: Any) -> str:
                result: str = await effect(tx)
                last_moment()
                return result

            def plain(tx: Any) -> Any:
                result = effect(tx)
                last_moment()
                return result

            said = await once_on(once(url), kind, given, aio if kind.startswith("async") else plain)
            assert tries == (1 if own else 2)
            return said

    said = asyncio.run(scenario())
    assert said.answer.kind is (AnswerKind.REFUSED if own else AnswerKind.APPLIED)
    assert notes(guarded) == (0 if own else 1)


def test_a_commit_that_never_arrived_is_not_repeated_on_a_spare_connection(
    guarded: str, proxy: Proxy
) -> None:
    """The COMMIT itself is lost: a spare connection finds out that it did not happen, and is no place for the effect."""
    url = proxy.url(guarded)
    schemas: list[str] = []

    def effect(tx: psycopg.Connection[Any]) -> str:
        schemas.append(tx.execute("SHOW search_path").fetchone()[0])  # type: ignore[index]
        tx.execute(CHARGE.encode())
        proxy.black_hole(times=1, match=COMMIT)
        losing.start()
        return "ok"

    def lose() -> None:
        proxy.wait(lambda counts: counts.faults == 1)
        proxy.drop_connections()

    losing = threading.Thread(target=lose)
    with psycopg.connect(url) as conn:
        conn.execute("SET search_path = tenant_a, public")
        conn.commit()
        answer = attempt(once(url), conn, effect).answer
    assert answer.kind is AnswerKind.REFUSED
    assert "search_path" in answer.reason
    losing.join()
    assert schemas == ["tenant_a, public"]
    assert notes(guarded) == 0


def test_lost_acknowledgement_and_a_database_that_stays_away(
    guarded: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody can be asked any more the answer is `unknown`, names the row that decides, and `.value` raises."""
    from claimant._flows import once as flow
    from claimant._model.errors import NotDone

    monkeypatch.setattr(flow, "RESOLVE_MS", 300)
    url = proxy.url(guarded)
    engine = sa.create_engine(core(url))

    def effect(tx: Any) -> str:
        core_charge(tx)
        proxy.cut_after_request(times=1, match=COMMIT)
        return "ok"

    sa.event.listen(engine, "handle_error", lambda _: proxy.refuse())
    began = time.monotonic()
    answer = attempt(once(url), engine, effect).answer
    assert time.monotonic() - began < 10
    engine.dispose()
    assert answer.kind is AnswerKind.UNKNOWN
    assert "run-1 in claimant_guard" in answer.reason
    with pytest.raises(NotDone):
        _ = answer.value
    assert notes(guarded) == 1
    # The same attempt, asked again later, knows.
    with psycopg.connect(guarded) as conn:
        again = attempt(once(guarded), conn).answer
    assert (again.kind, again.value) == (AnswerKind.APPLIED, "ok")


def test_lost_acknowledgement_without_a_way_to_ask(guarded: str, proxy: Proxy) -> None:
    """A bare connection whose guard was declared by a pool cannot be replaced: the answer is `unknown`, at once."""
    url = proxy.url(guarded)
    with psycopg_pool.ConnectionPool(guarded, open=False) as pool, psycopg.connect(url) as conn:
        proxy.cut_after_request(times=1, match=COMMIT)
        answer = attempt(once(pool), conn).answer
    assert answer.kind is AnswerKind.UNKNOWN
    assert notes(guarded) == 1


def test_lost_acknowledgement_with_an_own_constraint(guarded: str, proxy: Proxy) -> None:
    """A constraint cannot tell whose row it met, so the answer is `duplicate`, says so, and is not counted."""
    url = proxy.url(guarded)
    with psycopg_pool.ConnectionPool(url, min_size=1, max_size=2) as pool:
        guard = once(url, constraint="one_debit")
        proxy.cut_after_request(times=1, match=COMMIT)
        answer = attempt(guard, pool, lambda tx: tx.execute("INSERT INTO debits VALUES (1, 5)")).answer
    assert answer.kind is AnswerKind.DUPLICATE
    assert "cannot tell" in answer.reason
    assert rows(guarded, "SELECT count(*) FROM debits") == [(1,)]
    assert rejections(guarded) == []


def test_lost_reply_while_counting_counts_once(guarded: str, proxy: Proxy) -> None:
    """A rejection whose COMMIT was acknowledged to nobody is found again, and counted once."""
    url = proxy.url(guarded)
    with psycopg_pool.ConnectionPool(url, min_size=1, max_size=2) as pool:
        guard = once(url)
        attempt(guard, pool, charge, "run-1")
        proxy.cut_after_request(times=1, match=COMMIT)
        answer = attempt(guard, pool, charge, "run-2").answer
    assert answer.kind is AnswerKind.DUPLICATE
    assert [row.count for row in rejections(guarded)] == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_database_that_refuses(guarded: str, proxy: Proxy, kind: str) -> None:
    """Nobody listens: the effect does not happen, the answer is `refused` and says why, without any password."""
    url = proxy.url(guarded).replace("postgres@", "postgres:s3cr3t@")

    async def scenario() -> Said[Any]:
        async with handle(kind, url) as (given, effect):
            proxy.refuse()
            return await once_on(once(url), kind, given, effect)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "CONNECT_S", 1.0)
        began = time.monotonic()
        said = asyncio.run(scenario())
        assert time.monotonic() - began < 8
    assert said.answer.kind is AnswerKind.REFUSED
    assert "did not answer" in said.answer.reason
    assert "did not happen" in said.answer.reason
    assert "s3cr3t" not in said.answer.reason
    assert notes(guarded) == 0


@pytest.mark.parametrize("kind", ["engine", "pool", "async engine", "async pool", "asyncpg engine"])
def test_database_that_takes_connections_and_never_answers(guarded: str, proxy: Proxy, kind: str) -> None:
    """A black hole costs a bounded time, then the answer is `refused`."""
    url = proxy.url(guarded)

    async def scenario() -> tuple[Said[Any], float]:
        async with handle(kind, url) as (given, effect):
            proxy.drop_connections()
            proxy.black_hole()
            began = time.monotonic()
            try:
                return await once_on(once(url), kind, given, effect), time.monotonic() - began
            finally:
                proxy.drop_connections()
                proxy.heal()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "CONNECT_S", 0.5)
        said, took = asyncio.run(scenario())
    assert said.answer.kind is AnswerKind.REFUSED, said
    assert took < 5
    assert notes(guarded) == 0


def test_commit_on_a_dead_connection_is_no_commit(guarded: str) -> None:
    """Psycopg leaves the block of a dead connection without a word; that never passes for a COMMIT."""
    with psycopg.connect(guarded) as conn:
        session = PsycopgSession(conn, pool=False, declared=once(guarded).target, spare=None)
        session.open()
        session.begin()
        conn.pgconn.finish()
        with pytest.raises(ConnectionGone):
            session.commit()


def test_joined_loss_is_the_callers(guarded: str, proxy: Proxy) -> None:
    """A connection lost inside the caller's transaction is the driver's own error: the caller runs it all again."""
    url = proxy.url(guarded)
    conn = psycopg.connect(url)
    conn.execute("SELECT 1")
    proxy.drop_connections()
    with pytest.raises(psycopg.OperationalError):
        attempt(once(url), conn)
    conn.close()
    assert notes(guarded) == 0


def test_frozen_first_attempt_is_ended_by_the_server(guarded: str) -> None:
    """A first attempt that freezes inside its effect holds others up for `longest` only; awake, it is the duplicate."""
    guard, answers = once(guarded, longest="400ms"), list[AnswerKind]()

    def freeze(tx: Any) -> str:
        tx.execute(CHARGE)
        if not answers:
            with psycopg.connect(guarded) as other:
                # In flight, or in time to see the frozen one ended.
                while not answers or answers[-1] is AnswerKind.IN_FLIGHT:
                    answers.append(attempt(guard, other, charge, f"run-{len(answers) + 2}").answer.kind)
        tx.execute(CHARGE)
        return "late"

    began = time.monotonic()
    with psycopg_pool.ConnectionPool(guarded, min_size=1, max_size=2) as pool:
        said = attempt(guard, pool, freeze, "run-1")
    assert time.monotonic() - began < 10
    assert answers[-1] is AnswerKind.APPLIED
    assert (said.answer.kind, said.answer.value) == (AnswerKind.DUPLICATE, "ok")
    assert notes(guarded) == 1
