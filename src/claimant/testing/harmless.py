"""`assert_harmless`: that a duplicate of a job does no harm, tried in the four ways in which duplicates come about.

It runs the job against the caller's own test database, where its guard is; leases and ledger are this test's own. Each
way is given operations that no other way has seen, so each begins with an effect that has not happened yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from claimant import AsyncJob, Claimant, Job, Refused
from claimant._drive import clock
from claimant._model.ops import Release
from claimant._model.outcome import Answer, AnswerKind
from claimant.testing.isolation import isolated, leases_off

MEET_S = 3.0
"""How long one of two attempts waits for the other, in seconds."""
IN_A_ROW, AT_ONCE, LOST, NO_REPLY = (
    "twice in a row",
    "two at the same time",
    "the claim lost between, so that two hold it",
    "the reply lost after the work, and a second delivery",
)


class _ReplyLost(BaseException):
    """The worker is gone before anybody heard how it ended. No `Exception`: the body must not take it for its own."""


class _Try:
    """One way: what each attempt's guard said, and what an attempt does before its first guarded effect and at its end."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.attempts: list[list[Answer[Any]]] = []
        self.look: Callable[[], Any] = lambda: None
        self.after_one: Any = None
        self.before_effect: Callable[[Any], Any] = lambda _: None
        self.at_end: Callable[[], None] = lambda: None
        self._salt = hashlib.sha256(way.encode()).digest()

    def one_done(self) -> None:
        """The first of two attempts has ended, and the second has not begun."""
        self.after_one = self.look()

    def entered(self, run: Any) -> None:
        """An attempt begins: its operations are this way's own."""
        named = run._identity  # noqa: SLF001 - this package is a part of the library

        def own(operation: object) -> Any:
            found = named(operation)
            return replace(found, key=hashlib.sha256(found.key + self._salt).digest())

        run._identity = own  # noqa: SLF001

    def left(self, run: Any) -> None:
        """An attempt has ended, however."""
        self.attempts.append(list(run._journal.answers))  # noqa: SLF001


def assert_harmless(
    job: Job[..., Any] | AsyncJob[..., Any],
    /,
    *args: Any,
    effect: Callable[[], Any] | None = None,
    **kwargs: Any,
) -> None:
    """Start `job(*args, **kwargs)` as duplicates do, and raise `AssertionError` where one did harm.

    Four ways: twice in a row; at the same time; with the claim lost between, so that two hold it; with the reply lost
    after the work, and a second delivery. A guarded job must have one effect in each: one answer "applied" for each
    operation, and "duplicate" for the others. So the effect happens four times, once for each way.

    `effect` is called for a number that each effect changes, such as a balance or a count of rows: then each way must change
    it by as much as one run does. It also finds an effect that is outside of the guard's transaction, which no answer
    shows. A job without a guard (rebuild, scan) needs `effect`, which may return anything that can be compared: it must
    be the same after any number of runs.

    For an `AsyncJob` it brings an event loop of its own; where one is running, `await assert_harmless_async(…)`.
    """
    if isinstance(job, AsyncJob):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(assert_harmless_async(job, *args, effect=effect, **kwargs))
            return
        raise Refused(
            "CLM074",
            f"{job.name}: an event loop is running here. Write `await assert_harmless_async(…)`",
            name=job.name,
        )
    judge = _Judge(job, effect)
    for way in (IN_A_ROW, AT_ONCE, LOST, NO_REPLY):
        trial = _Try(way)
        with isolated(judge.claims), _body(job, _plain(job.body, trial)), judge.judged(trial):
            _WAYS[way](job, trial, lambda: job(*args, **kwargs))


async def assert_harmless_async(
    job: AsyncJob[..., Any], /, *args: Any, effect: Callable[[], Any] | None = None, **kwargs: Any
) -> None:
    """`assert_harmless` on the running loop."""
    judge = _Judge(job, effect)
    for way in (IN_A_ROW, AT_ONCE, LOST, NO_REPLY):
        trial = _Try(way)
        with isolated(judge.claims), _body(job, _coloured(job.body, trial)), judge.judged(trial):
            await _ASYNC_WAYS[way](job, trial, lambda: job(*args, **kwargs))
            await judge.claims.aclose()


