"""What a flow asks of the world, and what the world may answer.

A flow is a generator: it yields one of these requests and is sent the reply. Interpreters (blocking, asyncio,
simulated) carry them out. `waits` says whether carrying a request out may take time; the asyncio interpreter
awaits those. All times are whole milliseconds on the holder's own clock that counts suspend, unless a name says
`epoch`, which is the ledger's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, ClassVar, TypeAlias, TypeVar

from claimant._model.events import Event
from claimant._model.record import record

T = TypeVar("T")
Flow: TypeAlias = Generator[Any, Any, T]
"""A generator that yields requests of this module and returns `T`."""


@record
class Request:
    """A request of a flow."""

    waits: ClassVar[bool] = False


# -- the world of one process ------------------------------------------------------------------------------------


@record
class Now(Request):
    """The time, in ms on the holder's clock. Reply: int."""


@record
class HostEpoch(Request):
    """The host's wall clock, in epoch ms: only for a slot whose ledger is away. Reply: int."""


@record
class SleepUntil(Request):
    """Do nothing until `at_ms`. Reply: None."""

    at_ms: int
    waits: ClassVar[bool] = True


@record
class NewToken(Request):
    """A random value nobody can guess and nobody else has: 32 hexadecimal characters. Reply: str."""


@record
class Jitter(Request):
    """A random whole number from 0 to `limit` inclusive. Reply: int."""

    limit: int


@record
class Emit(Request):
    """Tell the observers. Never fails, never waits. Reply: None."""

    event: Event


@record
class Call(Request):
    """Run the user's code: `work()`, awaited under asyncio. What it raises is thrown into the flow. Reply: its result."""

    work: Callable[[], Any]
    waits: ClassVar[bool] = True


# -- the breaker of one process and store ------------------------------------------------------------------------


@record
class Gate(Request):
    """May a store request be sent now? Reply: bool; False while the breaker is open."""


@record
class Report(Request):
    """Feed the breaker. `ok`: the store answered. `spent`: the whole deadline went by without an answer.

    Reply: bool, True if this report opened the breaker: the flow then hands a `Probe` to the keeper.
    """

    ok: bool
    spent: bool = False
    reason: str = ""


NOW, NEW_TOKEN, GATE, ANSWERED = Now(), NewToken(), Gate(), Report(ok=True)
"""What flows ask for over and over: one of each will do."""


# -- the keeper --------------------------------------------------------------------------------------------------


@record
class Hand(Request):
    """Put `item` into the keeper's inbox: a `Tenure` to renew, a `Cleanup`, a `Probe`. Never waits. Reply: None."""

    item: Any


@record
class Inbox(Request):
    """The keeper's own wait: what arrived since, or () at `until_ms` (None: no end); None when told to stop."""

    until_ms: int | None
    waits: ClassVar[bool] = True


@record
class Tell(Request):
    """The state of `tenure` has changed: its holder sees that in the tenure, observers get `event`. Reply: None."""

    tenure: Any
    event: Event


# -- the store ---------------------------------------------------------------------------------------------------


@record
class StoreRequest(Request):
    """A request to the lease store. `until_ms` is a hard deadline for the whole of it, connect included."""

    waits: ClassVar[bool] = True


@record
class Create(StoreRequest):
    """Create `key` with `value` and lifetime, only if absent, in one operation. Reply: CreateReply.

    A key that holds this very value already is our own earlier request: the reply is `Granted`.
    """

    key: str
    value: str
    lifetime_ms: int
    until_ms: int


@record
class Release(StoreRequest):
    """Delete `key` if it holds `value`. Reply: Released | NotOurs | StoreAbsent | StoreUnknown."""

    key: str
    value: str
    until_ms: int


@record
class Renewal:
    """One lease of a batch: set `key` to a full lifetime from now if it holds `value`."""

    key: str
    value: str
    lifetime_ms: int


@record
class Renew(StoreRequest):
    """Renew a batch. Never creates, never shortens. Reply: tuple[RenewReply, ...], one per item, in order."""

    items: tuple[Renewal, ...]
    until_ms: int


@record
class Repair(StoreRequest):
    """If `key` still holds `value`, give it `lifetime_ms` from now. Only for broken lifetimes. Reply: RenewReply."""

    key: str
    value: str
    lifetime_ms: int
    until_ms: int


@record
class Peek(StoreRequest):
    """Read `key`, change nothing. Reply: Held | Vacant | StoreAbsent | StoreUnknown."""

    key: str
    until_ms: int


@record
class Granted:
    """The claim is ours. `recognised`: the key already held our value (an earlier send had been applied)."""

    recognised: bool = False


@record
class Held:
    """Somebody else's value is there. `remaining_ms` is the store's count; None: the key has no lifetime at all."""

    value: str
    remaining_ms: int | None


@record
class Vacant:
    """Nothing under that key."""


@record
class Released:
    """Deleted by this request."""


@record
class Renewed:
    """A full lifetime from the time this request was carried out."""


@record
class NotOurs:
    """The store answered, from a node that can know: the key is gone or holds another value."""


@record
class StoreAbsent:
    """Not applied, for certain: refused, unresolved, never sent, or answered with an error that says so."""

    reason: str


@record
class StoreUnknown:
    """May have been applied: sent, and no answer (or an answer from a node that cannot know)."""

    reason: str


CreateReply: TypeAlias = Granted | Held | StoreAbsent | StoreUnknown
ReleaseReply: TypeAlias = Released | NotOurs | StoreAbsent | StoreUnknown
RenewReply: TypeAlias = Renewed | NotOurs | StoreAbsent | StoreUnknown
PeekReply: TypeAlias = Held | Vacant | StoreAbsent | StoreUnknown
StoreReply: TypeAlias = CreateReply | ReleaseReply | RenewReply | PeekReply | tuple[RenewReply, ...]
