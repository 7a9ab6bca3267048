"""What a job's body is given: its slot, its lease, progress, and the guarded effect."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload

from claimant._drive import clock
from claimant._model.errors import Refused
from claimant._model.operation import Operation, identify, part_text
from claimant._model.outcome import Answer, AnswerKind, Claim
from claimant._model.policy import Mode
from claimant.guards import Attested, Context, Once, Said, once_aio, once_blocking
from claimant.leases import Lease

if TYPE_CHECKING:
    from claimant._model.journal import Journal

T = TypeVar("T")


class _Runs:
    """What both colours share."""

    def __init__(
        self,
        journal: Journal,
        *,
        operation: Operation | None,
        lease: Lease,
        guard: Once | Attested | None,
        emit: Callable[..., None],
        committed: Callable[[], None] | None,
    ) -> None:
        self._journal = journal
        self._operation = operation
        self._guard = guard
        self._emit = emit
        self._committed = committed
        self._used: set[bytes] = set()
        self.lease = lease
        self.run_id = journal.run_id
        self.slot = journal.slot

    @property
    def operation(self) -> str | None:
        """The identity of what must happen once, for people; None where neither key nor slot names it."""
        return None if self._operation is None else self._operation.label

    def beat(self) -> None:
        """Show progress; raises `LeaseLost` where the claim may not be believed and the job's policy is to stop."""
        self.lease.beat()

    def _identity(self, operation: object) -> Operation:
        name = self._journal.plan.name
        if operation is not None:
            parts = operation if isinstance(operation, tuple) else (operation,)
            found = identify(
                name,
                {
                    str(at): part_text(part, what=f"operation[{at}]", name=name)
                    for at, part in enumerate(parts)
                },
            )
        elif self._operation is not None:
            found = self._operation
        else:
            raise Refused(
                "CLM033",
                f"{name}: run.once() does not know what must happen once. Declare key=[…] or every=…, or name each item: "
                'run.once(conn, effect, operation=("invoice", 42))',
                name=name,
            )
        if found.key in self._used:
            raise Refused(
                "CLM034",
                f"{name}: {found.label} is used twice in one run; the second would be answered as a duplicate of the first. "
                "Give each item of a batch its own operation=",
                name=name,
            )
        return found

    def _declared(self) -> Once:
        if not isinstance(self._guard, Once):
            name = self._journal.plan.name
            raise Refused(
                "CLM035", f"{name}: run.once() needs guard=once(db) in the job's declaration", name=name
            )
        return self._guard

    def _hole(self) -> str:
        tenure = self._journal.tenure
        if tenure is not None:
            return tenure.hole(clock.now_ms())
        match self._journal.claim:
            case Claim.ABSENT | Claim.UNKNOWN:
                return "store absent"
            case Claim.OFF:
                return "leases off"
            case _:
                return ""

    def _context(self) -> Context:
        journal = self._journal
        return Context(
            job=journal.plan.name,
            stake=journal.plan.stake.value,
            run_id=journal.run_id,
            hole=self._hole(),
            emit=self._emit,
            committed=self._committed,
            observe=journal.plan.mode is Mode.OBSERVE,
        )

    def _noted(self, found: Operation, said: Said[T], hole: str, checked: str) -> Answer[T]:
        from claimant._flows.once_inside import WOULD_REJECT  # by the first guarded run
        from claimant._model.records import AnswerRow

        answer = said.answer
        if answer.kind in (AnswerKind.APPLIED, AnswerKind.DUPLICATE):
            self._used.add(found.key)
        self._journal.answers.append(answer)
        self._journal.last[found.key] = answer
        kind = WOULD_REJECT if answer.would_reject else answer.kind.value
        self._journal.rows.append(AnswerRow(answer.operation, kind, hole, said.joined, checked))
        if said.still_open is not None:
            self._journal.still_open.append(said.still_open)
        return answer


class Run(_Runs):
    """One run of a job with a plain body."""

    def beats(self, items: Iterable[T]) -> Iterator[T]:
        """The items, with a beat after each one that the body completed."""
        for item in items:
            yield item
            self.beat()

    def once(
        self, conn: Any, effect: Callable[[Any], T], operation: tuple[object, ...] | None = None
    ) -> Answer[T]:
        """Do `effect(tx)` once for this operation; a second attempt is rejected, counted and answered.

        `conn`: an engine, a pool or an idle connection (the guard opens its own transaction), or a connection or
        session in a transaction (the guard joins it). The guard row commits with the effect. `effect` runs for the
        first attempt only, and again if the whole transaction has to be run again; it must not commit.
        """
        guard, found = self._declared(), self._identity(operation)
        context, checked = self._context(), self.lease.checked
        said = once_blocking(guard, conn, effect, found, context)
        return self._noted(found, said, context.hole, checked)


class AsyncRun(_Runs):
    """One run of a job whose body is `async def`: the same, awaited where it must be."""

    async def beats(self, items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
        """The items, with a beat after each one that the body completed."""
        if isinstance(items, AsyncIterable):
            async for item in items:
                yield item
                self.beat()
        else:
            for item in items:
                yield item
                self.beat()

    @overload
    async def once(
        self,
        conn: Any,
        effect: Callable[[Any], Awaitable[T]],
        operation: tuple[object, ...] | None = None,
    ) -> Answer[T]: ...

    @overload
    async def once(
        self, conn: Any, effect: Callable[[Any], T], operation: tuple[object, ...] | None = None
    ) -> Answer[T]: ...

    async def once(
        self, conn: Any, effect: Callable[[Any], Any], operation: tuple[object, ...] | None = None
    ) -> Answer[Any]:
        """`Run.once`, awaited. `effect` may be a plain function or a coroutine function."""
        guard, found = self._declared(), self._identity(operation)
        context, checked = self._context(), self.lease.checked
        said = await once_aio(guard, conn, effect, found, context)
        return self._noted(found, said, context.hole, checked)
