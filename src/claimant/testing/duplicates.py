"""The four ways in which duplicates come about, each written once for plain and for async jobs.

A way is a generator that yields what it wants (start attempts, wait, look at the effect); `harmless` carries it out with
threads or with tasks. It decides nothing about the result: that is `verdict`'s.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from claimant._drive import clock
from claimant._drive.ports import Store
from claimant._model.holding import Tenure
from claimant._model.ops import Release
from claimant._model.outcome import Answer, Outcome

MEET_S = 3.0
"""How long one of two attempts waits for the other, in seconds."""


class Flag(Protocol):
    """A `threading.Event` or an `asyncio.Event`."""

    def set(self) -> None:
        """Raise it, for good."""
        ...


@dataclass(eq=False, slots=True)
class Attempt:
    """One start of the job, and what came of it."""

    arrived: Flag
    """It is before its first guarded effect, or it has ended."""
    ended: Flag
    began: bool = False
    """Whether the body was entered."""
    tenure: Tenure | None = None
    answers: Sequence[Answer[Any]] = ()
    outcome: Outcome[Any] | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Start `count` attempts, beside whatever runs. The reply is a list of them."""

    count: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the flag is set, or `limit_s` seconds; without a limit, for as long as it takes."""

    flag: Flag
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The reply is what the caller's `effect` gives now; None without one."""


Steps: TypeAlias = Generator[Start | Wait | Look, Any, None]


class Crashed(BaseException):
    """The worker is gone at this point. No `Exception`: the body must not take it for its own."""


@dataclass(eq=False, slots=True)
class Way:
    """What all four share. `store`: where the attempts claim; `after_one`: the effect when one attempt had ended."""

    name: ClassVar[str]
    leases_off: ClassVar[bool] = False
    """Whether the attempts take no leases, so that none is turned away."""

    store: Store
    at_most_once: bool = False
    """Whether the job would rather have no effect than two: a start closes its slot, so a dead worker's is not done again."""
    attempts: list[Attempt] = field(default_factory=list)
    after_one: Any = None

    def drive(self) -> Steps:
        """The way, from outside."""
        raise NotImplementedError

    def before_effect(self, attempt: Attempt) -> Steps:
        """In an attempt, right before its first guarded effect, or at the body's start where it has no guard."""
        attempt.arrived.set()
        yield from ()

    def before_commit(self, attempt: Attempt) -> None:
        """In an attempt, when a guarded effect has been done and is not committed yet."""

    def after_commit(self, attempt: Attempt) -> None:
        """In an attempt, when `run.once` has committed an effect and the body goes on."""

    def at_end(self, attempt: Attempt) -> None:
        """In an attempt, when the body has returned and nobody has heard of it."""


def _one() -> Steps:
    """One attempt, to its end. What it raised is raised."""
    (attempt,) = yield Start(1)
    yield Wait(attempt.ended)
    if attempt.error is not None:
        raise attempt.error


def _ended(attempts: Sequence[Attempt]) -> Steps:
    """Wait for attempts that met. One that failed where another did not is delivered again, as a queue does.

    A serialization failure in the caller's own transaction does no harm: nothing of that attempt stands.
    """
    for attempt in attempts:
        yield Wait(attempt.ended)
    failed = [attempt.error for attempt in attempts if attempt.error is not None]
    if failed and (len(failed) == len(attempts) or not isinstance(failed[0], Exception)):
        raise failed[0]
    if failed:
        yield from _one()


@dataclass(eq=False, slots=True)
class InARow(Way):
    """A message that is delivered twice."""

    name = "twice in a row"

    def drive(self) -> Steps:
        """See `Way`."""
        yield from _one()
        self.after_one = yield Look()
        yield from _one()


@dataclass(eq=False, slots=True)
class AtOnce(Way):
    """Two workers, and no lease between them: both come to the guard at the same time."""

    name = "two at the same time"
    leases_off = True

    def drive(self) -> Steps:
        """See `Way`."""
        yield from _ended((yield Start(2)))

    def before_effect(self, attempt: Attempt) -> Steps:
        """Where the other one never comes here, the verdict is about what it did instead."""
        attempt.arrived.set()
        for other in self.attempts:
            yield Wait(other.arrived, MEET_S)


@dataclass(eq=False, slots=True)
class ClaimLost(Way):
    """The store forgets the claim while its holder is before the effect: a second one is granted it, and does the work."""

    name = "the claim lost between, so that two hold it"
    lost: bool = False

    def drive(self) -> Steps:
        """See `Way`."""
        (first,) = yield Start(1)
        yield Wait(first.ended)
        yield from _ended(self.attempts)

    def before_effect(self, attempt: Attempt) -> Steps:
        """The first attempt loses its claim, and the second one begins."""
        attempt.arrived.set()
        if self.lost:
            return
        self.lost = True
        if attempt.tenure is not None:
            port = self.store.blocking()
            port.call(Release(attempt.tenure.key, attempt.tenure.value, clock.now_ms() + 5_000))
            port.close()
        (second,) = yield Start(1)
        # The first may keep rows locked that the second wants: then it goes on, and the second after it.
        yield Wait(second.ended, MEET_S)


@dataclass(eq=False, slots=True)
class ReplyLost(Way):
    """A worker that dies before the COMMIT, one that dies after it and before anybody heard, and a third delivery."""

    name = "the reply lost after the work, and another delivery"

    def drive(self) -> Steps:
        """See `Way`."""
        for dies in (True, True, False):
            (attempt,) = yield Start(1)
            yield Wait(attempt.ended)
            if attempt.error is not None and not (dies and isinstance(attempt.error, Crashed)):
                raise attempt.error

    def before_commit(self, attempt: Attempt) -> None:
        """The first attempt ends here: what it did in the guard's transaction is rolled back, and nothing else is."""
        if attempt is self.attempts[0] and not self.at_most_once:
            raise Crashed

    def after_commit(self, attempt: Attempt) -> None:
        """The second attempt ends here: its effect stands, and what the body would have done next is not done."""
        if attempt in self.attempts[:2]:
            raise Crashed

    def at_end(self, attempt: Attempt) -> None:
        """Or here, where the body itself commits, or where there is no guard: the work stands, and nobody has heard of it."""
        if attempt in self.attempts[:2]:
            raise Crashed


WAYS: tuple[type[Way], ...] = (InARow, AtOnce, ClaimLost, ReplyLost)