# -- the four ways, plain --------------------------------------------------------------------------------------------


def _in_a_row(_job: Any, trial: _Try, start: Callable[[], Any]) -> None:
    start()
    trial.one_done()
    start()


def _at_once(job: Any, trial: _Try, start: Callable[[], Any]) -> None:
    meet = threading.Barrier(2)
    trial.before_effect = lambda _: _met(meet)
    errors: list[BaseException] = []

    def one() -> None:
        try:
            start()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, daemon=True) for _ in range(2)]
    with leases_off(_claims_of(job)):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def _met(meet: threading.Barrier) -> None:
    # Where the other one never comes to an effect, what the answers say of that is judged.
    with contextlib.suppress(threading.BrokenBarrierError):
        meet.wait(MEET_S)


def _lost(job: Any, trial: _Try, start: Callable[[], Any]) -> None:
    def another(run: Any) -> None:
        trial.before_effect = lambda _: None
        _forget_claim(job, run)
        start()

    trial.before_effect = another
    start()


def _no_reply(_job: Any, trial: _Try, start: Callable[[], Any]) -> None:
    def gone() -> None:
        trial.at_end = lambda: None
        raise _ReplyLost

    trial.at_end = gone
    try:
        start()
    except _ReplyLost:
        start()


# -- the same, awaited -----------------------------------------------------------------------------------------------


async def _in_a_row_async(_job: Any, trial: _Try, start: Callable[[], Any]) -> None:
    await start()
    trial.one_done()
    await start()


async def _at_once_async(job: Any, trial: _Try, start: Callable[[], Any]) -> None:
    meet = asyncio.Barrier(2)

    async def met(_: Any) -> None:
        with contextlib.suppress(TimeoutError, asyncio.BrokenBarrierError):
            async with asyncio.timeout(MEET_S):
                await meet.wait()

    trial.before_effect = met
    with leases_off(_claims_of(job)):
        await asyncio.gather(start(), start())


async def _lost_async(job: Any, trial: _Try, start: Callable[[], Any]) -> None:
    async def another(run: Any) -> None:
        trial.before_effect = _nothing_async
        _forget_claim(job, run)
        await start()

    trial.before_effect = another
    await start()


async def _nothing_async(_: Any) -> None: ...


async def _no_reply_async(_job: Any, trial: _Try, start: Callable[[], Any]) -> None:
    def gone() -> None:
        trial.at_end = lambda: None
        raise _ReplyLost

    trial.at_end = gone
    try:
        await start()
    except _ReplyLost:
        await start()


_WAYS = {IN_A_ROW: _in_a_row, AT_ONCE: _at_once, LOST: _lost, NO_REPLY: _no_reply}
_ASYNC_WAYS = {
    IN_A_ROW: _in_a_row_async,
    AT_ONCE: _at_once_async,
    LOST: _lost_async,
    NO_REPLY: _no_reply_async,
}


# -- around the body -------------------------------------------------------------------------------------------------


def _plain(body: Callable[..., Any], trial: _Try) -> Callable[..., Any]:
    def watched(run: Any, *args: Any, **kwargs: Any) -> Any:
        trial.entered(run)
        do = run.once
        first = [True]

        def once(*given: Any, **named: Any) -> Any:
            if first:
                first.clear()
                trial.before_effect(run)
            return do(*given, **named)

        run.once = once
        try:
            result = body(run, *args, **kwargs)
        finally:
            trial.left(run)
        trial.at_end()
        return result

    return watched


def _coloured(body: Callable[..., Any], trial: _Try) -> Callable[..., Any]:
    async def watched(run: Any, *args: Any, **kwargs: Any) -> Any:
        trial.entered(run)
        do = run.once
        first = [True]

        async def once(*given: Any, **named: Any) -> Any:
            if first:
                first.clear()
                await _awaited(trial.before_effect(run))
            return await do(*given, **named)

        run.once = once
        try:
            result = await body(run, *args, **kwargs)
        finally:
            trial.left(run)
        trial.at_end()
        return result

    return watched


