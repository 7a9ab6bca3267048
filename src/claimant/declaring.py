"""What a job's declaration fixes, and everything that it refuses, with what to write instead.

Nothing here touches a network, a file or a clock.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from claimant._model.durations import duration_ms, in_words, lifetime_ms
from claimant._model.errors import Refused
from claimant._model.names import checked_name
from claimant._model.operation import Operation, fingerprint_of, identify, is_data, part_text
from claimant._model.policy import Absent, Held, OnLoss
from claimant._model.record import record
from claimant._model.slots import Every, Schedule
from claimant._model.stake import Stake, checked_stake
from claimant.guards import Attested, Once

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DELIVERIES = ("at-least-once", "at-most-once")
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@record
class Declared:
    """A job's declaration, checked. Times are ms."""

    name: str
    stake: Stake
    guard: Once | Attested | None
    schedule: Schedule | None
    key: tuple[str, ...]
    lifetime_ms: int
    max_run_ms: int
    stall_after_ms: int | None
    held: Held
    held_wait_ms: int
    absent: Absent
    absent_wait_ms: int
    on_loss: OnLoss
    attempts: int
    at_most_once: bool
    cost: str | None


def declare(
    name: str,
    *,
    stake: object,
    guard: object,
    every: object,
    cron: object,
    tz: object,
    key: object,
    lifetime: object,
    max_run: object,
    stall_after: object,
    held: object,
    absent: object,
    on_loss: object,
    attempts: object,
    delivery: object,
    cost: object,
    shortest_lifetime_ms: int,
) -> Declared:
    """Check a declaration. Raises `Refused` for what cannot be made safe."""
    checked_name(name)
    what = checked_stake(stake, name=name)
    guarded = _guard(name, what, guard)
    schedule = _schedule(name, every, cron, tz)
    every_ms = schedule.period_ms if isinstance(schedule, Every) else None
    _delivery(name, what, delivery, remembered=schedule is not None or guarded is not None)
    life_ms = lifetime_ms(lifetime, name=name, shortest_ms=shortest_lifetime_ms)
    max_run_ms = _max_run(name, max_run, every_ms, life_ms)
    how_held, held_wait = _held(name, held, schedule)
    how_absent, absent_wait = _absent(name, absent, guarded, delivery)
    return Declared(
        name=name,
        stake=what,
        guard=guarded,
        schedule=schedule,
        key=_key(name, key),
        lifetime_ms=life_ms,
        max_run_ms=max_run_ms,
        stall_after_ms=None if stall_after is None else duration_ms(stall_after, "stall_after", name=name),
        held=how_held,
        held_wait_ms=held_wait,
        absent=how_absent,
        absent_wait_ms=absent_wait,
        on_loss=_on_loss(name, on_loss, what),
        attempts=_attempts(name, attempts, keyed=schedule is None and bool(key)),
        at_most_once=delivery == "at-most-once",
        cost=None if cost is None else str(cost),
    )


def _guard(name: str, stake: Stake, guard: object) -> Once | Attested | None:
    if guard is not None and not isinstance(guard, Once | Attested):
        raise Refused(
            "CLM024",
            f"{name}: guard={guard!r} is not a guard. Write guard=once('postgresql:///app') with the database that the effect "
            "lands in",
            name=name,
        )
    if guard is None and stake.needs_guard:
        how = (
            "guard=once(db, constraint='your_unique_index'), or guard=once(db)"
            if stake is Stake.APPEND
            else "guard=once(db), where db is the database that holds the money's rows"
        )
        raise Refused(
            "CLM021",
            f"{name}: stake={stake.value!r} never rides on the lease alone: the lease can be lost while the work runs, and "
            f"nobody is told. Add {how}, and do the effect with run.once(conn, effect)",
            name=name,
        )
    return guard


def _delivery(name: str, stake: Stake, delivery: object, *, remembered: bool) -> None:
    if delivery is not None and delivery not in DELIVERIES:
        raise Refused(
            "CLM022",
            f"{name}: delivery={delivery!r} must be one of {', '.join(map(repr, DELIVERIES))}",
            name=name,
        )
    if stake is Stake.NOTIFY and delivery is None:
        raise Refused(
            "CLM022",
            f'{name}: stake="notify" must say which is worse: delivery="at-least-once" (a person may get two messages) or '
            'delivery="at-most-once" (a person may get none)',
            name=name,
        )
    if stake is not Stake.NOTIFY and delivery is not None:
        raise Refused("CLM023", f'{name}: delivery= is for stake="notify" only; leave it out', name=name)
    if delivery == "at-most-once" and not remembered:
        raise Refused(
            "CLM028",
            f'{name}: delivery="at-most-once" needs something that remembers after the run. Add every= (the ledger remembers '
            "slots), or guard=once(db) and record the message with run.once(…) before it is sent. A key alone is remembered "
            "only while the job runs",
            name=name,
        )


