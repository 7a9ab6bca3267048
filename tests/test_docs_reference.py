"""The reference is complete and true: what the source can say is on its page, and nothing else is."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import click

import claimant
from claimant._flows.once_inside import WOULD_REJECT
from claimant._model.dialect import Dialect
from claimant._model.outcome import AnswerKind, Claim, Kind
from claimant._model.stake import Stake
from claimant._sql.guard_texts import schema_sql as guard_sql
from claimant.cli.config_options import FOR_THE_CHILD, OPTIONS
from claimant.cli.main import main
from claimant.ledger import schema_sql as ledger_sql
from tests.docs_support.pages import DOCS, ROOT, all_pages

SOURCE = ROOT / "src" / "claimant"
REFERENCE = DOCS / "reference"
EVENT = re.compile(r"(run|loop|lease|guard|store|ledger)\.(?!db$)[a-z_]+")
RUN_KINDS = {"run.ran", "run.failed", "run.unknown", "run.stopped", "run.uncommitted", "run.absent"}
"""What `f"run.{kind}"` in `_flows/run.py` can become: every end of a body, and a start that does not go on."""
GUARD_KINDS = {f"guard.{kind}" for kind in AnswerKind}
"""What `f"guard.{answer.kind.value}"` in `_flows/once.py` can become."""


def sources() -> list[Path]:
    return [file for file in sorted(SOURCE.rglob("*.py")) if file.relative_to(SOURCE).parts[0] != "sim"]


def page(name: str) -> str:
    return (REFERENCE / name).read_text()


def rows(name: str) -> list[list[str]]:
    """The cells of all table rows of a page, without headings and rules."""
    found: list[list[str]] = []
    lines = page(name).splitlines()
    for at, line in enumerate(lines):
        is_heading = at + 1 < len(lines) and lines[at + 1].startswith("|---")
        if line.startswith("|") and not line.startswith("|---") and not is_heading:
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    assert found
    return found


def coded(text: str) -> set[str]:
    """Everything in backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


def test_every_refusal_is_explained_and_none_is_invented() -> None:
    """The codes in the source and the rows of refusals.md are the same; each row says what and what instead."""
    raised = {code for file in sources() for code in re.findall(r"\"(CLM\d{3})\"", file.read_text())}
    table = {row[0]: row for row in rows("refusals.md")}
    assert len(table) == len(rows("refusals.md"))
    assert set(table) == raised
    assert all(len(row) == 3 and all(row) for row in table.values())


def test_no_page_names_a_refusal_that_does_not_exist() -> None:
    """A code in any page is one that the source raises."""
    raised = {code for file in sources() for code in re.findall(r"\"(CLM\d{3})\"", file.read_text())}
    told = {code for each in all_pages() for code in re.findall(r"CLM\d{3}", each.text)}
    assert told <= raised


def emitted() -> tuple[set[str], list[str]]:
    """Event kinds written out in the source, and the files that compose one."""
    kinds: set[str] = set()
    composed: list[str] = []
    for file in sources():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and EVENT.fullmatch(node.value):
                kinds.add(node.value)
            elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                head = str(node.values[0].value)
                if re.fullmatch(r"(run|loop|lease|guard|store|ledger)\.", head):
                    composed.append(f"{file.relative_to(SOURCE).as_posix()} {head}")
    return kinds, composed


def test_every_event_is_explained_and_none_is_invented() -> None:
    """The kinds in the source and the rows of events.md are the same."""
    kinds, composed = emitted()
    assert sorted(composed) == ["_flows/once.py guard.", "_flows/run.py run.", "_flows/run.py run."]
    told = {row[0].strip("`"): row for row in rows("events.md")}
    assert set(told) == kinds | RUN_KINDS | GUARD_KINDS | {f"guard.{WOULD_REJECT}"}
    assert {row[1] for row in told.values()} <= {"debug", "info", "warning", "error"}


def test_every_public_name_has_a_place_in_the_reference() -> None:
    """Each name of `claimant.__all__` is a heading or a row of claimant.md."""
    assert set(claimant.__all__) <= coded(page("claimant.md"))


def test_every_parameter_is_described() -> None:
    """The parameters of `Claimant`, `job`, `hold`, `once` and `run.once` stand in claimant.md, with their defaults."""
    text = page("claimant.md")
    described = coded(text)
    signatures: dict[str, Callable[..., object]] = {
        "Claimant": claimant.Claimant.__init__,
        "Claimant.job": claimant.Claimant.job,
        "Claimant.hold": claimant.Claimant.hold,
        "once": claimant.once,
    }
    for heading, function in signatures.items():
        section = text.partition(f"## `{heading}`")[2].partition("\n## ")[0]
        assert section, heading
        for name, parameter in inspect.signature(function).parameters.items():
            if name != "self":
                assert re.search(rf"`{name}`|\b{name}\b(?==|[,)])", section), f"{heading}: {name}"
            if heading == "Claimant.job" and isinstance(parameter.default, str):
                assert f'`"{parameter.default}"`' in section, f"{heading}: {name}={parameter.default!r}"
    assert set(inspect.signature(claimant.Claimant.job).parameters) - {"self"} <= described