async def _awaited(result: Any) -> None:
    if result is not None:
        await result


@contextlib.contextmanager
def _body(job: Any, body: Callable[..., Any]) -> Iterator[None]:
    """The job with another body inside the block."""
    own = job.body
    job.body = body
    try:
        yield
    finally:
        job.body = own


def _claims_of(job: Any) -> Claimant:
    claims: Claimant = job._claims  # noqa: SLF001
    return claims


def _forget_claim(job: Any, run: Any) -> None:
    """The store loses the claim, as one that is restarted, or cut off for a lifetime, does."""
    tenure = run._journal.tenure  # noqa: SLF001
    if tenure is not None:
        port = _claims_of(job).store.blocking()
        port.call(Release(tenure.key, tenure.value, clock.now_ms() + 5_000))
        port.close()


# -- the verdict -----------------------------------------------------------------------------------------------------


class _Judge:
    """What a job's ways must have come to. `one`: what one run changes the effect's value by, or makes it."""

    def __init__(self, job: Any, effect: Callable[[], Any] | None) -> None:
        self._job = job
        self._effect = effect
        self._guarded = job._declared.guard is not None  # noqa: SLF001
        self._one: Any = None
        self.claims = _claims_of(job)
        if not self._guarded and effect is None:
            raise Refused(
                "CLM074",
                f"{job.name}: it has no guard, so nothing says how often its effect happened. Give effect=, a function whose "
                "value is the same after any number of runs, such as a digest of the file that is rebuilt",
                name=job.name,
            )

    @contextlib.contextmanager
    def judged(self, trial: _Try) -> Iterator[None]:
        """The block of one way. Raises `AssertionError` at its end where a duplicate did harm."""
        trial.look = (lambda: None) if self._effect is None else self._effect
        before = trial.look()
        yield
        if self._guarded:
            self._answers(trial)
        if self._effect is not None:
            self._values(trial, before, trial.look())

    def _values(self, trial: _Try, before: Any, after: Any) -> None:
        if trial.way == IN_A_ROW:
            self._one = trial.after_one - before if self._guarded else trial.after_one
            if self._guarded and trial.after_one == before:
                self._harm(
                    trial,
                    f"effect= was {before!r} before the first run and after it: it does not see the effect",
                )
        found = after - before if self._guarded else after
        if found != self._one:
            what = "changes it by" if self._guarded else "makes it"
            self._harm(
                trial,
                f"the effect came to {found!r}, and one run {what} {self._one!r}. Do all of it in the function that run.once() "
                "calls, on the connection that it gives",
            )

    def _answers(self, trial: _Try) -> None:
        used = [answers for answers in trial.attempts if answers]
        if not used:
            self._harm(
                trial,
                f"{len(trial.attempts)} runs, and none of them used the declared guard. Do the effect with run.once(conn, effect)",
            )
        for answer in (answer for answers in used for answer in answers):
            # Of two at the same time one may be told to come back: it has done nothing.
            well = (AnswerKind.APPLIED, AnswerKind.DUPLICATE) + (
                (AnswerKind.IN_FLIGHT,) if trial.way == AT_ONCE else ()
            )
            if answer.kind not in well:
                self._harm(trial, f"{answer.operation} was answered {answer.kind.value}: {answer.reason}")
        named = [{answer.operation for answer in answers} for answers in used]
        if any(each != named[0] for each in named):
            self._harm(
                trial,
                f"the runs had operations of their own ({', '.join(sorted(set().union(*named))[:3])}): the identity must come "
                "from the business key, and be the same for every attempt",
            )
        applied = Counter(
            answer.operation
            for answers in used
            for answer in answers
            if answer.kind is AnswerKind.APPLIED and not answer.replayed
        )
        for operation, count in sorted(applied.items()):
            if count > 1:
                self._harm(trial, f"{operation} was applied {count} times")

    def _harm(self, trial: _Try, what: str) -> NoReturn:
        raise AssertionError(f"{self._job.name}: {trial.way}: {what}")
