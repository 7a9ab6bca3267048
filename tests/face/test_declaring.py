"""Declarations: what cannot be made safe is refused at import, under its own code, with what to write instead."""

from __future__ import annotations

import functools
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from claimant import AsyncJob, Claimant, Job, Refused, Run, Stake, once


@pytest.fixture
def quiet(tmp_path: Path) -> Claimant:
    """A Claimant on URLs where nothing answers: a declaration that touched them would fail."""
    return Claimant("redis://127.0.0.1:1/0", ledger="postgresql://127.0.0.1:1/none")


def body(run: Run, order_id: int) -> None:
    del run, order_id


def nothing(run: Run) -> None:
    del run


GUARD = once("postgresql:///app")
KEYED: dict[str, Any] = {"key": ["order_id"]}


@pytest.mark.parametrize(
    ("code", "says", "options"),
    [
        ("CLM020", "money moves", {"stake": None}),
        ("CLM020", "append:", {}),
        ("CLM028", "every=", {"stake": "notify", "delivery": "at-most-once"}),
        ("CLM018", "30s", {"stake": "scan", "lifetime": 500, "max_run": "1m"}),
        ("CLM020", "rebuild:", {"stake": "important"}),
        ("CLM020", "scan:", {"stake": ""}),
        ("CLM021", "guard=once", {"stake": "money"}),
        ("CLM021", "constraint=", {"stake": Stake.APPEND}),
        ("CLM022", "at-most-once", {"stake": "notify"}),
        ("CLM022", "at-least-once", {"stake": "notify", "delivery": "exactly-once"}),
        ("CLM023", "leave it out", {"stake": "scan", "delivery": "at-least-once"}),
        ("CLM024", "guard=once", {"stake": "money", "guard": "postgresql:///app"}),
        ("CLM024", "guard=once", {"stake": "rebuild", "guard": object()}),
        (
            "CLM025",
            "skip",
            {"stake": "notify", "delivery": "at-most-once", "absent": "proceed", "every": "1h"},
        ),
        ("CLM026", "proceed", {"stake": "scan", "absent": "retry"}),
        ("CLM010", "30s", {"stake": "scan", "absent": "wait:"}),
        ("CLM010", "30s", {"stake": "scan", "held": "wait:soon"}),
        ("CLM014", "standby", {"stake": "scan", "held": "queue"}),
        ("CLM015", "every=", {"stake": "scan", "held": "standby"}),
        ("CLM016", "go-on", {"stake": "scan", "on_loss": "panic"}),
        ("CLM017", "at least 1", {"stake": "scan", "attempts": 0, "every": "1h"}),
        ("CLM017", "at least 1", {"stake": "scan", "attempts": True, "every": "1h"}),
        ("CLM017", "queue", {"stake": "scan", "attempts": 3}),
        ("CLM010", "lifetime", {"stake": "scan", "lifetime": None}),
        ("CLM010", "lifetime", {"stake": "scan", "lifetime": "30 parsecs"}),
        ("CLM011", "600 ms", {"stake": "scan", "lifetime": 0.0004}),
        ("CLM012", "max_run", {"stake": "scan", "lifetime": "3650d"}),
        ("CLM010", "max_run", {"stake": "scan", "max_run": -1}),
        ("CLM010", "stall_after", {"stake": "scan", "stall_after": float("nan")}),
        ("CLM010", "every", {"stake": "scan", "every": 0}),
        ("CLM013", "second", {"stake": "scan", "every": "10ms"}),
        ("CLM030", "list of parameter names", {"stake": "scan", "key": "order_id"}),
        ("CLM030", "list of parameter names", {"stake": "scan", "key": [1]}),
        ("CLM030", "twice", {"stake": "scan", "key": ["order_id", "order_id"]}),
        ("CLM030", "not a parameter", {"stake": "scan", "key": ["invoice"]}),
        ("CLM032", 'key=["order_id"]', {"stake": "scan", "key": []}),
    ],
)
def test_each_unsafe_declaration_is_refused_with_its_mend(
    quiet: Claimant, code: str, says: str, options: dict[str, Any]
) -> None:
    """Each kind of unsafe declaration has its code, names the job, says what to write, and reaches no server."""
    with pytest.raises(Refused) as refused:
        quiet.job("debit-wallet", **{**KEYED, **options})(body)
    assert refused.value.code == code
    assert says in str(refused.value)
    assert refused.value.name == "debit-wallet"


