"""The ledger in PostgreSQL, for jobs that run on several hosts.

Its clock is the server's. Its tables are made by `claimant init`, never by a job that starts. A request takes three
round trips at most, under a lock on its job's row, and the server ends the transaction of a client that is
paused in between, so that one frozen worker does not hold up the others.

`begin` and `skip` commit without waiting for the disk, as do ends that close no slot; what closes a slot commits with
the server's own durability (see `book.is_durable`).
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from claimant._drive import clock
from claimant._drive.worker import Worker
from claimant._model.durations import in_words
from claimant._model.errors import ClaimantError, LedgerAbsent, LedgerCorrupt, Refused
from claimant._model.records import (
    CloseSlot,
    Finish,
    LedgerNow,
    LedgerReply,
    LedgerRequest,
    SlotState,
)
from claimant.ledger import schema
from claimant.ledger.address import PostgresPlace
from claimant.ledger.book import Late, is_durable, is_last, is_repeatable, steps
from claimant.ledger.lines import SHORTEST_PAUSE_S, Busy, Line, Lines, Unreachable, Watch
from claimant.ledger.pages import Page, Sql
from claimant.ledger.patience import Patience, Unsettled, absent
from claimant.ledger.server_words import advice_for, may_have_room
from claimant.ledger.text import with_nul, without_nul

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg import Error as PsycopgError

    from claimant._model.rows import JobRow, RunRow, SkipRow, TallyRow
    from claimant.ledger.reading import Query, Survey

T = TypeVar("T")

_NOW = "(floor(extract(epoch FROM clock_timestamp()) * 1000))::bigint"
_READ_MS = 30_000
"""Reading for people may take this long."""
CROWDED_MS = 20_000
"""How long the last writes of a process that ends are tried on a server that is there and crowded."""
SILENT_DEADLINES = 5
"""How many deadlines they are given by a server that says nothing at all."""
HEARD_MS = 5_000
"""A server that was heard within this time, be it that it has no room, is there."""
_INIT_LOCK = 0x636C61696D616E74
"""The advisory lock that two `init`s at once take in turn; the letters of "claimant"."""
_ALTER_MS = 200
"""How long `init` waits for a table that somebody uses. Jobs queue up behind it, and have a deadline."""
# Not by name: the first version had one column.
_VERSION_ROW = b"SELECT * FROM claimant_ledger ORDER BY version DESC LIMIT 1"
_NOT_MADE = {"42P01", "42703", "3F000"}
"""No such table, column or schema."""
_LOCKED, _TOO_SLOW, _FORBIDDEN, _READ_ONLY = "55P03", "57014", "42501", "25006"


class _Attempt:
    """One try at a request. `sealed`: the writes and the commit were sent."""

    sealed = False


class PostgresLedger:
    """A `LedgerPort` on a database."""

    host_local = False

    def __init__(self, place: PostgresPlace, *, namespace: str, deadline_ms: int) -> None:
        self._place = place
        self.address = place.address
        self.namespace = namespace
        self.deadline_ms = deadline_ms
        self._watch = Watch()
        self._lines = Lines(self._connect, may_have_room)
        self._patience = Patience(self.address)
        self._heard_ms: int | None = None
        self._reached = False
        """Whether it ever answered: what a server says against us after that is an outage, and stops no fleet."""

    def __repr__(self) -> str:
        return f"<PostgresLedger {self.address}>"

    # -- the port

    def call(self, request: LedgerRequest) -> LedgerReply:
        """Carry out one request.

        Raises `LedgerAbsent`, or `Refused`: CLM080 where `claimant init` has not been run, CLM083 where the server answers
        that the database or the user is not there, or that the password is wrong.
        """
        if isinstance(request, LedgerNow):
            return self.now()
        within_ms = request.within_ms if isinstance(request, Late) else self.deadline_ms
        try:
            return self._asked(
                within_ms,
                lambda line, until_ms, attempt: self._carried_out(line, request, until_ms, attempt),
                repeatable=is_repeatable(request),
                last=is_last(request),
            )
        except (LedgerCorrupt, Refused) as error:
            if isinstance(request, Finish | CloseSlot):
                # The body has run: its own result must not be hidden by what became of the record.
                raise absent(self.address, str(error)) from error
            raise

    def now(self) -> int:
        """The server's clock, epoch ms."""
        sql = Sql("SELECT claimant_now()")
        [[now]] = self._asked(
            self.deadline_ms, lambda line, _until, _attempt: _rows(line.connection, "", [sql])
        )
        return int(now)

    def jobs(self, job: str | None = None) -> list[JobRow]:
        """See `LedgerPort.jobs`."""
        from claimant.ledger import reading  # which no start needs

        return self._read(lambda query, version: reading.jobs(query, self.namespace, job, version))

    def tallies(self, job: str | None = None) -> list[TallyRow]:
        """See `LedgerPort.tallies`."""
        from claimant.ledger import reading  # which no start needs

        return self._read(lambda query, _: reading.tallies(query, self.namespace, job))

    def runs(self, *, since: int = 0, job: str | None = None) -> list[RunRow]:
        """See `LedgerPort.runs`."""
        from claimant.ledger import reading  # which no start needs

        return self._read(lambda query, version: reading.runs(query, self.namespace, since, job, version))

    def skips(self, *, since: int = 0, job: str | None = None) -> list[SkipRow]:
        """See `LedgerPort.skips`."""
        from claimant.ledger import reading  # which no start needs

        return self._read(lambda query, _: reading.skips(query, self.namespace, since, job))

    def survey(self, job: str | None = None, *, namespace: str | None = None) -> Survey:
        """What `status` shows, of one namespace or of all (None), within one deadline. Raises `LedgerAbsent`."""
        from claimant.ledger import reading  # which no start needs

        return self._read(
            lambda query, version: reading.survey(query, namespace, job, version), self.deadline_ms
        )

    def init(self, within_ms: int) -> None:
        """Make the tables that are missing, or bring older ones up to date, in one transaction; two at once take turns.

        A table is altered the moment nobody reads or writes it. While somebody does, this waits for so short a time that the
        jobs which queue up behind it do not notice, lets them pass, and tries again.
        """
        driver = _driver()
        until_ms = clock.now_ms() + within_ms

        def make() -> None:
            with self._connected(within_ms) as connection:
                while True:
                    try:
                        with connection.transaction():
                            self._made(connection, max(until_ms - clock.now_ms(), 1))
                    except driver.errors.LockNotAvailable:
                        if clock.now_ms() >= until_ms:
                            raise
                    else:
                        return
                    time.sleep(random.uniform(0.05, 0.2))  # noqa: S311 - spreads retries, hides nothing

        try:
            # On a thread of its own, because a name may never resolve.
            Worker("claimant-ledger-init").submit(make).result(within_ms / 1000)
        except (TimeoutError, driver.errors.LockNotAvailable) as error:
            what = f"nothing within {in_words(within_ms)}, or something keeps its tables locked: another init, a backup, an open transaction"
            raise absent(self.address, what) from error
        except driver.Error as error:
            raise self._refusal(error) or absent(self.address, self._words(error)) from None

    def _made(self, connection: Connection[Any], left_ms: int) -> None:
        connection.execute(f"SET LOCAL lock_timeout = {left_ms}".encode())
        connection.execute(f"SELECT pg_advisory_xact_lock({_INIT_LOCK})".encode())
        # Also an index that is there already has its table locked for a moment.
        connection.execute(f"SET LOCAL lock_timeout = {_ALTER_MS}".encode())
        *tables, version = schema.statements("postgresql")
        for text in tables:
            connection.execute(text.encode())
        found: Sequence[Any] = connection.execute(_VERSION_ROW).fetchone() or ()
        if schema.is_older(found):
            for text in schema.migration("postgresql", schema.version_of(found)):
                connection.execute(text.encode())
        connection.execute(version.encode())
        schema.checked_version(connection.execute(_VERSION_ROW).fetchone() or (), self.address)

    def forget(self) -> None:
        """We are a forked child: nothing of our parent's is ours."""
        self._lines.forget()
        self._patience = Patience(self.address)

    def close(self) -> None:
        """Close the connections. A later call makes new ones."""
        self._lines.close()

    # -- asking

    def _asked(
        self,
        within_ms: int,
        work: Callable[[Line, int, _Attempt], T],
        *,
        repeatable: bool = True,
        last: bool = False,
    ) -> T:
        """Do `work` on a connection within the time, with every way to fail turned into one of ours.

        `last`: there will be no other chance, so a server that was heard a moment ago, and is only crowded, is asked again
        for `CROWDED_MS` in all, and one that says nothing for a few deadlines: it may be crowded as well.
        """
        if not last:
            self._patience.admit()
        began_ms = clock.now_ms()
        while True:
            asked_ms = clock.now_ms()
            try:
                result = self._tried(within_ms, work, repeatable=repeatable)
            except Unreachable as unreachable:
                failure, refused = self._without_line(unreachable, within_ms), not unreachable.spent
            except LedgerAbsent as error:
                failure, refused = error, clock.now_ms() < asked_ms + within_ms
            else:
                self._heard_ms = clock.now_ms()
                return result
            finally:
                self._patience.gave_up()
            now = clock.now_ms()
            heard = self._heard_ms is not None and now - self._heard_ms <= HEARD_MS
            longest_ms = CROWDED_MS if heard else SILENT_DEADLINES * within_ms
            in_doubt = isinstance(failure, Unsettled) and not repeatable
            if not last or (refused and not heard) or in_doubt or now >= began_ms + longest_ms:
                raise failure from None
            time.sleep(random.uniform(0, SHORTEST_PAUSE_S))  # noqa: S311 - it may have answered at once

    def _without_line(self, unreachable: Unreachable, within_ms: int) -> LedgerAbsent:
        """What it means that there is no connection. Raises the refusal, where that is the reason."""
        cause = unreachable.__cause__
        if isinstance(cause, ClaimantError):
            self._patience.answered()
            raise copy.copy(cause) from None
        if unreachable.full:
            self._heard_ms = clock.now_ms()
        what = f"no connection within {in_words(within_ms)}" if cause is None else self._words(cause)
        if unreachable.spent:
            self._patience.spent(what)
        return absent(self.address, what)

    def _tried(self, within_ms: int, work: Callable[[Line, int, _Attempt], T], *, repeatable: bool) -> T:
        """Once. Raises `Unreachable` without a connection, and what `_told` makes of the rest."""
        driver = _driver()
        until_ms = clock.now_ms() + within_ms
        fresh = False
        try:
            while True:
                attempt, dead = _Attempt(), False
                try:
                    with self._lines.taken(until_ms) as line:
                        try:
                            result = work(line, until_ms, attempt)
                        finally:
                            dead = line.connection.closed
                except driver.Error as error:
                    spent = clock.now_ms() >= until_ms
                    if dead and not spent and not fresh and (repeatable or not attempt.sealed):
                        # It was dead before we asked: the server restarted, or something in between closed it.
                        fresh = True
                        self._lines.drop_idle()
                        continue
                    raise self._told(
                        error, within_ms, spent=spent, unsettled=dead and attempt.sealed
                    ) from None
                self._patience.answered()
                return result
        except Busy:
            what = f"all connections of this process were in use for {in_words(within_ms)}"
            raise absent(self.address, what) from None

    def _carried_out(
        self, line: Line, request: LedgerRequest, until_ms: int, attempt: _Attempt
    ) -> LedgerReply:
        connection = line.connection
        flow = steps(self.namespace, request, clock.now_ms(), version=line.version)
        before = (
            ""
            if isinstance(request, SlotState)
            else _begin(until_ms - clock.now_ms(), durable=is_durable(request))
        )
        page = Page(None)
        sql = next(flow)
        try:
            while True:
                rows = _rows(connection, before, [sql])
                before = ""
                sql = flow.send(rows)
        except StopIteration as stop:
            page = Page(*stop.value)
        if not isinstance(request, SlotState):
            attempt.sealed = bool(page.writes)
            _rows(connection, "", [*page.writes, Sql("COMMIT")])
        return page.reply

    def _read(self, read: Callable[[Query, int], T], within_ms: int = _READ_MS) -> T:
        def work(line: Line, until_ms: int, _attempt: _Attempt) -> T:
            connection = line.connection
            before = _snapshot(until_ms - clock.now_ms())

            def query(sql: Sql) -> Sequence[Sequence[Any]]:
                nonlocal before
                rows, before = _rows(connection, before, [sql]), ""
                return rows

            result = read(query, line.version)
            _rows(connection, before, [Sql("COMMIT")])
            return result

        return self._asked(within_ms, work)

    # -- connecting, on the thread of `Lines`

    def _connect(self, until_ms: int) -> Line:
        # Before anything can fail: an interpreter that ends starts no threads, and may have an end to write.
        self._watch.start()
        try:
            connection = self._connected(until_ms - clock.now_ms())
        except _driver().Error as error:
            refusal = None if self._reached else self._refusal(error)
            if refusal is None:
                raise
            raise refusal from None
        try:
            line = Line(connection)
        except BaseException:
            connection.close()
            raise
        try:
            with self._watch.over(line, max(until_ms, clock.now_ms() + self.deadline_ms)):
                found: Sequence[Any] = connection.execute(_VERSION_ROW).fetchone() or ()
            if schema.goes_on_with(found):
                line.version = schema.version_of(found)
            elif schema.is_older(found):
                raise self._not_made()
            else:
                schema.checked_version(found, self.address)
        except _driver().Error as error:
            line.close()
            if error.sqlstate in _NOT_MADE:
                raise self._not_made() from None
            raise
        except BaseException:
            line.close()
            raise
        self._reached = True
        return line

    def _connected(self, within_ms: int) -> Connection[Any]:
        driver = _driver()
        given = driver.conninfo.conninfo_to_dict(self._place.url)
        ours: dict[str, Any] = {
            # psycopg counts in whole seconds and no fewer than two; `Lines` waits no longer than its caller may.
            "connect_timeout": max(2, -(-within_ms // 1000)),
            "application_name": "claimant",
            "client_encoding": "utf8",
        }
        connection: Connection[Any] = driver.connect(
            self._place.url,
            autocommit=True,
            prepare_threshold=None,
            cursor_factory=driver.ClientCursor,
            **{name: value for name, value in ours.items() if name not in given},
        )
        return connection

    # -- what went wrong

    def _told(self, error: PsycopgError, within_ms: int, *, spent: bool, unsettled: bool) -> ClaimantError:
        state = error.sqlstate
        if spent or state == _TOO_SLOW:
            what = f"nothing within {in_words(within_ms)}"
            self._patience.spent(what)
            return absent(self.address, what, unsettled=unsettled)
        self._patience.answered()
        match state:
            case state if state in _NOT_MADE:
                return self._not_made()
            case _ if state == _LOCKED:
                return absent(self.address, "another worker has kept this job's row locked; it may be frozen")
            case _ if state == _FORBIDDEN:
                what = f"{self._words(error)}. Grant its user SELECT, INSERT, UPDATE and DELETE on the claimant_ tables"
                return absent(self.address, what)
            case _ if state == _READ_ONLY:
                return absent(
                    self.address,
                    "it is read-only: a standby, or default_transaction_read_only. Name the primary",
                )
            case _:
                return absent(self.address, self._words(error), unsettled=unsettled)

    def _not_made(self) -> Refused:
        return Refused(
            "CLM080",
            f"the ledger {self.address} has no tables of ours, or old ones: jobs never make them. Run "
            f"`claimant init --ledger {self.address}` once, as a user who may create tables",
        )

    def _refusal(self, error: Exception) -> Refused | None:
        """The refusal for a connection that will fail the same way for ever; None for what may pass."""
        advice = advice_for(error)
        if advice is None:
            return None
        what = f"the ledger {self.address} cannot be used as it is named: {self._words(error)}. {advice}"
        return Refused("CLM083", what)

    def _words(self, error: BaseException) -> str:
        return self._place.shown(" ".join(str(error).split())) or type(error).__name__


def _driver() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise Refused(
            "CLM063", "a ledger in PostgreSQL needs psycopg: pip install 'claimant[postgres]'"
        ) from error
    return psycopg


def _snapshot(left_ms: int) -> str:
    """The start of a transaction whose statements all see what the first one saw."""
    return (
        f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = {max(left_ms, 10)}; "
    )


def _begin(left_ms: int, *, durable: bool) -> str:
    """The start of a transaction that the server ends by itself if we are frozen in its middle."""
    left_ms = max(left_ms, 10)
    return (
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; "
        f"SET LOCAL lock_timeout = {left_ms * 8 // 10}; SET LOCAL statement_timeout = {left_ms * 95 // 100}; "
        f"SET LOCAL idle_in_transaction_session_timeout = {2 * left_ms}; "
    ) + ("" if durable else "SET LOCAL synchronous_commit = off; ")


def _rows(connection: Connection[Any], before: str, statements: Sequence[Sql]) -> list[Sequence[Any]]:
    """Send all statements in one round trip, and return the rows of the last."""
    text = before + "; ".join(sql.text for sql in statements)
    text = text.replace("{lock}", " FOR UPDATE").replace("claimant_now()", _NOW).replace("?", "%s")
    params = [
        without_nul(value) if isinstance(value, str) else value for sql in statements for value in sql.params
    ]
    cursor = connection.execute(text.encode(), params)
    while cursor.nextset():
        pass
    if cursor.description is None:
        return []
    return [
        tuple(with_nul(value) if isinstance(value, str) else value for value in row)
        for row in cursor.fetchall()
    ]
