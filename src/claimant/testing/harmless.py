"""`assert_harmless`: that a duplicate of a job does no harm, tried in the four ways in which duplicates come about.

It runs the job against the caller's own test database, where its guard is; leases and ledger are this test's own. Every
attempt has a thread, or a task, of its own, as workers have. What it changes on the job is put back at its end.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, cast

from claimant import AsyncJob, Claimant, Job, Refused
from claimant._drive import clock
from claimant._model import slots
from claimant._model.policy import Mode
from claimant._model.record import replaced
from claimant.guards import Attested, Once
from claimant.testing.duplicates import WAYS, Attempt, Look, Start, Steps, Wait, Way
from claimant.testing.isolation import isolated, leases_as
from claimant.testing.verdict import Kept, Verdict

_current: ContextVar[Attempt | None] = ContextVar("claimant_attempt", default=None)


def assert_harmless(
    job: Job[..., Any] | AsyncJob[..., Any],
    /,
    *args: Any,
    effect: Callable[[], Any] | None = None,
    fresh: Callable[[], Any] | None = None,
    **kwargs: Any,
) -> None:
    """Start `job(*args, **kwargs)` as duplicates do, and raise `AssertionError` where one did harm.

    Four ways: twice in a row; two at the same time; with the claim lost between, so that two hold it; with the reply lost
    after the work, and another delivery. In each way each operation must be answered "applied" once. So the effect happens
    four times, once for each way: the guard is told four different operations, though the arguments are the same.

    `effect` is called for a number that each effect changes, such as a balance or a count of rows: each way must change it by
    as much as one run does. It finds what the body does outside of the guard's transaction, which no answer shows. A job
    without a guard (rebuild, scan) needs `effect`, which may then give anything: it must be the same after any number of runs.

    `fresh` is called before each way for arguments that were never used, for effects that can happen only once for the same
    ones, such as a row with a unique column: what it returns is put before `args`, a tuple as several.

    For an `AsyncJob` it brings an event loop of its own; where one is running, `await assert_harmless_async(…)`. What the body
    raises is raised. `Refused` (CLM074) says what cannot be tried, and what to write.

        assert_harmless(debit_wallet, 42, cents=5, effect=balance)
    """
    if isinstance(job, AsyncJob):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(assert_harmless_async(job, *args, effect=effect, fresh=fresh, **kwargs))
            return
        raise _cannot(job.name, "an event loop is running here. Write `await assert_harmless_async(…)`")
    trial = _Trial(job, Job, effect, fresh)
    for way in trial.ways():
        with trial.of(way):
            crew = _Threads(way, trial.start_of(way, args, kwargs), trial.look)
            with _body(job, _plain(job.body, trial, way, crew)):
                before = trial.look()
                with _noted(way):
                    crew.carry_out(way.drive())
                trial.judge(way, before, trial.look())


async def assert_harmless_async(
    job: AsyncJob[..., Any],
    /,
    *args: Any,
    effect: Callable[[], Any] | None = None,
    fresh: Callable[[], Any] | None = None,
    **kwargs: Any,
) -> None:
    """`assert_harmless` on the running loop. `effect` and `fresh` may be coroutine functions."""
    trial = _Trial(job, AsyncJob, effect, fresh)
    for way in trial.ways():
        with trial.of(way):
            given = await _awaited(trial.given())
            crew = _Tasks(way, trial.start_with(way, given, args, kwargs), trial.look)
            try:
                with _body(job, _coloured(job.body, trial, way, crew)):
                    before = await _awaited(trial.look())
                    with _noted(way):
                        await crew.carry_out(way.drive())
                    trial.judge(way, before, await _awaited(trial.look()))
            finally:
                await crew.end()
                await trial.claims.aclose()


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _cannot(name: str, what: str) -> Refused:
    return Refused("CLM074", f"{name}: {what}", name=name)


@contextmanager
def _noted(way: Way) -> Iterator[None]:
    """What the body raises says in which way it did."""
    try:
        yield
    except Exception as error:
        error.add_note(
            f"claimant: raised in assert_harmless, {way.name}. Each way does the effect anew. Where that is not possible with the "
            "same arguments, give fresh=, which returns new ones; each attempt needs a connection of its own"
        )
        raise


# -- one job, and what is to be judged -------------------------------------------------------------------------------


class _Trial:
    """A job, its `effect` and its `fresh`, and the claims that they are tried on."""

    def __init__(self, job: Any, colour: type, effect: Any, fresh: Any) -> None:
        if not issubclass(type(job), colour):  # which leaves `job` as it is for the type checkers
            raise Refused(
                "CLM074",
                f"assert_harmless needs a job, what @claims.job(…) made of the function, and not {type(job).__name__}",
            )
        self._job = job
        self._effect = effect
        self._fresh = fresh
        self._salt = os.urandom(16)
        declared = job._declared  # noqa: SLF001 - this package is a part of the library
        self.kept = {Once: Kept.BY_ONCE, Attested: Kept.OUT_OF_SIGHT}.get(
            type(declared.guard), Kept.BY_ITSELF
        )
        self._schedule = declared.schedule
        self._own_rows = (
            self.kept is Kept.OUT_OF_SIGHT or getattr(declared.guard, "constraint", None) is not None
        )
        self._at_most_once: bool = declared.at_most_once
        self.claims: Claimant = job._claims  # noqa: SLF001
        self._verdict = Verdict(job.name, self.kept)
        self._now = clock.epoch_ms()
        self._refuse()

    def _refuse(self) -> None:
        name, stake = self._job.name, self._job._declared.stake  # noqa: SLF001
        if self.kept is Kept.BY_ITSELF and not stake.cheap:
            raise _cannot(
                name,
                f"a duplicate of a job with stake={stake.value!r} and without a guard does harm; delivery= says what is tolerated. "
                "There is nothing to try before it has a guard",
            )
        if self.kept is not Kept.BY_ONCE and self._effect is None:
            why = "it has no guard" if self.kept is Kept.BY_ITSELF else "its guard is out of sight"
            raise _cannot(
                name,
                f"{why}, so nothing says how often its effect happened. Give effect=, a function whose value shows it, such as a "
                "digest of the file that is rebuilt",
            )
        if self._own_rows and self._fresh is None and self._schedule is None:
            raise _cannot(
                name,
                "its guard looks at your own rows, where the same arguments are one operation, and there are four ways to try. "
                "Give fresh=, a function that returns arguments that were never used",
            )

    def ways(self) -> list[Way]:
        """The four, not begun."""
        return [made(self.claims.store, self._at_most_once) for made in WAYS]

    @contextmanager
    def of(self, way: Way) -> Iterator[None]:
        """Leases and ledger for one way."""
        with isolated(self.claims), leases_as(self.claims, Mode.OFF if way.leases_off else Mode.ENFORCE):
            way.store = self.claims.store
            yield

    def look(self) -> Any:
        """The caller's value."""
        return None if self._effect is None else self._effect()

    def given(self) -> Any:
        """What `fresh` gives for a way."""
        return () if self._fresh is None else self._fresh()

    def start_of(self, way: Way, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """How each attempt of this way is started."""
        return self.start_with(way, self.given(), args, kwargs)

    def start_with(
        self, way: Way, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        """`start_of`, with what `fresh` gave."""
        before = given if isinstance(given, tuple) else (given,)
        start = self._job if self._schedule is None else self._job.at(self._slot(way))
        return lambda: start(*before, *args, **kwargs)

    def _slot(self, way: Way) -> str:
        """One slot for all attempts of a way, though they may begin on both sides of a boundary.

        Where the caller's constraint is the guard, a slot is one operation: then each way has an earlier one.
        """
        at: int = self._schedule.latest(self._now)
        if self._own_rows and self._fresh is None:
            for _ in range([type(way) is each for each in WAYS].index(True)):
                at = self._schedule.latest(at - slots.LONGEST_EARLY_MS - 1)
        return slots.text(at)

    def judge(self, way: Way, before: Any, after: Any) -> None:
        """Raise `AssertionError` where a duplicate did harm."""
        self._verdict.of(way, before, after, looked=self._effect is not None)

    def entered(self, way: Way, run: Any, attempt: Attempt) -> None:
        """An attempt enters the body: its operations are this way's own, and the same for the attempts of the way."""
        attempt.began, attempt.tenure, attempt.answers = (
            True,
            run._journal.tenure,  # noqa: SLF001
            run._journal.answers,  # noqa: SLF001
        )
        named, salt = run._identity, self._salt + way.name.encode()  # noqa: SLF001

        def own(operation: object) -> Any:
            found = named(operation)
            return replaced(found, key=hashlib.sha256(found.key + salt).digest())

        run._identity = own  # noqa: SLF001


# -- attempts in threads, attempts in tasks --------------------------------------------------------------------------


@dataclass(slots=True)
class _Threads:
    """Carries a way out; each attempt has a thread."""

    way: Way
    start: Callable[[], Any]
    look: Callable[[], Any]

    def carry_out(self, steps: Steps) -> None:
        reply: Any = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration:
                return
            match step:
                case Start(count):
                    reply = [Attempt(threading.Event(), threading.Event()) for _ in range(count)]
                    self.way.attempts += reply
                    for attempt in reply:
                        # The context goes along, as a web framework's application is found by it.
                        threading.Thread(
                            target=copy_context().run, args=(self._attempt, attempt), daemon=True
                        ).start()
                case Wait(flag, limit_s):
                    reply = cast("threading.Event", flag).wait(limit_s)
                case Look():
                    reply = self.look()

    def _attempt(self, attempt: Attempt) -> None:
        _current.set(attempt)
        try:
            try:
                attempt.outcome = self.start()
            finally:
                _close_django()
        except BaseException as error:
            attempt.error = error
        finally:
            attempt.arrived.set()
            attempt.ended.set()


def _close_django() -> None:
    """Django's connections belong to their thread, and its test database cannot be dropped while they are open."""
    if "django.db" in sys.modules:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections

        # Imported by somebody, and never set up: then there are no connections.
        with suppress(ImproperlyConfigured):
            connections.close_all()


class _Tasks:
    """Carries a way out on the running loop; each attempt has a task."""

    def __init__(self, way: Way, start: Callable[[], Any], look: Callable[[], Any]) -> None:
        self._way, self._start, self._look = way, start, look
        self._tasks: list[asyncio.Task[None]] = []

    async def carry_out(self, steps: Steps) -> None:
        reply: Any = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration:
                return
            match step:
                case Start(count):
                    reply = [Attempt(asyncio.Event(), asyncio.Event()) for _ in range(count)]
                    self._way.attempts += reply
                    self._tasks += [asyncio.create_task(self._attempt(attempt)) for attempt in reply]
                case Wait(flag, limit_s):
                    reply = await self._waited(cast("asyncio.Event", flag), limit_s)
                case Look():
                    reply = await _awaited(self._look())

    @staticmethod
    async def _waited(flag: asyncio.Event, limit_s: float | None) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                return await flag.wait()
        except TimeoutError:
            return False

    async def _attempt(self, attempt: Attempt) -> None:
        _current.set(attempt)
        try:
            attempt.outcome = await self._start()
        except asyncio.CancelledError as error:
            attempt.error = error
            raise
        except BaseException as error:
            attempt.error = error
        finally:
            attempt.arrived.set()
            attempt.ended.set()

    async def end(self) -> None:
        """Nothing goes on after the assertion, also when it was cancelled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


# -- around the body -------------------------------------------------------------------------------------------------


@contextmanager
def _body(job: Any, body: Callable[..., Any]) -> Iterator[None]:
    """The job with another body inside the block."""
    own = job.body
    job.body = body
    try:
        yield
    finally:
        job.body = own


def _dying(effect: Any, way: Way, attempt: Attempt) -> Any:
    """The effect, after which this attempt may be gone. What is no function is for `run.once` to refuse."""
    if not callable(effect):
        return effect

    async def awaited(result: Any) -> Any:
        found = await result
        way.before_commit(attempt)
        return found

    def done(tx: Any) -> Any:
        result = effect(tx)
        if inspect.isawaitable(result):
            return awaited(result)
        way.before_commit(attempt)
        return result

    return done


def _committed(run: Any) -> bool:
    """Whether the last answer's transaction has ended; a joined one is the caller's to commit."""
    return not run._journal.rows[-1].joined  # noqa: SLF001


def _plain(body: Callable[..., Any], trial: _Trial, way: Way, crew: _Threads) -> Callable[..., Any]:
    def watched(run: Any, *args: Any, **kwargs: Any) -> Any:
        attempt = _current.get()
        if attempt is None:  # somebody else's start, meanwhile
            return body(run, *args, **kwargs)
        trial.entered(way, run, attempt)
        do, first = run.once, [True]

        def once(conn: Any, effect: Any, operation: Any = None) -> Any:
            if first:
                first.clear()
                crew.carry_out(way.before_effect(attempt))
            answer = do(conn, _dying(effect, way, attempt), operation)
            if _committed(run):
                way.after_commit(attempt)
            return answer

        run.once = once
        if trial.kept is not Kept.BY_ONCE:
            crew.carry_out(way.before_effect(attempt))
        result = body(run, *args, **kwargs)
        way.at_end(attempt)
        return result

    return watched


def _coloured(body: Callable[..., Any], trial: _Trial, way: Way, crew: _Tasks) -> Callable[..., Any]:
    async def watched(run: Any, *args: Any, **kwargs: Any) -> Any:
        attempt = _current.get()
        if attempt is None:
            return await body(run, *args, **kwargs)
        trial.entered(way, run, attempt)
        do, first = run.once, [True]

        async def once(conn: Any, effect: Any, operation: Any = None) -> Any:
            if first:
                first.clear()
                await crew.carry_out(way.before_effect(attempt))
            answer = await do(conn, _dying(effect, way, attempt), operation)
            if _committed(run):
                way.after_commit(attempt)
            return answer

        run.once = once
        if trial.kept is not Kept.BY_ONCE:
            await crew.carry_out(way.before_effect(attempt))
        result = await body(run, *args, **kwargs)
        way.at_end(attempt)
        return result

    return watched