@pytest.mark.parametrize("name", ["", " ", None, 7, "half \ud83e"])
def test_a_job_needs_a_name(quiet: Claimant, name: Any) -> None:
    """A name that is no text is refused."""
    with pytest.raises(Refused, match="CLM001"):
        quiet.job(name, stake="scan")


def test_two_jobs_of_one_name_are_refused(quiet: Claimant) -> None:
    """Two bodies under one name would share leases, slots and operations."""
    quiet.job("index", stake="scan")(nothing)
    with pytest.raises(Refused, match="CLM002"):
        quiet.job("index", stake="scan")
    twice = quiet.job("other", stake="scan")
    twice(nothing)
    with pytest.raises(Refused, match="CLM002"):
        twice(nothing)


def test_slots_on_a_shared_store_need_a_shared_ledger() -> None:
    """With a ledger per host, every host would do every slot."""
    claims = Claimant("redis://127.0.0.1:1/0", ledger="sqlite:ledger.db")
    with pytest.raises(Refused, match="CLM050.*postgresql"):
        claims.job("index", stake="rebuild", every="1h")
    claims.job("index", stake="rebuild")(nothing)


@pytest.mark.parametrize("stake", ["append", "notify", "money", "important"])
def test_a_bare_hold_is_for_cheap_stakes_only(quiet: Claimant, stake: Any) -> None:
    """`hold` is a lease alone."""
    with pytest.raises(Refused, match="CLM02[07]"):
        quiet.hold("index", stake=stake, max_run="1m")


@pytest.mark.parametrize(
    "options",
    [{"max_run": None}, {"max_run": 0}, {"max_run": "1m", "wait": -1}, {"max_run": "1m", "lifetime": 0}],
)
def test_a_bare_hold_has_an_end_too(quiet: Claimant, options: dict[str, Any]) -> None:
    """No parameter of `hold` makes an endless claim."""
    with pytest.raises(Refused, match="CLM010"):
        quiet.hold("index", stake="scan", **options)


def test_a_generator_body_is_refused(quiet: Claimant) -> None:
    """Calling a generator function does no work, and would be recorded as a run."""

    def lazily(run: Run) -> Iterator[int]:
        yield 1

    async def lazily_too(run: Run) -> AsyncIterator[int]:
        yield 1

    for number, generator in enumerate((lazily, lazily_too)):
        with pytest.raises(Refused, match="CLM037"):
            quiet.job(f"index-{number}", stake="scan")(generator)


def test_a_body_without_a_run_is_refused(quiet: Claimant) -> None:
    """The run is the first parameter, and there must be one."""
    with pytest.raises(Refused, match="CLM036"):
        quiet.job("index", stake="scan")(lambda: None)  # type: ignore[arg-type,misc]


class Shop:
    def debit(self, order_id: int) -> None: ...

    @classmethod
    def refund(cls, order_id: int) -> None: ...


@pytest.mark.parametrize("wrong", [Shop.debit, Shop.__dict__["refund"].__func__, lambda order_id: None])
def test_a_body_whose_first_parameter_is_not_the_run_is_refused(quiet: Claimant, wrong: Any) -> None:
    """A method, and a body that forgot `run`, are named for what they are."""
    with pytest.raises(Refused, match="CLM036.*the first parameter is the run"):
        quiet.job("debit", stake="scan", **KEYED)(wrong)


def test_a_wrong_call_says_which_job_and_that_the_run_is_given(quiet: Claimant) -> None:
    """Too few, too many and unknown arguments are a TypeError that names the job and its signature."""
    job: Any = quiet.job("debit", stake="scan", **KEYED)(body)
    for arguments, options in (((), {}), ((1, 2), {}), ((), {"order": 1})):
        with pytest.raises(TypeError, match=r"debit\(order_id: .*the run is given by claimant"):
            job(*arguments, **options)


