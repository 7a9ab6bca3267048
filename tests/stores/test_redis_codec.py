"""The conversation without I/O: servers that cannot be had here, and silence at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claimant._model.ops import (
    Create,
    Granted,
    Held,
    NotOurs,
    Peek,
    Release,
    Released,
    Renew,
    Renewal,
    Renewed,
    StoreAbsent,
    StoreRequest,
    StoreUnknown,
)
from claimant._model.record import replaced
from claimant.stores.redis import RedisPort
from claimant.stores.redis_asking import SHA, Batch, Reply, Silence, pack
from claimant.stores.redis_codec import talk
from claimant.stores.redis_facts import Facts
from claimant.stores.redis_reader import NotResp, PlainReader, reader
from claimant.stores.redis_words import ErrorReply, no_connection
from claimant.testing.store_suite import MINUTE_MS, soon, value

SYNTAX = ErrorReply("ERR syntax error")
UNKNOWN = ErrorReply("ERR unknown command 'DELIFEQ', with args beginning with: 'k' 'secret' ")
OLD = Facts(create_native=False, renew_native=False, release=())
SILENT = Silence("no answer")
CREATE = Create("k", value(1), MINUTE_MS, 0)
RELEASE = Release("k", value(1), 0)


def renew(count: int) -> Renew:
    return Renew(tuple(Renewal(f"k{at}", value(1), MINUTE_MS) for at in range(count)), 0)


def play(request: StoreRequest, facts: Facts, *answers: Sequence[Reply] | Silence) -> tuple[Any, list[Batch]]:
    """The reply to `request` where the server answers so, batch by batch; and what it was asked."""
    conversation = talk(request, facts)
    script = list(answers)
    asked: list[Batch] = []
    try:
        batch = next(conversation)
        while True:
            asked.append(batch)
            answer = script.pop(0)
            batch = (
                conversation.throw(answer) if isinstance(answer, Silence) else conversation.send(list(answer))
            )
    except StopIteration as stop:
        assert not script, f"it did not ask for {script}"
        return stop.value, asked


def words(batch: Batch) -> list[str]:
    return [str(command[0]) for command in batch]


def test_a_healthy_cycle_is_two_commands() -> None:
    """One to create and one to release; a refused create is two."""
    facts = Facts()
    assert play(CREATE, facts, [None]) == (
        Granted(),
        [[("SET", "k", value(1), "NX", "GET", "PX", MINUTE_MS)]],
    )
    assert play(RELEASE, facts, [1])[0] == Released()
    reply, asked = play(CREATE, facts, [value(2).encode()], [1234])
    assert reply == Held(value(2), 1234)
    assert [words(batch) for batch in asked] == [["SET"], ["PTTL"]]


def test_a_server_older_than_set_nx_get_creates_by_script() -> None:
    """Redis 6.2 answers a syntax error once; then the script does the same in one operation, and is remembered."""
    facts = Facts()
    reply, asked = play(CREATE, facts, [SYNTAX], [ErrorReply("NOSCRIPT No matching script.")], [None])
    assert reply == Granted()
    assert [words(batch) for batch in asked] == [["SET"], ["EVALSHA"], ["EVAL"]]
    assert "'PX'" in str(asked[2][0][1])
    reply, asked = play(CREATE, facts, [value(1).encode()])
    assert reply == Granted(recognised=True)
    assert words(asked[0]) == ["EVALSHA"]
    assert play(CREATE, facts, [value(2).encode()], [5])[0] == Held(value(2), 5)


def test_an_old_servers_script_error_is_read_for_its_code() -> None:
    """Redis 6 wraps the error of a script's command in another one."""
    wrapped = ErrorReply(
        "ERR Error running script (call to f_0): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica."
    )
    [reply], _ = play(renew(1), Facts(renew_native=False), [wrapped])
    assert isinstance(reply, StoreAbsent)
    assert "READONLY" in reply.reason


def test_the_commands_of_redis_8_are_found() -> None:
    """Where DELIFEQ is unknown, DELEX is tried, and remembered."""
    facts = Facts()
    reply, asked = play(RELEASE, facts, [UNKNOWN], [1])
    assert reply == Released()
    assert asked[1] == [("DELEX", "k", "IFEQ", value(1))]
    assert facts.release == ("DELEX",)
    reply, _ = play(
        RELEASE,
        facts,
        [ErrorReply("ERR Key should be of string type if conditions are specified")],
        [ErrorReply("WRONGTYPE Operation against a key holding the wrong kind of value")],
        [[b"master", 0, []], SYNTAX],
    )
    assert reply == NotOurs()


