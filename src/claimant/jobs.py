"""Jobs: a declaration and a body. The body's colour decides: `def` makes a `Job`, `async def` an `AsyncJob`."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from claimant._model.errors import Refused
from claimant._model.names import job_key, key_text
from claimant._model.outcome import Claim, Outcome
from claimant._model.policy import Absent, Held, Mode, OnLoss, Plan
from claimant._model.slots import Schedule, named
from claimant.declaring import Declared, operation_of, parts_of, refuse_unnamed, signature_of
from claimant.guards import Attested
from claimant.leases import Lease
from claimant.runs import AsyncRun, Run

if TYPE_CHECKING:
    import asyncio
    import threading

    from claimant._model.journal import Journal
    from claimant._model.ops import Flow
    from claimant.claims import Claimant
    from claimant.wiring import Wiring

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", Run, AsyncRun)

LARGEST_RESULT = 65_536
"""Characters of a result's JSON that are kept with a slot; larger ones are not kept, and the work still counts."""


def encode_result(result: object) -> str | None:
    """The result as JSON text, or None where it has none or is too large to keep."""
    if result is None:
        return None
    import json

    try:
        text = json.dumps(result)
    except Exception:  # whatever the result's own code raises: the work has happened, and counts
        return None
    return text if len(text) <= LARGEST_RESULT else None


def decode_result(text: str | None) -> Any:
    """The result that `encode_result` kept."""
    import json

    return None if text is None else json.loads(text)


class _Declaration(Generic[P, T]):
    """What both colours share: the declaration, and how one call becomes a flow."""

    def __init__(
        self, claims: Claimant, wiring: Wiring, declared: Declared, body: Callable[..., Any]
    ) -> None:
        self.body = body
        self._claims = claims
        self.name = declared.name
        self._wiring = wiring
        self._declared = declared
        functools.update_wrapper(cast("Callable[..., Any]", self), body)
        # Frameworks read this: `run` is ours to pass, and not theirs to ask for.
        self.__signature__ = signature_of(body, declared)
        run_parameter = next(iter(inspect.signature(body).parameters))
        self.__annotations__ = {
            name: note
            for name, note in getattr(body, "__annotations__", {}).items()
            if name not in (run_parameter, "return")
        }

    def __reduce__(self) -> str:
        # By name, like the function that it stands for: a task queue or a process pool imports it on the other side.
        return str(self.__qualname__)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} stake={self._declared.stake.value}>"

    def _plan(self, parts: dict[str, str], slot: str | None, *, force: bool, standby: bool) -> Plan:
        declared, wiring = self._declared, self._wiring
        key = key_text(parts)
        return Plan(
            name=declared.name,
            lease_key=job_key(wiring.namespace, declared.name, key),
            key=key,
            label=wiring.label,
            stake=declared.stake,
            guarded=declared.guard is not None,
            lifetime_ms=declared.lifetime_ms,
            max_run_ms=declared.max_run_ms,
            deadline_ms=wiring.store.deadline_ms,
            on_loss=declared.on_loss,
            held=Held.STANDBY if standby else declared.held,
            held_wait_ms=declared.held_wait_ms,
            absent=declared.absent,
            absent_wait_ms=declared.absent_wait_ms,
            schedule=declared.schedule,
            stall_after_ms=declared.stall_after_ms,
            attempts=declared.attempts,
            at_most_once=declared.at_most_once,
            slot=slot,
            force=force,
            mode=wiring.mode,
            guard="" if declared.guard is None else declared.guard.describe(),
            attested=isinstance(declared.guard, Attested),
            early_ms=wiring.store.capabilities.early_ms,
            late_ms=wiring.store.capabilities.late_ms,
        )

    def _slot(self, slot: str | None) -> str | None:
        if slot is None:
            return None
        if "slot" in self._declared.key:
            raise Refused(
                "CLM030",
                f"{self.name}: key names 'slot', and the slot of at() is a part of the identity by that name: give the parameter "
                "another name",
                name=self.name,
            )
        self._wiring.refuse_host_local_slots(self.name, "at()")
        return named(slot, self.name)

    def _schedule(self) -> Schedule:
        if self._declared.schedule is None:
            raise Refused(
                "CLM038",
                f"{self.name}: loop() runs the slots of a schedule, and this job has none. Declare every= or cron=",
                name=self.name,
            )
        return self._declared.schedule

    def _start(
        self,
        colour: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        slot: str | None = None,
        force: bool = False,
        standby: bool = False,
    ) -> Flow[Outcome[Any]]:
        from claimant._flows.run import run  # with the first start, and not with the declaration

        try:
            bound = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            shown = f"{self.__signature__}"
            raise TypeError(
                f"{self.name}{shown}: {error}; the run is given by claimant, not by the caller"
            ) from None
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        parts = parts_of(self._declared, arguments)
        plan = self._plan(parts, slot, force=force, standby=standby)
        if plan.slotted and not parts and arguments:
            refuse_unnamed(self.name, self.__signature__, arguments)
        observed = plan.mode is Mode.OBSERVE

        def body(journal: Journal) -> Any:
            lease = Lease(
                self.name,
                journal.tenure,
                on_loss=OnLoss.GO_ON if observed else plan.on_loss,
                absent=Absent.PROCEED if observed else plan.absent,
                give_back=None,
                off=journal.claim is Claim.OFF,
            )
            given = colour(
                journal,
                operation=operation_of(self._declared, parts, journal.slot, arguments),
                lease=lease,
                guard=self._declared.guard,
                emit=self._wiring.emit,
                committed=None if journal.slot is None else lambda: self._wiring.close_slot(journal.run_id),
            )
            return self.body(given, *bound.args, **bound.kwargs)

        return run(plan, body, encode=encode_result, decode=decode_result)


