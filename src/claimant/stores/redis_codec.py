"""The conversation with Redis and Valkey about leases, without I/O: batches of commands out, replies in, an answer.

Each request is a generator that yields a list of commands and is sent the list of their replies (errors are values).
Where the replies did not come, `Silence` is thrown in. One command names one key. A renewal *sets* a full lifetime
from now, so that a repeated one adds nothing; the only thing that it can shorten is a lifetime that is broken.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias

from claimant._model.ops import (
    Create,
    CreateReply,
    Granted,
    Held,
    NotOurs,
    Peek,
    PeekReply,
    Release,
    ReleaseReply,
    Renew,
    Renewal,
    Renewed,
    RenewReply,
    Repair,
    StoreAbsent,
    StoreReply,
    StoreRequest,
    StoreUnknown,
    Vacant,
)
from claimant._model.value import decode
from claimant.stores.redis_asking import (
    CREATE,
    RELEASE,
    RENEW,
    Batch,
    Reply,
    Silence,
    asked,
    scripted,
    text_of,
    why_not_primary,
)
from claimant.stores.redis_facts import GRANTED, RELEASED, Facts
from claimant.stores.redis_words import READ_FIRST, ErrorReply, meaning

SCRIPTS = "EVAL/EVALSHA"
Talk: TypeAlias = Generator[Batch, list[Reply], StoreReply]


def talk(request: StoreRequest, facts: Facts) -> Talk:
    """The conversation that answers `request`."""
    match request:
        case Create():
            return _create(request, facts)
        case Renew(items):
            return _renew(items, facts)
        case Release():
            return _release(request, facts)
        case Repair(key, value, lifetime_ms):
            return _repair(Renewal(key, value, lifetime_ms), facts)
        case Peek(key):
            return _look(key)
        case _:
            raise TypeError(f"{type(request).__name__} is not a request to a store")


def not_sent(request: StoreRequest, reason: str) -> StoreReply:
    """The answer to a request of which nothing was sent."""
    absent = StoreAbsent(reason)
    return tuple(absent for _ in request.items) if isinstance(request, Renew) else absent


def _create(request: Create, facts: Facts) -> Generator[Batch, list[Reply], CreateReply]:
    key, value, ms = request.key, request.value, request.lifetime_ms
    reply: Reply = None
    tried = "SET"
    left: list[Reply] = []
    if facts.create_native:
        batch: Batch = [("SET", key, value, "NX", "GET", "PX", ms)]
        if key in facts.refused:
            batch.append(("PTTL", key))
        reply, *left = yield from asked(batch)
        if isinstance(reply, ErrorReply) and reply.unknown_here:
            facts.create_native = False
    if not facts.create_native:
        tried = SCRIPTS
        [reply] = yield from scripted(CREATE, [(key, value, ms)])
    match reply:
        case None:
            facts.refused.pop(key, None)
            return GRANTED
        case Silence():
            return StoreUnknown(reply.reason)
        case ErrorReply(code="WRONGTYPE"):
            return (yield from _foreign(key))
        case ErrorReply():
            refusal = StoreAbsent(meaning(reply, tried))
            if reply.code not in READ_FIRST:
                return refusal
            found = yield from _look(key)
            if not isinstance(found, Held):
                return refusal
            return Granted(recognised=True) if found.value == value else found
    text = text_of(reply)
    if text == value:
        return Granted(recognised=True)
    facts.refuse(key)
    [remaining] = left or (yield from asked([("PTTL", key)]))
    return Held(text, _remaining(remaining, text))


def _renew(items: Sequence[Renewal], facts: Facts) -> Generator[Batch, list[Reply], tuple[RenewReply, ...]]:
    if not items:
        return ()
    answers: list[RenewReply] = [StoreUnknown("no answer")] * len(items)
    todo = list(range(len(items)))
    denied: set[str] = set()
    if facts.renew_native:
        batch: Batch = [
            ("SET", item.key, item.value, "IFEQ", item.value, "PX", item.lifetime_ms) for item in items
        ]
        replies = yield from asked(batch)
        todo = []
        for at, reply in enumerate(replies):
            if isinstance(reply, ErrorReply) and (reply.unknown_here or reply.code in ("OOM", "NOPERM")):
                # On a full server SET is refused, and PEXPIRE in a script is not.
                facts.renew_native = facts.renew_native and not reply.unknown_here
                denied |= {"SET"} if reply.code == "NOPERM" else set()
                todo.append(at)
            else:
                answers[at] = NotOurs() if reply is None else _renewal(reply, "SET")
    if todo:
        calls = [(items[at].key, items[at].value, items[at].lifetime_ms) for at in todo]
        replies = yield from scripted(RENEW, calls)
        for at, reply in zip(todo, replies, strict=True):
            answers[at] = NotOurs() if reply == 0 else _renewal(reply, *denied, SCRIPTS)
    if any(isinstance(answer, NotOurs) for answer in answers):
        doubt = yield from why_not_primary()
        if doubt is not None:
            answers = [doubt if isinstance(answer, NotOurs) else answer for answer in answers]
    return tuple(answers)


def _renewal(reply: Reply, *tried: str) -> RenewReply:
    match reply:
        case Silence():
            return StoreUnknown(reply.reason)
        case ErrorReply(code="WRONGTYPE"):
            return NotOurs()
        case ErrorReply():
            return StoreAbsent(meaning(reply, *tried))
    return Renewed()


def _repair(item: Renewal, facts: Facts) -> Generator[Batch, list[Reply], RenewReply]:
    [answer] = yield from _renew([item], facts)
    return answer


def _release(request: Release, facts: Facts) -> Generator[Batch, list[Reply], ReleaseReply]:
    key, value = request.key, request.value
    tried: list[str] = []
    reply: Reply = None
    for name in facts.release:
        [reply] = yield from asked(
            [("DELIFEQ", key, value) if name == "DELIFEQ" else ("DELEX", key, "IFEQ", value)]
        )
        if not isinstance(reply, ErrorReply) or reply.code not in ("ERR", "NOPERM"):
            tried = [name]
            break
        if reply.unknown_here:
            facts.release = tuple(other for other in facts.release if other != name)
        else:
            tried.append(name)
    else:
        [reply] = yield from scripted(RELEASE, [(key, value)])
        tried.append(SCRIPTS)
    match reply:
        case Silence():
            return StoreUnknown(reply.reason)
        case ErrorReply(code="WRONGTYPE") | 0:
            return (yield from why_not_primary()) or NotOurs()
        case ErrorReply():
            return StoreAbsent(meaning(reply, *tried))
    return RELEASED


def _look(key: str) -> Generator[Batch, list[Reply], PeekReply]:
    """What is under `key`, and for how long."""
    found, left = yield from asked([("GET", key), ("PTTL", key)])
    match found:
        case None:
            return Vacant()
        case Silence():
            return StoreUnknown(found.reason)
        case ErrorReply(code="WRONGTYPE"):
            return (yield from _foreign(key))
        case ErrorReply():
            return StoreAbsent(meaning(found, "GET"))
    text = text_of(found)
    return Held(text, _remaining(left, text))


def _foreign(key: str) -> Generator[Batch, list[Reply], Held]:
    """A key that is not even text: held by a stranger, and only reported."""
    kind, left = yield from asked([("TYPE", key), ("PTTL", key)])
    text = "<another type>" if isinstance(kind, ErrorReply | Silence) else f"<{text_of(kind)}>"
    return Held(text, _remaining(left, text))


def _remaining(left: Reply, text: str) -> int | None:
    """Milliseconds from PTTL's reply: None for a key without lifetime, 0 for one that is gone by now.

    Without a reply: the lifetime that the value names, since no healthy lease has more left.
    """
    if isinstance(left, int):
        return None if left == -1 else max(left, 0)
    value = decode(text)
    return value.lifetime_ms if value is not None else 0