def _schedule(name: str, every: object, cron: object, tz: object) -> Schedule | None:
    if cron is not None:
        if every is not None:
            raise Refused(
                "CLM019", f"{name}: every= and cron= are two schedules; give the one that is meant", name=name
            )
        from claimant.zones import cron_in_zone  # by the jobs that have one

        return cron_in_zone(cron, tz, name)
    if tz is not None:
        raise Refused("CLM019", f"{name}: tz= is the zone of a cron=, which is missing", name=name)
    return None if every is None else Every(_every(name, every))


def _every(name: str, every: object) -> int:
    every_ms = duration_ms(every, "every", name=name)
    if every_ms < 1_000:
        raise Refused(
            "CLM013",
            f"{name}: every={every!r} is shorter than a second; use a loop of your own for that",
            name=name,
        )
    return every_ms


def _default_max_run(every_ms: int | None) -> int:
    return DAY_MS if every_ms is None else min(max(4 * every_ms, HOUR_MS), DAY_MS)


def _max_run(name: str, max_run: object, every_ms: int | None, life_ms: int) -> int:
    chosen = _default_max_run(every_ms) if max_run is None else duration_ms(max_run, "max_run", name=name)
    if chosen < life_ms:
        raise Refused(
            "CLM018",
            f"{name}: lifetime is {in_words(life_ms)} and max_run {in_words(chosen)}: the lease would outlive the longest run. "
            'Keep the lifetime short, e.g. lifetime="5s" or "30s" (numbers are seconds): it is renewed while the job runs',
            name=name,
        )
    return chosen


def _waiting(name: str, what: str, text: str) -> int:
    return duration_ms(text.removeprefix("wait:"), f'{what}="wait:…"', name=name)


def _held(name: str, held: object, schedule: Schedule | None) -> tuple[Held, int]:
    if isinstance(held, str) and held.startswith("wait:"):
        return Held.WAIT, _waiting(name, "held", held)
    if held == "standby" and schedule is None:
        raise Refused(
            "CLM015",
            f'{name}: held="standby" waits until the slot is done, and needs every= or cron=; use "wait:30s" instead',
            name=name,
        )
    if held in ("skip", "standby"):
        return Held(held), 0
    raise Refused(
        "CLM014", f'{name}: held={held!r} must be "skip", "wait:30s" (any duration) or "standby"', name=name
    )


def _absent(name: str, absent: object, guard: Once | Attested | None, delivery: object) -> tuple[Absent, int]:
    if absent is None:
        return (Absent.SKIP if delivery == "at-most-once" and guard is None else Absent.PROCEED), 0
    if isinstance(absent, str) and absent.startswith("wait:"):
        return Absent.WAIT, _waiting(name, "absent", absent)
    if absent == "skip":
        return Absent.SKIP, 0
    if absent == "proceed":
        if delivery == "at-most-once" and guard is None:
            raise Refused(
                "CLM025",
                f'{name}: absent="proceed" with delivery="at-most-once": without the store nothing would keep a second '
                'message away. Use absent="skip", or delivery="at-least-once"',
                name=name,
            )
        return Absent.PROCEED, 0
    raise Refused(
        "CLM026",
        f'{name}: absent={absent!r} must be "proceed", "skip" or "wait:5m" (any duration)',
        name=name,
    )


def _on_loss(name: str, on_loss: object, stake: Stake) -> OnLoss:
    if on_loss is None:
        return OnLoss.GO_ON if stake.cheap else OnLoss.STOP
    if on_loss in ("go-on", "stop"):
        return OnLoss(on_loss)
    raise Refused("CLM016", f'{name}: on_loss={on_loss!r} must be "go-on" or "stop"', name=name)


def _attempts(name: str, attempts: object, *, keyed: bool) -> int:
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise Refused(
            "CLM017", f"{name}: attempts={attempts!r} must be a whole number of at least 1", name=name
        )
    if attempts > 1 and keyed:
        raise Refused(
            "CLM017",
            f"{name}: attempts= counts the failed runs of one slot, and needs every= or cron=; for keyed work, let the queue retry",
            name=name,
        )
    return attempts