class Job(_Declaration[P, T]):
    """A job with a plain body. Calling it starts it once and returns an `Outcome`; the body's exceptions are raised."""

    body: Callable[Concatenate[Run, P], T]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        """Start the job once, on this thread."""
        return self._wiring.run(self._start(Run, args, kwargs))

    def at(self, slot: str | None = None, /, *, force: bool = False) -> Callable[P, Outcome[T]]:
        """The job, to be called for the slot that its trigger names.

        `slot`: text that is the same for every attempt at one occasion; an instant with a zone is the same slot however it is
        written, and the one that `every=` or `cron=` would compute. `force`: run it though it is closed; that is recorded,
        the claim is still taken, and guards still reject. Raises `Refused`: CLM039, CLM030, CLM050.
        """
        given = self._slot(slot)

        def start(*args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
            return self._wiring.run(self._start(Run, args, kwargs, slot=given, force=force))

        return start

    def loop(self, stop: threading.Event | None = None, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run every slot on this thread until `stop` is set, or, without it, until SIGTERM or SIGINT. A running body ends first.

        The slot that is due now comes first. A body that raises is recorded and logged, and the loop goes on; a slot that is
        open is tried again. Another worker that has the slot is waited for, so what it leaves open is taken over. Signals are
        listened to on the main thread only, and only where nobody else does. Raises `Refused` (CLM038) without a schedule, and
        what is refused at the first start.
        """
        from claimant._drive.stopping import Stopping, on_signals, stoppable
        from claimant._flows.loop import loop

        schedule, wiring = self._schedule(), self._wiring
        with contextlib.nullcontext(stop) if stop is not None else on_signals() as told:
            flow = loop(self.name, schedule, lambda: self._start(Run, args, kwargs, standby=True))
            with contextlib.suppress(Stopping):
                wiring.run(flow, lambda table: stoppable(table, told))


class AsyncJob(_Declaration[P, T]):
    """A job whose body is `async def`. Awaiting its call starts it once and gives an `Outcome`."""

    body: Callable[Concatenate[AsyncRun, P], Awaitable[T]]

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        """Start the job once, on the running loop."""
        return await self._wiring.arun(self._start(AsyncRun, args, kwargs))

    def at(self, slot: str | None = None, /, *, force: bool = False) -> Callable[P, Awaitable[Outcome[T]]]:
        """See `Job.at`; what it returns is awaited."""
        given = self._slot(slot)

        async def start(*args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
            return await self._wiring.arun(self._start(AsyncRun, args, kwargs, slot=given, force=force))

        return start

    async def loop(self, stop: asyncio.Event | None = None, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """See `Job.loop`. Without `stop` it ends on SIGTERM; cancelling it cancels the body, as SIGINT does under asyncio.run."""
        from claimant._drive.stopping import Stopping
        from claimant._drive.stopping_aio import on_signals, stoppable
        from claimant._flows.loop import loop

        schedule, wiring = self._schedule(), self._wiring
        with contextlib.nullcontext(stop) if stop is not None else on_signals() as told:
            flow = loop(self.name, schedule, lambda: self._start(AsyncRun, args, kwargs, standby=True))
            with contextlib.suppress(Stopping):
                await wiring.arun(flow, lambda table: stoppable(table, told))


def colour_of(body: Callable[..., Any], name: str) -> type[Job[..., Any] | AsyncJob[..., Any]]:
    """Which of the two a body makes. Raises `Refused` for generators, whose work would never run."""
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise Refused(
            "CLM037",
            f"{name}: the body is a generator: calling it does no work. Return the result instead of yielding",
            name=name,
        )
    target = body.func if isinstance(body, functools.partial) else body
    call = target if inspect.isroutine(target) or inspect.isclass(target) else type(target).__call__
    return AsyncJob if inspect.iscoroutinefunction(call) else Job
