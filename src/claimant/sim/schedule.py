"""What one schedule consists of: hosts, processes, jobs, and what goes wrong when. Values only; nothing runs here.

Times are true milliseconds since the schedule began. Clocks of hosts, store and ledger differ from it as stated.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from claimant._model.dialect import Dialect
from claimant._model.policy import Absent, Held, OnLoss
from claimant._model.stake import Stake

DEADLINE_MS = 250
"""The store's deadline of every simulated process."""
LATEST_MS = 1_500
"""The longest that the network holds a request which its sender has given up."""
DEMOTED_MS = 400
"""How long an old primary answers that it is none any more, before its clients find the new one."""
EPOCH_MS = 1_800_000_000_000
"""The ledger's epoch at the start of a schedule whose slot begins just then; a multiple of every period used."""


class Mode(StrEnum):
    """How the store behaves during a window."""

    REFUSE = "refuse"
    """Connections are refused: nothing is applied, and that is certain."""
    SILENT = "silent"
    """Requests vanish."""
    FROZEN = "frozen"
    """Requests wait in the server's socket and are carried out when the window ends."""
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Window:
    """A period in which the store (or the ledger: any mode but SLOW means absent) is not itself."""

    mode: Mode
    start_ms: int
    end_ms: int


class Kind(StrEnum):
    """How a server measures a lifetime."""

    EXACT = "exact"
    """In milliseconds, on its wall clock (Redis, Valkey)."""
    EARLY = "early"
    """In whole seconds, up to one second short, on a clock that never steps (memcached)."""
    LATE = "late"
    """In whole seconds, at least two, rounded up; a little late, and counted anew after a restart (etcd)."""

    @property
    def early_ms(self) -> int:
        """By how much a lifetime may end earlier than asked."""
        return 1_000 if self is Kind.EARLY else 0

    @property
    def late_ms(self) -> int:
        """By how much it may end later."""
        return 2_500 if self is Kind.LATE else 0


@dataclass(frozen=True, slots=True)
class Failover:
    """The replica is promoted. `stale`: processes that keep to the old primary, which is alive, for `stale_ms`."""

    at_ms: int
    stale: tuple[int, ...] = ()
    stale_ms: int = 0


@dataclass(frozen=True, slots=True)
class Forgetting:
    """A database fails over to a copy that is behind: what was committed in the `lost_ms` before is gone."""

    at_ms: int
    lost_ms: int


class Harm(StrEnum):
    """What happens to the store's keys at one instant."""

    FLUSH = "flush"
    RESTART_EMPTY = "restart, nothing kept"
    RESTART_KEPT = "restart, everything kept"
    RESTART_OLD = "restart, an old snapshot kept"
    EVICT = "evict"
    """A live key is dropped to make room."""
    CLOCK_AHEAD = "clock steps ahead"
    CLOCK_BACK = "clock steps back"
    PERSIST = "persist"
    """A live key loses its lifetime."""
    FOREIGN = "foreign"
    """Somebody else's value, without a lifetime, under our key; deleted by a person when the faults end."""


@dataclass(frozen=True, slots=True)
class Blow:
    """A harm done to the store at an instant; `pick` chooses the key. `age_ms`: of the snapshot that comes back."""

    at_ms: int
    harm: Harm
    pick: int = 0
    age_ms: int = 0


class Stroke(StrEnum):
    """What interrupts a process."""

    CRASH = "crash"
    FREEZE = "freeze"
    CANCEL = "cancel"
    FAULT = "fault"
    """The keeper's port raises what it must never raise: the keeper ends and is started again."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """A stroke at the `step`-th yield of one process, or at the first one from there that yields a `request`.

    `ms`: the length of a freeze, or the time until a crashed process is back.
    """

    process: int
    step: int
    stroke: Stroke
    ms: int
    request: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """One machine's clocks: the monotonic one's offset, and the wall clock's error, which steps once by `step_ms`."""

    offset_ms: int = 0
    skew_ms: int = 0
    step_at_ms: int = 0
    step_ms: int = 0

    def wall_error_ms(self, now_ms: int) -> int:
        """The wall clock's error now."""
        return self.skew_ms + (self.step_ms if now_ms >= self.step_at_ms else 0)


@dataclass(frozen=True, slots=True)
class SimJob:
    """One job with one key or slot. `starts`: (instant, process); `again_ms`: how often a trigger comes until it is done.

    `beats`: at most so many steps of `beat_ms` in the body. `boom`: how likely the body raises. `hang`: how likely it
    stops beating for `hang_ms`.
    """

    name: str
    stake: Stake
    guarded: bool
    lifetime_ms: int
    max_run_ms: int
    starts: tuple[tuple[int, int], ...]
    again_ms: int = 1_000
    key: str = ""
    every_ms: int | None = None
    held: Held = Held.SKIP
    held_wait_ms: int = 0
    absent: Absent = Absent.PROCEED
    absent_wait_ms: int = 0
    on_loss: OnLoss = OnLoss.GO_ON
    stall_after_ms: int | None = None
    attempts: int = 1
    at_most_once: bool = False
    joined: bool = False
    """Whether the guard joins a transaction of the user's own."""
    beats: int = 3
    beat_ms: int = 150
    boom: float = 0.0
    hang: float = 0.0
    hang_ms: int = 0
    visibility_ms: int | None = None
    """A broker brings this job's messages, and brings one again that was not acknowledged within so much time."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule. `calm_ms`: after it nothing goes wrong any more, and every job must come to its end."""

    seed: int
    hosts: tuple[Host, ...]
    processes: tuple[int, ...]
    """The host of each process."""
    jobs: tuple[SimJob, ...]
    calm_ms: int
    phase_ms: int = 0
    """How far into its slot the ledger's clock is at the start."""
    store_windows: tuple[Window, ...] = ()
    ledger_windows: tuple[Window, ...] = ()
    kind: Kind = Kind.EXACT
    lag_ms: int | None = None
    """How far the store's replica is behind; None: there is none."""
    node_skews: tuple[int, int] = (0, 0)
    """By how much the wall clocks of the store's primary and replica are wrong."""
    cuts: tuple[Window, ...] = ()
    """When nothing reaches the replica; it catches up afterwards."""
    failovers: tuple[Failover, ...] = ()
    blows: tuple[Blow, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    network: float = 0.0
    """How likely one store request meets a fate of its own."""
    fates: tuple[tuple[int, str], ...] = ()
    """Fates of single store requests, by their number from 1: for systematic schedules."""
    ledger_loss: float = 0.0
    """How likely the ledger applies a request and its answer is lost."""
    dialect: Dialect = Dialect.SQLITE
    """The guard's database."""
    guard_loss: float = 0.0
    """How likely the connection to it breaks under a request, before or after that was carried out."""
    ack_loss: float = 0.0
    """How likely the acknowledgement of a message is lost."""
    ledger_failover: Forgetting | None = None
    guard_failover: Forgetting | None = None
    cancels: float = 0.0
    """How likely a waiting main flow is cancelled."""
