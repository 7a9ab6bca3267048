"""The command line prints what the library returns: status, leases, init."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from claimant import Claimant, Run
from claimant.cli import main, reading
from claimant.testing.faults import held_by_another


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    return ["--store", f"sqlite:{tmp_path / 'leases.db'}", "--ledger", f"sqlite:{tmp_path / 'ledger.db'}"]


@pytest.fixture
def app(places: list[str]) -> Iterator[Claimant]:
    with Claimant(places[1], ledger=places[3]) as claims:
        yield claims


@pytest.fixture
def run(places: list[str]) -> Callable[..., Result]:
    def invoke(*words: str, where: list[str] | None = None) -> Result:
        return CliRunner().invoke(main, [*words, *(places if where is None else where)])

    return invoke


def test_status_says_in_one_line_who_holds_a_job_that_stopped(
    app: Claimant, run: Callable[..., Result]
) -> None:
    """A job that every start finds held is shown as skipping, with holder, time left, streak and last real success."""
    index = app.job("rebuild-index", stake="rebuild")(lambda run: None)
    index()
    with held_by_another(app, "rebuild-index"):
        for _ in range(3):
            index()
        said = run("status")
    (line,) = said.output.splitlines()
    assert said.exit_code == 0
    assert line.startswith("rebuild-index: ")
    for part in ("somebody-else:1", "3 ", "success"):
        assert part in line


def test_status_of_one_job_adds_its_policy_and_unknown_jobs_fail(
    app: Claimant, run: Callable[..., Result]
) -> None:
    """`status NAME` explains; a name that never started exits 1, so that a script notices a typing error."""
    app.job("rebuild-index", stake="rebuild")(lambda run: None)()
    assert "stake rebuild" in run("status", "rebuild-index").output
    unknown = run("status", "rebuild-indx")
    assert unknown.exit_code == 1
    assert "no job named rebuild-indx" in unknown.output


def test_status_is_json_able(app: Claimant, run: Callable[..., Result]) -> None:
    """`--json` prints one object with the same facts."""
    app.job("rebuild-index", stake="rebuild")(lambda run: None)()
    found = json.loads(run("status", "--json").output)
    assert found["jobs"][0]["state"] == "ok"
    assert found["totals"]["runs"] == 1


def test_status_works_while_the_store_is_away(
    app: Claimant, run: Callable[..., Result], places: list[str]
) -> None:
    """The ledger answers, and a note says that the store was not asked."""
    app.job("rebuild-index", stake="rebuild")(lambda run: None)()
    said = run("status", where=["--store", "redis://me:hunter2@127.0.0.1:1/0", *places[2:]])
    assert said.exit_code == 0
    assert "rebuild-index: ok" in said.output
    assert "store was not asked" in said.output
    assert "hunter2" not in said.output


def test_leases_lists_who_holds_what(app: Claimant, run: Callable[..., Result]) -> None:
    """One line per claim: name, key, holder, time left."""

    @app.job("debit wallet", key=["order_id"], stake="scan")
    def debit(run_: Run, order_id: int) -> None:
        said.append(run("leases").output)
        said.append(run("leases", "--json").output)

    said: list[str] = []
    debit(42)
    assert said[0].startswith("debit wallet: order_id=42: held by ")
    assert " left" in said[0]
    assert json.loads(said[1])[0]["name"] == "debit wallet: order_id=42"
    assert run("leases").output == "no claims\n"


def test_init_makes_tables_prints_them_and_repeats(
    run: Callable[..., Result], tmp_path: Path, pg_dsn: str
) -> None:
    """`init` is safe to repeat; `--sql` shows what it would run; nothing named is an error that says how."""
    for _ in range(2):
        made = run("init", where=["--ledger", pg_dsn, "--guard", pg_dsn])
        assert made.exit_code == 0, made.output
        assert "ledger tables are in" in made.output
        assert "guard tables are in" in made.output
    shown = run("init", "--sql", where=["--ledger", "postgresql:///none", "--guard", "postgresql:///none"])
    assert "claimant_guard" in shown.output
    assert "claimant_runs" in shown.output
    nothing = run("init", where=[])
    assert nothing.exit_code == 1
    assert "--guard URL" in nothing.output


def test_an_error_is_one_sentence_and_no_traceback(run: Callable[..., Result]) -> None:
    """What the library refuses is said on standard error, with exit code 1."""
    refused = run("status", where=["--store", "memory:x", "--ledger", "redis://127.0.0.1/0"])
    assert refused.exit_code == 1
    assert refused.output.startswith("claimant: CLM")
    assert isinstance(refused.exception, SystemExit)


def test_reading_makes_no_file_of_a_mistyped_path(run: Callable[..., Result], tmp_path: Path) -> None:
    """`status` and `leases` on a path where nothing is say so, exit 1, and leave nothing behind."""
    for command in ("status", "leases"):
        said = run(
            command, where=["--ledger", f"sqlite:{tmp_path}/typo.db", "--store", f"sqlite:{tmp_path}/typo.db"]
        )
        assert said.exit_code == 1
        assert "typo.db" in said.output
    assert not list(tmp_path.iterdir())


def test_status_has_one_line_per_job_however_many_keys_it_has(
    app: Claimant, run: Callable[..., Result]
) -> None:
    """A hundred orders are one line, and the one that failed is in it; `status NAME` sums them up."""

    @app.job("debit", key=["order_id"], stake="scan")
    def debit(run_: Run, order_id: int) -> None:
        if order_id == 13:
            raise ValueError("no such order")

    for order in range(30):
        if order == 13:
            with pytest.raises(ValueError, match="no such order"):
                debit(order)
        else:
            debit(order)
    (line,) = run("status").output.splitlines()
    assert line.startswith("debit[order_id=13]: failed ")
    assert line.endswith("(30 keys: 1 failed, 29 ok)")
    assert "30 runs, 1 failed" in run("status", "debit").output


def test_namespaces_are_shown_unless_one_is_asked_for(run: Callable[..., Result], places: list[str]) -> None:
    """Without --namespace every namespace is there, by name; in an empty one, the others are named."""
    for namespace in ("shop", "staging"):
        with Claimant(places[1], ledger=places[3], namespace=namespace) as claims:
            claims.job("rebuild-index", stake="rebuild")(lambda run: None)()
            with held_by_another(claims, "rebuild-index"):
                assert run("leases").output.startswith(f"{namespace}/rebuild-index: held by somebody-else:1")
                assert run("leases", "--namespace", namespace).output.startswith("rebuild-index: held by ")
                said = f"no claims in the namespace other; there are claims in the namespace {namespace}\n"
                assert run("leases", "--namespace", "other").output == said
                [row] = json.loads(run("leases", "--json").output)
                assert (row["namespace"], row["name"]) == (namespace, "rebuild-index")
    lines = run("status").output.splitlines()
    assert [line.split(":")[0] for line in lines] == ["shop/rebuild-index", "staging/rebuild-index"]
    assert run("status", "--namespace", "shop").output.startswith("rebuild-index: ok")
    empty = run("status", "--namespace", "shopp").output
    assert empty.endswith(
        "no job has started or skipped in the namespace shopp of this ledger; it has jobs in the namespaces shop, staging\n"
    )
    assert "did you mean shop/rebuild-index or staging/rebuild-index?" in run("status", "rebuild-indx").output
    one = run("status", "staging/rebuild-index")
    assert one.output.startswith("staging/rebuild-index: ok")
    assert (one.exit_code, len(one.output.splitlines())) == (0, 5)
    found = json.loads(run("status", "--json").output)
    assert [job["namespace"] for job in found["jobs"]] == ["shop", "staging"]


def test_a_ledger_that_does_not_answer_leaves_the_claims_to_be_shown(
    app: Claimant, run: Callable[..., Result], places: list[str]
) -> None:
    """`status` fails within its deadline, with exit code 1, and still shows who holds what."""
    with held_by_another(app, "rebuild-index"):
        said = run("status", where=[*places[:2], "--ledger", "postgresql://127.0.0.1:1/none?deadline=300ms"])
        as_json = run(
            "status",
            "--json",
            where=[*places[:2], "--ledger", "postgresql://127.0.0.1:1/none?deadline=300ms"],
        )
    assert said.exit_code == as_json.exit_code == 1
    assert said.stdout.startswith("lease: rebuild-index: held by somebody-else:1")
    assert said.stderr.startswith("claimant: the ledger postgresql://127.0.0.1:1/none did not answer: ")
    found = json.loads(as_json.stdout)
    assert found["leases"][0]["name"] == "rebuild-index"
    assert "did not answer" in found["ledger"]


def test_a_ledger_that_is_silent_is_not_waited_for_in_silence(
    places: list[str], run: Callable[..., Result], app: Claimant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is waited for is said on standard error once it takes long, and the URL's own deadline ends the wait."""
    monkeypatch.setattr(reading, "SILENCE_S", 0.05)
    with held_by_another(app, "rebuild-index"), socket.create_server(("127.0.0.1", 0)) as mute:
        ledger = f"postgresql://127.0.0.1:{mute.getsockname()[1]}/none"
        began = time.monotonic()
        said = run("status", where=[*places[:2], "--ledger", f"{ledger}?deadline=400ms"])
        assert time.monotonic() - began < 2.5
    assert said.stderr.startswith(
        f"asking the ledger {ledger} …\nclaimant: the ledger {ledger} did not answer"
    )
    assert "nothing within" in said.stderr or "no connection within" in said.stderr
    assert said.exit_code == 1
    assert reading.PATIENCE_MS == 3_000


