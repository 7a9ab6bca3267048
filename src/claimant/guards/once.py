"""The guard `once` as it is declared: rows in the database where the effect lands.

`once(db)` keeps a row for each operation; `once(db, constraint=…)` lets the caller's own unique index reject. Declaring
opens nothing, and imports nothing of what an attempt needs. An external call inside the effect is not protected by it:
after a failed commit that call would stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from claimant._model.durations import Duration, duration_ms, in_words
from claimant._model.errors import Refused
from claimant._model.events import Event
from claimant._model.operation import Operation
from claimant._model.outcome import Answer
from claimant._model.record import record
from claimant._sql.handles import Make, recognise
from claimant._sql.target import Target, engine_of, target_of

T = TypeVar("T")

LONGEST_TEXT = 200


@record
class Context:
    """What a run tells its guard. `hole`: what made a duplicate possible, where known. `committed`: see `Once`."""

    job: str
    stake: str
    run_id: str
    hole: str
    emit: Callable[[Event], object]
    committed: Callable[[], None] | None = None
    """Called after a joined transaction has committed, where the handle can tell (ORM sessions)."""
    observe: bool = False
    """Whether what would be rejected is let through, and counted."""


@record
class Said(Generic[T]):
    """A guard's answer, and what a joined one leaves open. `still_open`: is the caller's transaction still open?"""

    answer: Answer[T]
    joined: bool
    still_open: Callable[[], bool] | None


class Once:
    """A declared guard. Make one with `once()`; it may be shared by jobs and threads."""

    __slots__ = ("constraint", "db", "fit", "longest_ms", "target")

    def __init__(
        self,
        target: Target,
        db: object,
        *,
        constraint: str | None,
        longest_ms: int,
    ) -> None:
        self.target = target
        self.db = db
        self.constraint = constraint
        self.longest_ms = longest_ms
        self.fit: dict[str, Any] = {}
        """What was verified on live databases, by place: see `fitting`."""

    @property
    def dialect(self) -> str:
        """The database's kind: "sqlite" or "postgresql"."""
        return self.target.dialect.value

    def describe(self) -> str:
        """Where the second attempt is rejected, for people; never with a password."""
        by = "" if self.constraint is None else f" by {self.constraint}"
        return f"once in {self.target.address}{by}"

    def __repr__(self) -> str:
        return f"<{self.describe()}, longest {in_words(self.longest_ms)}>"


class Attested:
    """A guard that the caller says is there, out of our sight: for a command, whose effect we never see.

    `text`: where the second attempt is rejected, for whoever reads `claimant status`. It is believed and shown, and
    checks nothing.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        if not text.strip() or not text.isprintable() or len(text) > LONGEST_TEXT:
            raise Refused(
                "CLM048",
                f"the attested guard {text!r} must say in one line where a second attempt is rejected, e.g. 'unique index "
                f"one_debit in postgresql:///app'; at most {LONGEST_TEXT} characters",
            )
        self.text = text.strip()

    def describe(self) -> str:
        """What is attested, for people."""
        return f"attested: {self.text}"

    def __repr__(self) -> str:
        return f"<{self.describe()}>"


def once(
    db: object,
    *,
    constraint: str | None = None,
    longest: Duration = "30s",
) -> Once:
    """Guard an effect in the database `db`: its second attempt is rejected there, in the effect's own transaction.

    `db`: a URL ("postgresql:///app", "sqlite:PATH", "django:ALIAS", SQLAlchemy's spelling too) or a ready engine or pool; it
    says where the effect lands, and `run.once` is given a handle of that database. `constraint`: the name of YOUR unique index or
    constraint, which then is the guard: the effect inserts plainly, and its violation is a duplicate. `longest`: the longest
    that the effect takes, as a duration; in a transaction of our own PostgreSQL ends one that is idle for longer, and a
    duplicate waits that long for the first, at most 30 s.

    Raises `Refused`: CLM040 (nothing that can guard), CLM041 (volatile), CLM010 (not a duration), CLM049 (no constraint).

        debit = once("postgresql:///app")
    """
    target = target_of(db)
    named: object = constraint
    if named is not None and not (isinstance(named, str) and named.strip()):
        raise Refused(
            "CLM049", f"constraint={constraint!r} must name your unique index or constraint, e.g. 'one_debit'"
        )
    found = recognise(db)
    if found is not None and found.make in (Make.ENGINE, Make.MAKER):
        from claimant.guards.on_sqlalchemy import refuse_autocommit

        refuse_autocommit(engine_of(db, found.make))
    return Once(
        target,
        db,
        constraint=constraint,
        longest_ms=duration_ms(longest, "longest"),
    )


def once_blocking(
    guard: Once, handle: Any, effect: Callable[[Any], T], operation: Operation, context: Context
) -> Said[T]:
    """Attempt `operation` once on this thread. Raises what the effect raises, after the rollback, and `Refused`."""
    from claimant.guards.attempting import attempt

    return attempt(guard, handle, effect, operation, context)


async def once_aio(
    guard: Once, handle: Any, effect: Callable[[Any], Any], operation: Operation, context: Context
) -> Said[Any]:
    """`once_blocking` on the running loop; `effect` may be plain or a coroutine function."""
    from claimant.guards.awaiting import attempt

    return await attempt(guard, handle, effect, operation, context)