def _key(name: str, key: object) -> tuple[str, ...]:
    if (
        isinstance(key, str)
        or not isinstance(key, Sequence)
        or not all(isinstance(part, str) for part in key)
    ):
        raise Refused(
            "CLM030",
            f'{name}: key={key!r} must be a list of parameter names, e.g. key=["order_id"]',
            name=name,
        )
    if len(set(key)) != len(key):
        raise Refused("CLM030", f"{name}: key={key!r} names a parameter twice", name=name)
    return tuple(key)


def signature_of(body: Callable[..., Any], declared: Declared) -> inspect.Signature:
    """The job's own signature: the body's without `run`. Raises `Refused` where key and parameters do not fit."""
    name = declared.name
    signature = inspect.signature(body)
    parameters = list(signature.parameters.values())
    first = parameters[0] if parameters else None
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise Refused(
            "CLM036",
            f"{name}: the body must take the run as its first parameter: def {_name(body)}(run, …)",
            name=name,
        )
    if first.name in ("self", "cls") or first.name in declared.key:
        what = (
            "a method"
            if first.name in ("self", "cls")
            else f"key names {first.name!r}, the body's first parameter, and it"
        )
        raise Refused(
            "CLM036",
            f"{name}: {what} cannot be the body as it is: the first parameter is the run: def {_name(body)}(run, …). "
            "For a method, declare a function that calls it",
            name=name,
        )
    rest = parameters[1:]
    if declared.schedule is not None and "slot" in declared.key:
        raise Refused(
            "CLM030",
            f"{name}: key names 'slot', and with every= or cron= the slot is a part of the identity by that name: give the parameter another name",
            name=name,
        )
    names = {parameter.name for parameter in rest}
    for part in declared.key:
        if part not in names:
            listed = ", ".join(sorted(names)) or "none"
            raise Refused(
                "CLM030",
                f"{name}: key names {part!r}, which is not a parameter of the body ({listed})",
                name=name,
            )
        if signature.parameters[part].kind in _COLLECTING:
            raise Refused(
                "CLM030",
                f"{name}: key names {part!r}, which collects several arguments; name a single one",
                name=name,
            )
    if rest and not declared.key and declared.schedule is None:
        raise Refused(
            "CLM032",
            f"{name}: the body takes {', '.join(sorted(names))}, and nothing says which of them make it another operation: "
            f'two different calls would count as one and the second be dropped. Add key=["{rest[0].name}"] (the '
            "parameters that name what must happen once), or every= or cron= for a periodic job",
            name=name,
        )
    # What a call gives is an outcome and not what the body returns: a framework must not check the one for the other.
    return signature.replace(parameters=rest, return_annotation=inspect.Signature.empty)


def refuse_unnamed(name: str, signature: inspect.Signature, arguments: dict[str, object]) -> None:
    """Raises `Refused` (CLM032) where a slot without a key is started with data that would make it another job.

    A slot is done once, whatever the arguments are. What is no data, a session for instance, says how and not what; and what
    has a default is taken to be a setting.
    """
    for each in signature.parameters.values():
        if each.default is each.empty and each.kind not in _COLLECTING and is_data(arguments[each.name]):
            raise Refused(
                "CLM032",
                f"{name}: it is started with {each.name}={arguments[each.name]!r:.60}, and its slot is done once whatever that is: "
                f'another call would be told "done". Add key=["{each.name}"], so that each has slots of its own, or give the '
                "parameter a default",
                name=name,
            )


def _name(body: Callable[..., Any]) -> str:
    name = getattr(body, "__name__", "body")
    return name if name.isidentifier() else "body"


def parts_of(declared: Declared, arguments: dict[str, object]) -> dict[str, str]:
    """The key's parts as text, in the declared order."""
    return {part: part_text(arguments[part], what=part, name=declared.name) for part in declared.key}


def operation_of(
    declared: Declared, parts: dict[str, str], slot: str | None, arguments: dict[str, object]
) -> Operation | None:
    """What must happen once in this call: by key, by slot, or both; None where neither names it."""
    if not parts and slot is None:
        return None
    named = parts if slot is None else {**parts, "slot": slot}
    outside = {name: value for name, value in arguments.items() if name not in declared.key}
    return identify(declared.name, named, fingerprint_of(outside))
