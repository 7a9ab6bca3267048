"""Fixtures for real servers, and two promises of the run itself: a missing server is loud, and no process is left behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import psutil
import pytest

from tests.support import servers, shared
from tests.support.servers import Missing, Server
from tests.support.shared import Shared

MISSING = "missing server:"
_RUN = "CLAIMANT_TEST_RUN"
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_databases = itertools.count()

# No deadline: the machine is shared with servers. The seed of a failure is printed and can be replayed.
hypothesis.settings.register_profile("claimant", deadline=None, print_blob=True)
hypothesis.settings.load_profile("claimant")


# --- the run


class _Run:
    """What the process that started the run owns."""

    def __init__(self) -> None:
        self.shelf = shared.Shelf()
        self.left_behind: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell an xdist worker where to ask for shared servers."""
        node.workerinput["claimant_shelf"] = self.shelf.serve()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Stop the shared servers, then see whether anything of this run still lives."""
        self.shelf.stop()
        self.left_behind = left_behind()
        if self.left_behind:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        """Say last, after everybody else's lines, what did not run and what was left behind."""
        yield
        reasons = [
            report.longrepr[2].partition(MISSING)[2].strip()
            for report in terminalreporter.getreports("skipped")
            if isinstance(report.longrepr, tuple) and MISSING in report.longrepr[2]
        ]
        if reasons:
            each = "; ".join(
                f"{reasons.count(reason)} for want of {reason}" for reason in sorted(set(reasons))
            )
            terminalreporter.write_line(f"!!! {len(reasons)} tests did NOT run: {each}", red=True, bold=True)
        for process in self.left_behind:
            terminalreporter.write_line(
                f"FAILED: a test left a process behind: {process}", red=True, bold=True
            )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[_RUN] = uuid.uuid4().hex
        config.pluginmanager.register(_Run(), "claimant-run")


def left_behind() -> list[str]:
    """The processes of this run that still live, wherever they were re-parented to.

    They are known by a variable that every child inherits, and as children of this process.
    """
    mark, me = os.environ[_RUN], psutil.Process()
    found = set(me.children(recursive=True))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process != me and process.environ().get(_RUN) == mark:
                found.add(process)
    names: list[str] = []

    def ended() -> bool:
        names.clear()
        for process in found:
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.cmdline())
                if servers.alive(process.pid) and not any(helper in words for helper in _HELPERS):
                    names.append(f"{process.pid} {words[:200] or process.name()}")
        return not names

    with contextlib.suppress(TimeoutError):
        servers.wait(ended, "processes to end", 3)
    return sorted(names)


# --- shared servers


def _needed(start: Callable[[], Any]) -> Any:
    try:
        return start()
    except Missing as absent:
        if os.environ.get("CI", "").lower() not in {"", "0", "false"}:
            pytest.fail(f"{MISSING} {absent}", pytrace=False)
        pytest.skip(f"{MISSING} {absent}")


def _shared(config: pytest.Config, name: str) -> Shared:
    def start() -> Shared:
        if hasattr(config, "workerinput"):
            return shared.ask(config.workerinput["claimant_shelf"], name)
        run = config.pluginmanager.get_plugin("claimant-run")
        assert isinstance(run, _Run)
        return run.shelf.get(name)

    return _needed(start)


def _worker_number(config: pytest.Config) -> int:
    """0 without xdist, else from 1 on."""
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    return int(worker.removeprefix("gw")) + 1 if worker else 0


@pytest.fixture(scope="session")
def valkey(pytestconfig: pytest.Config) -> Shared:
    """The shared Valkey. Use a database other than the worker's own at your peril: take `valkey_url`."""
    return _shared(pytestconfig, "valkey")


@pytest.fixture(scope="session")
def redis7(pytestconfig: pytest.Config) -> Shared:
    """The shared redis-server of the distribution; take `redis7_url`."""
    return _shared(pytestconfig, "redis7")


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Shared:
    """The shared PostgreSQL, fsync on; take `pg_dsn`."""
    return _shared(pytestconfig, "postgres")


def _emptied(server: Shared, config: pytest.Config) -> str:
    number = _worker_number(config)
    assert servers.resp(server.port, f"SELECT {number}", "FLUSHDB") == b"+OK\r\n"
    return server.url.rpartition("/")[0] + f"/{number}"


@pytest.fixture
def valkey_url(valkey: Shared, pytestconfig: pytest.Config) -> str:
    """An empty database on the shared Valkey.

    Channels are the server's: every database hears them.
    """
    return _emptied(valkey, pytestconfig)


@pytest.fixture
def redis7_url(redis7: Shared, pytestconfig: pytest.Config) -> str:
    """An empty database on the shared redis-server."""
    return _emptied(redis7, pytestconfig)


@pytest.fixture(params=["valkey", "redis7"])
def redis_url(request: pytest.FixtureRequest) -> str:
    """An empty database on each of the two."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def make_database(postgres: Shared, pytestconfig: pytest.Config) -> Iterator[Callable[[], str]]:
    """A function that gives the URL of a new, empty PostgreSQL database; all are dropped at the end of the test."""
    from tests.support import pg

    made: list[str] = []

    def make() -> str:
        name = f"test_{_worker_number(pytestconfig)}_{next(_databases)}"
        made.append(pg.create_database(postgres.url, name))
        return made[-1]

    yield make
    for url in made:
        pg.drop_database(url)


@pytest.fixture
def pg_dsn(make_database: Callable[[], str]) -> str:
    """The URL of a new, empty PostgreSQL database."""
    return make_database()


# --- servers of a test's own, to pause, kill and restart


def _factory(start: Callable[..., Server]) -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(_needed(lambda: start(**options)))


@pytest.fixture
def private_valkey() -> Iterator[Callable[..., Server]]:
    """Starts a Valkey of the test's own: `private_valkey(password=, maxmemory=, policy=, acl=, args=)`."""
    yield from _factory(servers.valkey)


@pytest.fixture
def private_redis7() -> Iterator[Callable[..., Server]]:
    """Starts a redis-server of the test's own: `private_redis7(password=, maxmemory=, policy=, acl=, args=)`."""
    yield from _factory(servers.redis7)


@pytest.fixture
def private_postgres() -> Iterator[Callable[..., Server]]:
    """Starts a PostgreSQL of the test's own: `private_postgres(fsync=, password=, settings=)`."""
    yield from _factory(servers.postgres)


@pytest.fixture(params=["valkey", "redis7"])
def private_redis(request: pytest.FixtureRequest) -> Callable[..., Server]:
    """`private_valkey` and `private_redis7` in turn."""
    return request.getfixturevalue(f"private_{request.param}")