def test_a_renewal_on_a_full_server_goes_by_script() -> None:
    """Only the items that were refused are asked again, and each answer stays in its place."""
    full = ErrorReply("OOM command not allowed when used memory > 'maxmemory'.")
    replies, asked = play(renew(3), Facts(), [b"OK", full, b"OK"], [1])
    assert replies == (Renewed(),) * 3
    assert asked[1] == [
        (
            "EVALSHA",
            SHA[next(iter(set(SHA) & {script for script in SHA if "PEXPIRE" in script}))],
            1,
            "k1",
            value(1),
            MINUTE_MS,
        )
    ]


def test_silence_in_a_batch_spares_what_was_answered() -> None:
    """The replies that came are believed; only the rest is in doubt."""
    replies, _ = play(renew(4), Facts(), Silence("late", [b"OK", b"OK"]))
    assert replies[:2] == (Renewed(), Renewed())
    assert all(isinstance(reply, StoreUnknown) for reply in replies[2:])


def test_not_there_is_believed_only_from_a_primary() -> None:
    """ROLE decides; where it is forbidden HELLO does; where neither answers it is unknown, and the rule is named."""
    denied = ErrorReply("NOPERM this user has no permissions to run the 'role' command")
    hello: list[Reply] = [b"server", b"redis", b"version", b"7.0.15", b"proto", 2, b"role"]
    assert play(RELEASE, Facts(), [0], [[b"master", 0, []], hello])[0] == NotOurs()
    assert isinstance(
        play(RELEASE, Facts(), [0], [[b"slave", b"h", 1, b"connected", 0], hello])[0], StoreUnknown
    )
    assert play(RELEASE, Facts(), [0], [denied, [*hello, b"master"]])[0] == NotOurs()
    assert isinstance(play(RELEASE, Facts(), [0], [denied, [*hello, b"replica"]])[0], StoreUnknown)
    reply, _ = play(RELEASE, Facts(), [0], [denied, denied])
    assert isinstance(reply, StoreUnknown)
    assert "+role" in reply.reason
    assert isinstance(play(RELEASE, Facts(), [0], SILENT)[0], StoreUnknown)
    replies, _ = play(renew(2), Facts(), [b"OK", None], [[b"slave", b"h", 1, b"connected", 0], hello])
    assert replies[0] == Renewed()
    assert isinstance(replies[1], StoreUnknown)


def test_a_refused_create_stays_refused_when_the_second_question_is_lost() -> None:
    """Held is certain by then; the time left is at most the lifetime in the holder's value."""
    assert play(CREATE, Facts(), [value(2, 7_000).encode()], SILENT)[0] == Held(value(2, 7_000), 7_000)
    assert play(CREATE, Facts(), [b"foreign"], SILENT)[0] == Held("foreign", 0)


def test_a_claim_that_lapses_between_two_questions_has_nothing_left() -> None:
    """PTTL's -2 is zero time left, and never "no lifetime"."""
    assert play(CREATE, Facts(), [value(2).encode()], [-2])[0] == Held(value(2), 0)
    assert play(CREATE, Facts(), [value(2).encode()], [-1])[0] == Held(value(2), None)


@pytest.mark.parametrize("code", ["OOM", "READONLY", "NOREPLICAS", "MISCONF"])
def test_a_refusal_that_says_nothing_of_the_key_is_looked_into(code: str) -> None:
    """Our own value there is a grant, another's is held, none is absent, and so is silence."""
    refusal = ErrorReply(f"{code} no")
    assert play(CREATE, Facts(), [refusal], [value(1).encode(), 5])[0] == Granted(recognised=True)
    assert play(CREATE, Facts(), [refusal], [value(2).encode(), 5])[0] == Held(value(2), 5)
    for last in ([None, -2], SILENT):
        reply, _ = play(CREATE, Facts(), [refusal], last)
        assert isinstance(reply, StoreAbsent)
        assert code in reply.reason


@pytest.mark.parametrize(
    "text",
    [
        *(
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down",
            "BUSY Redis is busy",
        ),
        *(
            "NOAUTH Authentication required.",
            "CLUSTERDOWN The cluster is down",
            "MOVED 1 127.0.0.1:7001",
            "NOPERM no",
        ),
        *("ERR max number of clients reached", "WHATEVER this will be", "NOSCRIPT No matching script.", ""),
    ],
)
def test_every_error_reply_is_an_absence(text: str) -> None:
    """Whatever a server answers with an error was not applied: absent with words, never held, granted or lost."""
    error = ErrorReply(text)
    for request, answers in (
        (CREATE, [[error]]),
        (RELEASE, [[error], [error]] if text.startswith("NOSCRIPT") else [[error]]),
        (Peek("k", 0), [[error, error]]),
        (renew(2), [[error, error]] * (2 if text.startswith("NOSCRIPT") else 1)),
    ):
        facts = Facts(release=(), renew_native=False)
        replies, _ = play(request, facts, *answers)
        for reply in replies if isinstance(replies, tuple) else (replies,):
            assert isinstance(reply, StoreAbsent)
            assert reply.reason


