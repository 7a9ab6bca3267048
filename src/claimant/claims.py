"""`Claimant`: one store, one ledger, and the jobs that are declared on them.

Making one and declaring jobs touches no network and no file. The first start does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from claimant._model.durations import Duration
from claimant._model.errors import Refused
from claimant._model.names import checked_name
from claimant._model.policy import Mode
from claimant._model.stake import Stake
from claimant.declaring import declare
from claimant.guards import Attested, Once
from claimant.jobs import AsyncJob, Job, colour_of
from claimant.runs import AsyncRun, Run

if TYPE_CHECKING:
    from claimant._drive.ports import LedgerPort, Observer, Store
    from claimant.holds import Hold

P = ParamSpec("P")
T = TypeVar("T")

Cheap = Literal["rebuild", "scan", Stake.REBUILD, Stake.SCAN]
Guarded = Literal["append", "money", Stake.APPEND, Stake.MONEY]
Notify = Literal["notify", Stake.NOTIFY]
Delivery = Literal["at-least-once", "at-most-once"]


class Options(TypedDict, total=False):
    """What every stake may declare. The overloads of `Claimant.job` add what a stake requires."""

    every: Duration | None
    cron: str | None
    tz: str | None
    key: Sequence[str]
    lifetime: Duration
    max_run: Duration | None
    stall_after: Duration | None
    held: str
    absent: str | None
    on_loss: Literal["go-on", "stop"] | None
    attempts: int
    cost: str | float | timedelta | None


class Declares(Protocol):
    """What `Claimant.job` returns: apply it to the body."""

    @overload
    def __call__(self, body: Callable[Concatenate[AsyncRun, P], Awaitable[T]], /) -> AsyncJob[P, T]: ...
    @overload
    def __call__(self, body: Callable[Concatenate[Run, P], T], /) -> Job[P, T]: ...


def _store_of(target: object) -> Store:
    """A `Store` as it is; anything else is a URL or a client to make one from."""
    if all(hasattr(target, part) for part in ("capabilities", "blocking", "aio", "deadline_ms", "address")):
        return cast("Store", target)
    from claimant.stores import open_store

    return open_store(target)


def _mode_of(mode: object) -> Mode:
    try:
        return Mode(mode)  # type: ignore[arg-type]
    except ValueError:
        raise Refused(
            "CLM052",
            f"mode={mode!r} must be 'enforce', 'observe' (nothing is stopped, what would be is counted) or 'off' (no leases; "
            "guards as always)",
        ) from None


class Claimant:
    """Jobs of which one start at a time does the work, and guards that make a second attempt harmless.

    `store`: a URL (`sqlite:PATH`, `memory:`, `redis://…`, `valkey://…`) or a ready redis-py or valkey-py client;
    left out, the embedded store of this host. `ledger`: a URL (`sqlite:PATH`, `postgresql://…`); left out, the
    embedded ledger of this host. `namespace` keeps deployments that share a store or a ledger apart.
    `mode`: "observe" writes claims and guard rows, stops nothing, and counts what it would have stopped; "off" takes no
    leases, and leaves guards and ledger as they are. `observers` are called with every event, after the one that logs it.

    ```python
    claims = Claimant("redis://localhost:6379/0", ledger="postgresql:///app", namespace="shop")
    ```
    """

    def __init__(
        self,
        store: object = None,
        /,
        *,
        ledger: str | None = None,
        namespace: str = "",
        mode: Literal["enforce", "observe", "off"] = "enforce",
        observers: Iterable[Observer] = (),
    ) -> None:
        # A store, a ledger and the machinery between them: by the program that makes a Claimant, and not by every
        # module that imports one.
        from claimant.embedded import default_ledger, default_store
        from claimant.ledger import Spooled, open_ledger
        from claimant.observe.logging import log_event
        from claimant.wiring import Wiring

        self.namespace = checked_name(namespace, "a namespace") if namespace != "" else ""
        self.store: Store = _store_of(default_store() if store is None else store)
        book = open_ledger(default_ledger() if ledger is None else ledger, namespace=self.namespace)
        self.ledger: LedgerPort = Spooled(book)
        self.jobs: dict[str, Job[..., Any] | AsyncJob[..., Any]] = {}
        self.mode = _mode_of(mode)
        self._wiring = Wiring(self.store, self.ledger, self.namespace, self.mode, (log_event, *observers))

    def __repr__(self) -> str:
        return f"<Claimant {self.store.address} ledger={self.ledger.address} namespace={self.namespace!r}>"

    # -- declaring ----------------------------------------------------------------------------------------------

    @overload
    def job(
        self, name: str, *, stake: Cheap, guard: Once | None = ..., **options: Unpack[Options]
    ) -> Declares: ...
    @overload
    def job(self, name: str, *, stake: Guarded, guard: Once, **options: Unpack[Options]) -> Declares: ...
    @overload
    def job(
        self,
        name: str,
        *,
        stake: Notify,
        delivery: Delivery,
        guard: Once | None = ...,
        **options: Unpack[Options],
    ) -> Declares: ...
    def job(
        self,
        name: str,
        *,
        stake: str = "",
        guard: Once | Attested | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = None,
        key: Sequence[str] = (),
        lifetime: Duration = "30s",
        max_run: Duration | None = None,
        stall_after: Duration | None = None,
        held: str = "skip",
        absent: str | None = None,
        on_loss: str | None = None,
        attempts: int = 1,
        delivery: str | None = None,
        cost: str | float | timedelta | None = None,
    ) -> Declares:
        """Declare a job; apply the result to its body, whose first parameter is the run.

        `stake`: what one duplicate costs; it has no default. `guard`: where the second attempt is rejected.
        `every`: a period; each of its slots is done once. `cron`: five fields instead, in the zone `tz` (this host's zone if it
        is left out: name it where hosts may differ). `key`: the parameters that make another operation.
        `lifetime`: how long the claim lives without renewal (renewed every third of it; it bounds the stall after a
        crash). `max_run`: where renewal ends. `stall_after`: where renewal ends without a beat. `held`: "skip",
        "wait:30s" or "standby". `absent`: "proceed", "skip" or "wait:5m" while the store is absent; derived from
        stake and guard. `on_loss`: "go-on" or "stop" once the claim is lost; rebuild and scan go on. `attempts`:
        failed runs allowed per slot. `delivery`: for notify, which of two and none is worse. `cost`: what one
        duplicate costs, for reports. Durations are seconds, a `timedelta`, or text such as "30s".

        Raises `Refused`, with what to write instead, for everything that cannot be made safe.
        """
        if name in self.jobs:
            raise Refused(
                "CLM002",
                f"{name}: a job of this name is declared already; two jobs must not share one",
                name=name,
            )
        declared = declare(
            name,
            stake=stake,
            guard=guard,
            every=every,
            cron=cron,
            tz=tz,
            key=key,
            lifetime=lifetime,
            max_run=max_run,
            stall_after=stall_after,
            held=held,
            absent=absent,
            on_loss=on_loss,
            attempts=attempts,
            delivery=delivery,
            cost=cost,
            shortest_lifetime_ms=self.store.capabilities.shortest_ms,
        )
        if declared.schedule is not None:
            self._wiring.refuse_host_local_slots(name, "every=" if cron is None else "cron=")

        def decorate(body: Callable[..., Any], /) -> Any:
            job: Job[..., Any] | AsyncJob[..., Any] = colour_of(body, name)(
                self, self._wiring, declared, body
            )
            if name in self.jobs:
                raise Refused("CLM002", f"{name}: this declaration was applied to two bodies", name=name)
            self.jobs[name] = job
            return job

        return decorate

    def hold(
        self,
        name: str,
        *,
        stake: Cheap,
        max_run: Duration,
        wait: Duration | Literal[0] = 0,
        lifetime: Duration = "30s",
    ) -> Hold:
        """Hold a claim for a block of code: `with` or `async with`, giving a `Lease`. For rebuild and scan only.

        `max_run`: where renewal ends. `wait`: how long to wait for a holder. Raises `NotDone` where somebody else
        holds it; where the store is absent the block runs, and `lease.cause` says "absent".
        """
        from claimant.holds import Hold  # with its flows, which declarations do not need

        return Hold(self._wiring, name, stake, max_run, wait, lifetime)

    # -- ending -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the keeper and close connections. What is still held lapses. The object may be used again."""
        self._wiring.close()

    async def aclose(self) -> None:
        """`close()` under asyncio."""
        await self._wiring.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
