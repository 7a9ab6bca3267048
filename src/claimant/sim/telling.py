"""One schedule told so that a person understands it: who asks whom for what, in words, with short names for tokens.

It reads a report and decides nothing. Times are true milliseconds; "worker 1.2" is the third life of the second process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from claimant._model import ops, records
from claimant._model.guarding import Execute, Statement
from claimant._model.outcome import Outcome
from claimant.sim.schedule import Failover, Schedule, SimJob, Window
from claimant.sim.simulate import Report

_TOKEN = re.compile(r"c1\|0*([0-9a-f]+)\|\d+\|p(\d+\.\d+)")
_WHO = re.compile(r"^p(\d+\.\d+)(?:/(?:a(\d+)|keeper))?$")
_DULL = frozenset({"run.ran", "guard.applied"})


def told(report: Report) -> str:
    """The whole story: what was violated, what there was, what happened."""
    lines = [f"seed {report.seed}", ""]
    lines += [
        f"VIOLATED {each.invariant} at {each.at_ms} ms: {short(each.text)}" for each in report.violations
    ]
    lines += ["" if report.violations else "nothing was violated", *setting(report.schedule), ""]
    lines += happened(report)
    return "\n".join(lines)


def short(text: str) -> str:
    """Tokens as claims: "claim 1f of worker 0.0" instead of the value that a store keeps."""
    return _TOKEN.sub(lambda found: f"claim {found[1]} of worker {found[2]}", text)


def setting(schedule: Schedule) -> Iterator[str]:
    """Hosts, jobs, and what goes wrong when."""
    yield f"{len(schedule.processes)} worker(s) on host(s) {', '.join(map(str, schedule.processes))}; the store is {schedule.kind}; "
    yield f"the guard's database is {schedule.dialect.value}; all is calm from {schedule.calm_ms} ms on"
    for number, host in enumerate(schedule.hosts):
        if host.skew_ms or host.step_ms:
            yield f"host {number}: its wall clock is {host.skew_ms:+} ms wrong, and steps by {host.step_ms:+} ms at {host.step_at_ms} ms"
    yield from map(_job, schedule.jobs)
    yield from (_window("the store is", window) for window in schedule.store_windows)
    yield from (_window("the ledger is away:", window) for window in schedule.ledger_windows)
    if schedule.lag_ms is not None:
        yield f"the store's replica is {schedule.lag_ms} ms behind; its nodes' clocks are {schedule.node_skews} ms wrong"
    yield from (_window("nothing reaches the replica:", cut) for cut in schedule.cuts)
    yield from map(_failover, schedule.failovers)
    for name, lost in (("ledger", schedule.ledger_failover), ("guard's database", schedule.guard_failover)):
        if lost is not None:
            yield f"{lost.at_ms:>7} ms  the {name} forgets what it committed in the {lost.lost_ms} ms before"
    for blow in schedule.blows:
        yield f"{blow.at_ms:>7} ms  the store: {blow.harm.value}"
    for each in schedule.interruptions:
        where = f"at a {each.request}" if each.request else "at any request"
        yield f"worker {each.process}: {each.stroke.value} for {each.ms} ms, {where}, from its {each.step}th step on"
    for name, likely in (
        ("a request to the store meets a fate of its own", schedule.network),
        ("the ledger's answer is lost", schedule.ledger_loss),
        ("the guard's connection breaks", schedule.guard_loss),
        ("a waiting start is cancelled", schedule.cancels),
        ("a message's acknowledgement is lost", schedule.ack_loss),
    ):
        if likely:
            yield f"one time in {round(1 / likely)} {name}"
    for number, fate in schedule.fates:
        yield f"the {number}th request to the store: {fate}"


def _job(job: SimJob) -> str:
    what = f"every {job.every_ms} ms" if job.every_ms else job.key
    guarded = (
        ""
        if not job.guarded
        else ", guarded, in a transaction of the caller's"
        if job.joined
        else ", guarded"
    )
    starts = ", ".join(f"{at_ms} ms on {process}" for at_ms, process in job.starts)
    again = "" if job.visibility_ms is None else f"; its message comes again after {job.visibility_ms} ms"
    about = f"{what}; {job.stake.value}{guarded}; lifetime {job.lifetime_ms} ms{again}"
    return f"{job.name} ({about}): started at {starts}"


def _window(what: str, window: Window) -> str:
    return f"{window.start_ms:>7} ms  {what} {window.mode.value} until {window.end_ms} ms"


def _failover(failover: Failover) -> str:
    stale = (
        f"; workers {failover.stale} keep to the old primary for {failover.stale_ms} ms"
        if failover.stale
        else ""
    )
    return f"{failover.at_ms:>7} ms  the replica takes over{stale}"


def happened(report: Report) -> Iterator[str]:
    """The events, one line each."""
    for at_ms, who, what, about in report.trace:
        said = _said(what, about)
        if said:
            yield f"{at_ms:>7} ms  {_who(who):<22} {short(said)}"


def _who(who: str) -> str:
    found = _WHO.match(who)
    if found is None:
        return who
    process, attempt = found.groups()
    if attempt is not None:
        return f"worker {process}, start {attempt}"
    return f"worker {process}'s keeper" if who.endswith("keeper") else f"worker {process}"


def _said(what: str, about: Any) -> str:
    match what:
        case "sends":
            return f"asks the store to {_request(about)}"
        case "lands":
            return f"-> the store is asked to {_request(about)}"
        case "lands on the old primary":
            return f"-> the OLD primary is asked to {_request(about)}"
        case "asks the ledger":
            return ""
        case "ledger":
            return f"-> the ledger: {_ledger(about)}"
        case "asks the guard":
            return _guard(about)
        case "answer":
            return _answer(about)
        case "hands Tenure":
            return f"has the keeper renew {about}"
        case "hands Cleanup":
            return f"leaves {about} to the keeper, to be given back"
        case "ended":
            return f"ends: {_outcome(about)}"
        case _ if what in _DULL:
            return ""
        case _:
            return f"{what}{'' if about is None else f': {about}'}"


def _request(request: Any) -> str:
    match request:
        case ops.Create(_, value, lifetime):
            return f"create {value} for {lifetime} ms"
        case ops.Release(_, "probe"):
            return "answer a probe"
        case ops.Release(_, value):
            return f"release {value}"
        case ops.Renew(items):
            return f"renew {', '.join(item.value for item in items)}"
        case ops.Repair(_, value, lifetime):
            return f"give {value} its {lifetime} ms again"
        case _:
            return repr(request)


def _answer(answer: Any) -> str:
    match answer:
        case ops.Granted(recognised):
            return "<- granted" + (": it was there already" if recognised else "")
        case ops.Held(value, remaining):
            return f"<- held: {value}, {'without an end' if remaining is None else f'{remaining} ms left'}"
        case ops.StoreAbsent(reason):
            return f"<- the store is absent: {reason}"
        case ops.StoreUnknown(reason):
            return f"<- nobody knows: {reason}"
        case ops.Released() | ops.NotOurs() | ops.Renewed():
            return f"<- {type(answer).__name__}"
        case records.SlotClosed(_, completed):
            return "<- the slot is done" if completed else "<- the slot is given up"
        case tuple() if answer and all(
            isinstance(each, ops.Renewed | ops.NotOurs | ops.StoreAbsent | ops.StoreUnknown)
            for each in answer
        ):
            return "; ".join(_answer(each) for each in answer)
        case BaseException():
            return f"<- {type(answer).__name__}: {answer}"
        case _:
            return ""


def _ledger(request: Any) -> str:
    match request:
        case records.Begin(run):
            return f"a run begins{f' for slot {run.slot}' if run.slot else ''}, claim {run.claim}"
        case records.Finish():
            closes = ", and its slot is closed" if request.close_slot else ""
            return f"a run ended as {request.kind}, claim {request.claim}{closes}"
        case records.Skip():
            return f"a skip: {request.kind}"
        case records.SlotState():
            return "is the slot done?"
        case _:
            return "what time is it?"


def _guard(request: Any) -> str:
    match request:
        case Execute(statement):
            name = statement.name.lower() if isinstance(statement, Statement) else str(statement)
            return f"guard: {name}"
        case _:
            return f"guard: {type(request).__name__.lower()}"


def _outcome(outcome: Any) -> str:
    match outcome:
        case Outcome():
            return f"{outcome.kind.value}, claim {outcome.claim.value}{f' ({outcome.reason})' if outcome.reason else ''}"
        case _:
            return f"{type(outcome).__name__}: {outcome}"