def test_no_token_is_quoted() -> None:
    """A server that quotes our arguments in its error does not get them into our words."""
    error = ErrorReply(f"ERR unknown command 'SET', with args beginning with: 'k' '{value(1)}' ")
    reply, _ = play(CREATE, Facts(create_native=False), [error])
    assert isinstance(reply, StoreAbsent)
    assert value(1) not in reply.reason


def test_a_password_that_a_client_quotes_is_cut_out() -> None:
    """Whatever a library puts into its error, what we quote of it holds no password; of strangers' errors nothing is quoted."""
    import redis

    for error in (
        redis.ConnectionError("no s3cret here"),
        redis.ResponseError("odd s3cret"),
        OSError("s3cret"),
    ):
        said = no_connection(error, "redis://h:1/0", ("s3cret",))
        assert "s3cret" not in said
        assert "***" in said
    assert "token" not in no_connection(RuntimeError("token 123"), "redis://h:1/0", ())


# -- RESP


def resp2(reply: Any) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case ErrorReply():
            return f"-{reply.text}\r\n".encode()
        case list():
            return b"*%d\r\n" % len(reply) + b"".join(map(resp2, reply))
    raise TypeError(reply)


simple = st.none() | st.integers(-(2**62), 2**62) | st.binary(max_size=30)
replies = st.recursive(simple, lambda inner: st.lists(inner, max_size=4), max_leaves=10)


@given(st.lists(replies, max_size=6), st.lists(st.integers(1, 9), min_size=1))
def test_replies_are_read_the_same_however_they_are_cut(sent: list[Any], cuts: list[int]) -> None:
    """Fed in pieces of any size, both readers give every reply once, whole and in order."""
    data = b"".join(map(resp2, sent))
    for one in (PlainReader(), reader()):
        got, at, turn = [], 0, 0
        while at < len(data):
            piece = bytearray(data[at : at + cuts[turn % len(cuts)]])
            one.feed(piece, 0, len(piece))
            at, turn = at + len(piece), turn + 1
            while (reply := one.gets()) is not False:
                got.append(reply)
        assert got == sent


def test_both_readers_give_errors_as_values_and_refuse_other_languages() -> None:
    """An error reply keeps its text; bytes that are not RESP raise `NotResp`."""
    for make in (PlainReader, reader):
        one = make()
        line = bytearray(b"-READONLY no\r\n+OK\r\n")
        one.feed(line, 0, len(line))
        error = one.gets()
        assert isinstance(error, ErrorReply)
        assert (error.code, error.text) == ("READONLY", "READONLY no")
        assert one.gets() == b"OK"
        page = bytearray(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        one.feed(page, 0, len(page))
        with pytest.raises(NotResp):
            one.gets()


def test_commands_are_packed_by_bytes() -> None:
    """Lengths count bytes, whatever the text."""
    assert (
        pack([("GET", "ä"), ("PTTL", 7)])
        == b"*2\r\n$3\r\nGET\r\n$2\r\n\xc3\xa4\r\n*2\r\n$4\r\nPTTL\r\n$1\r\n7\r\n"
    )


@pytest.mark.parametrize(
    ("request_", "learned", "refusal", "then"),
    [
        (CREATE, Facts(create_native=False), SYNTAX, Granted()),
        (RELEASE, Facts(release=()), UNKNOWN, Released()),
        (RELEASE, Facts(release=("DELEX",)), UNKNOWN, Released()),
    ],
)
def test_what_another_thread_learns_meanwhile_is_not_taken_for_an_answer(
    request_: StoreRequest, learned: Facts, refusal: ErrorReply, then: object
) -> None:
    """A command that the server does not know was sent as another thread found that out: the next form is asked, and believed."""

    class Link:
        """Answers the short way with the refusal, and what follows with success."""

        def converse(self, *_: object) -> list[Reply]:
            for name in ("create_native", "release"):
                setattr(port._facts, name, getattr(learned, name))
            return [refusal]

        def exchange(self, batch: Batch, _: int) -> list[Reply]:
            asked.append(batch)
            return [None] if request_ is CREATE else [1]

    class Taken:
        def take(self, _: int) -> Link:
            return Link()

        def give(self, link: Link) -> None:
            given.append(link)

    asked: list[Batch] = []
    given: list[Link] = []
    port = RedisPort(Taken())  # type: ignore[arg-type]
    assert port.call(replaced(request_, until_ms=soon())) == then
    assert len(asked) == len(given) == 1
    assert port._facts.release == learned.release