def test_every_attribute_of_run_lease_and_outcome_is_described() -> None:
    """Whatever a body or a caller can reach without an underscore is in the reference."""
    described = coded(page("claimant.md")) | coded(page("outcomes.md"))
    names = {re.split(r"[(\s]", name)[-1 if name.startswith("await") else 0] for name in described}
    faces = {"Run": claimant.Run, "AsyncRun": claimant.AsyncRun, "Lease": claimant.Lease}
    for kind, face in {**faces, "Outcome": claimant.Outcome, "Answer": claimant.Answer}.items():
        public = {name for name in dir(face) if not name.startswith("_")}
        assert public <= names | {"result", "operation"}, f"{kind}: {public - names}"


def test_every_outcome_is_explained() -> None:
    """The kinds of work, claim and answer in outcomes.md are those of the source, in the same order."""
    first = [row[0].strip("`") for row in rows("outcomes.md")]
    for kinds in (Kind, Claim, AnswerKind):
        values = [str(kind) for kind in kinds]
        assert values in [first[at : at + len(values)] for at in range(len(first))]


def test_the_stakes_are_those_of_the_source() -> None:
    """README and reference name the five stakes, and no sixth."""
    assert {f"Stake.{stake.name}" for stake in Stake} == {
        name for name in coded(page("claimant.md")) if re.fullmatch(r"Stake\.[A-Z]+", name)
    }
    table = re.findall(r"^\| `\"(\w+)\"` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert table == [str(stake) for stake in Stake]


def test_every_command_and_option_is_described_and_none_is_invented() -> None:
    """cli.md has the commands and options that click has, and says which command takes which option."""
    commands = main.commands
    text = page("cli.md")
    assert set(re.findall(r"^\| `claimant (\w+)", text, re.MULTILINE)) == set(commands)
    takes: dict[str, set[str]] = {}
    for name, command in commands.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                takes.setdefault(parameter.opts[-1], set()).add(name)
    for parameter in main.params:
        takes.setdefault(parameter.opts[-1], set()).add("claimant")
    told: dict[str, set[str]] = {}
    section = text.partition("\n## Run\n")[2].partition("\n## ")[0]
    of_run = re.findall(r"^\| (`-.*?) \|", section, re.MULTILINE)
    assert of_run
    for row in rows("cli.md"):
        option = re.match(r"(?:`-h`, )?`(--[\w-]+)`", row[0])
        if option and row[0] not in of_run:
            named = set(re.findall(r"`(\w+)`", row[1]))
            told[option[1]] = set(commands) - named if row[1].startswith("all") else named
    for cell in of_run:
        for each in re.findall(r"`(--(?!no-)[\w-]+)`", cell):
            told.setdefault(each, set()).add("run")
    assert told.pop("--help") == set(commands)
    assert told == takes
    variables = {option.variable for option in OPTIONS.values() if option.variable}
    assert variables | {"CLAIMANT_CONFIG", *FOR_THE_CHILD} == {
        name for name in coded(text) if name.startswith("CLAIMANT_")
    }


def tables_of(sql: str) -> dict[str, set[str]]:
    """Table and column names of CREATE TABLE statements."""
    found: dict[str, set[str]] = {}
    for name, body in re.findall(
        r"CREATE TABLE IF NOT EXISTS (\w+) \((.*?)\n?\)(?: WITH [^;]*)?;", sql, re.DOTALL
    ):
        pieces = [piece.strip() for piece in re.split(r",\s*\n|\n", body)]
        found[name] = {piece.split()[0] for piece in pieces if piece and not piece.startswith("PRIMARY")}
    return found


def test_every_table_and_column_is_described_and_none_is_invented() -> None:
    """ledger-and-guard-tables.md has the tables and columns that `claimant init` makes, on both databases."""
    text = page("ledger-and-guard-tables.md")
    told: dict[str, set[str]] = {}
    for section in text.split("\n### ")[1:]:
        name = section.partition("\n")[0].strip("` ")
        columns = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.MULTILINE)
        told[name] = {column for cell in columns for column in re.findall(r"`(\w+)`", cell)}
    for made in (
        tables_of(ledger_sql("sqlite")) | tables_of(guard_sql(Dialect.SQLITE)),
        tables_of(ledger_sql("postgresql")) | tables_of(guard_sql(Dialect.POSTGRESQL)),
    ):
        assert len(made) == 8
        assert told == made


def test_the_capability_sheets_are_those_of_the_stores() -> None:
    """The table in stores.md says of each store what the store says of itself."""
    from claimant.stores import open_store

    yes = {True: ("yes",), False: ("no",), None: ("see below", "depends on the server")}
    cells = {row[0]: row[1:] for row in rows("stores.md") if len(row) == 4}
    for column, url in enumerate(("memory:", "sqlite:never-opened.db", "redis://localhost")):
        sheet = open_store(url).capabilities
        said = {label: row[column] for label, row in cells.items()}
        assert said["shared with other processes"] in yes[sheet.shared]
        assert said["shared with other hosts"] in yes[not sheet.host_local]
        assert said["an acknowledged claim survives a restart of the store"].startswith(
            yes[sheet.survives_restart]
        )
        assert said["may drop a live claim early"].startswith(yes[sheet.early_removal])
        assert said["smallest step of a lifetime"] == f"{sheet.resolution_ms} ms"
        assert said["who measures the deadline"] == sheet.deadline_clock


def test_nothing_that_does_not_exist_is_described_as_existing() -> None:
    """Names of what is planned stand on the one page that says that they are not there yet, and nowhere else."""
    planned = re.compile(
        r"`claimant (doctor|advise|forecast|drill|web|check|release)\b|provider\(|transition\("
    )
    for each in all_pages():
        assert not planned.search(each.text), each.name