claims_of_module = Claimant("redis://127.0.0.1:1/0", ledger="postgresql://127.0.0.1:1/none")


@claims_of_module.job("of-module", stake="scan")
def of_module(run: Run) -> None: ...


def test_a_job_of_a_module_travels_by_name() -> None:
    """A process pool or a task queue sends a job as it sends the function that it stands for."""
    assert pickle.loads(pickle.dumps(of_module)) is of_module


def test_the_colour_of_the_body_decides(quiet: Claimant) -> None:
    """`async def` makes an AsyncJob, also behind a partial or a callable object; `def` makes a Job."""

    async def later(run: Any, extra: int = 0) -> None: ...

    class Later:
        async def __call__(self, run: Any) -> None: ...

    bodies: list[Any] = [later, functools.partial(later, extra=1), Later()]
    made = [quiet.job(str(number), stake="scan", every="1h")(each) for number, each in enumerate(bodies)]
    assert [type(job) for job in made] == [AsyncJob] * 3
    assert type(quiet.job("plain", stake="scan")(nothing)) is Job


def test_importing_and_declaring_touches_nothing(quiet: Claimant) -> None:
    """A full declaration on unreachable servers works, and shows no password."""
    claims = Claimant("redis://user:hunter2@127.0.0.1:1/0", ledger="postgresql://me:hunter2@127.0.0.1:1/none")
    claims.job("debit", key=["order_id"], stake="money", guard=once("postgresql://me:hunter2@h/app"))(body)
    assert "hunter2" not in repr(claims)
    assert "hunter2" not in repr(claims.jobs)


def test_run_is_hidden_from_those_who_read_signatures(quiet: Claimant) -> None:
    """Frameworks ask for what the signature shows: the run is not theirs to give."""
    import inspect

    job = quiet.job("debit", key=["order_id"], stake="scan")(body)
    assert list(inspect.signature(job).parameters) == ["order_id"]
    assert list(job.__annotations__) == ["order_id"]
    # What a call gives is an outcome, and a framework that checks answers must not look for the body's result.
    assert job.__signature__.return_annotation is inspect.Signature.empty
    assert vars(job)["__name__"] == "body"


def test_a_hold_remembers_no_refusal_and_no_likeness(quiet: Claimant) -> None:
    """What was accepted once is remembered by value and type: `True` is no second, and a list is refused in words."""
    assert quiet.hold("index", stake="scan", max_run=1) is not quiet.hold("index", stake="scan", max_run=1)
    wrongs: list[Any] = [True, [1], {}]
    for wrong in wrongs + wrongs:
        with pytest.raises(Refused, match="CLM010"):
            quiet.hold("index", stake="scan", max_run=wrong)
    with pytest.raises(Refused, match="CLM010"):
        quiet.hold("index", stake="scan", max_run=1, wait=False)
    with pytest.raises(Refused, match="CLM001"):
        quiet.hold(["index"], stake="scan", max_run=1)  # type: ignore[arg-type]


def test_a_slot_without_a_key_takes_no_data(made: Callable[..., Claimant]) -> None:
    """Two regions are two jobs: the second would be told "done". A client is no data, and a default is a setting."""
    claims = made("memory:")

    @claims.job("report", every="1h", stake="rebuild")
    def report(run: Run, region: str) -> str:
        return region

    with pytest.raises(Refused, match=r"CLM032.*region='eu'.*key=\[\"region\"\]"):
        report("eu")

    @claims.job("sync", every="1h", stake="rebuild")
    def sync(run: Run, client: object, limit: int = 10) -> int:
        return limit

    assert sync(object(), limit=3).value == 3

    @claims.job("by-region", every="1h", key=["region"], stake="rebuild")
    def by_region(run: Run, region: str) -> str:
        return region

    assert [by_region(region).value for region in ("eu", "us")] == ["eu", "us"]