def test_names_too_long_for_a_key_are_listed_as_what_is_left_of_them(
    run: Callable[..., Result], places: list[str]
) -> None:
    """A key that was cut is shown by the beginning of its name, without the hash, in its namespace, however long that is."""
    for namespace in ("shop", "s" * 300):
        with (
            Claimant(places[1], ledger=places[3], namespace=namespace) as claims,
            held_by_another(claims, "é" * 300),
        ):
            for words in ((), ("--namespace", namespace)):
                (line,) = run("leases", *words).output.splitlines()
                assert "…: held by somebody-else:1" in line
                assert "*:" not in line
                assert ("s" * 20 if len(namespace) > 4 else "éééé") in line


def test_in_a_container_the_hint_is_for_the_command_line(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the embedded default is refused, the command says which option to use, not which argument."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    for command, option in (("status", "--ledger sqlite:"), ("leases", "--store sqlite:")):
        said = run(command, where=[])
        assert said.exit_code == 1
        assert "CLM051" in said.output
        assert option in said.output
        assert "ledger='" not in said.output
        assert "Claimant(" not in said.output


def test_help_is_not_cut() -> None:
    """Each command is described in a whole sentence, on a terminal of eighty columns."""
    said = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    for command in ("status", "leases", "init", "demo"):
        (line,) = (line for line in said.splitlines() if line.split()[:1] == [command])
        assert line.endswith(".")
        assert not line.endswith("...")
