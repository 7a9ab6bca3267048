"""`claimant config`, and what every command does with what is configured: values, exit codes, and no secret shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from claimant import Claimant
from claimant.cli import config_files, main
from claimant.cli.commands import Command, Commands
from claimant.cli.config_options import OPTIONS
from claimant.cli.hiding import ping_shown, place_shown, text_shown
from claimant.cli.places import configured, places
from claimant.testing.faults import held_by_another
from tests.docs_support.pages import ROOT, Page

FILE = """\
store = "redis://app:hunter2@leases.example/0"
ledger = "postgresql://app:hunter3@db.example/app?sslpassword=hunter4&sslmode=require"

[defaults]
lifetime = "20s"
ping = "https://hc.example/hunter5"

[jobs.report]
stake = "append"
guard = "unique index in postgresql://app:hunter6@db.example/app, password=hunter7"
every = "1h"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """./claimant.toml; no other file and no variable is there."""
    for variable in [name for name in os.environ if name.startswith("CLAIMANT_")]:
        if variable != "CLAIMANT_TEST_RUN":
            monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(config_files, "SYSTEM", str(tmp_path / "etc.toml"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "claimant.toml"


def call(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def rows(*words: str) -> dict[str, tuple[object, str]]:
    """Each option's value and source, as `--json` says them."""
    said = call("config", *words, "--json")
    assert said.exit_code == 0, said.output
    return {row["option"]: (row["value"], row["source"]["key"]) for row in json.loads(said.stdout)["values"]}


def test_each_value_is_shown_with_its_source(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flag, variable, file with line and key, and default stand beside what they say, as text and as JSON."""
    here.write_text(FILE)
    monkeypatch.setenv("CLAIMANT_ON_LOSS", "stop")
    shown = call("config", "report", "--namespace", "shop").output.splitlines()
    words = {
        line.split()[0]: line.split()
        for line in shown
        if line and not line.startswith((" ", "note", "files"))
    }
    assert words["namespace"] == ["namespace", "shop", "--namespace"]
    assert words["on-loss"] == ["on-loss", "stop", "CLAIMANT_ON_LOSS"]
    assert words["lifetime"] == ["lifetime", "20s", "./claimant.toml:5:", "defaults.lifetime"]
    assert words["stake"] == ["stake", "append", "./claimant.toml:9:", "jobs.report.stake"]
    assert words["max-run"][-1] == "default"
    found = rows("report", "--namespace", "shop")
    assert set(found) == set(OPTIONS)
    assert found["every"] == ("1h", "jobs.report.every")
    assert found["cron"] == (None, "")


def test_no_secret_is_shown_anywhere(here: Path) -> None:
    """Passwords of URLs, secret parameters, a ping's path and passwords in a guard's text are hidden; hosts are not."""
    here.write_text(FILE)
    for words in (("config", "report"), ("config", "report", "--json"), ("config",)):
        said = call(*words, "--store", "redis://:hunter8@flag.example").output
        assert "hunter" not in said
        assert "*** stands for what is not shown" in said
    said = call("config", "report").output
    for part in (
        "redis://app:***@leases.example/0",
        "sslmode=require",
        "https://hc.example/***",
        "db.example/app",
    ):
        assert part in said


def test_all_places_are_listed_with_what_became_of_them(here: Path, tmp_path: Path) -> None:
    """Each file is read, not there, or ignored with the reason; the reason is also one line on standard error."""
    here.write_text("")
    here.chmod(0o666)
    (tmp_path / "etc.toml").write_text("")
    said = call("config", "--json")
    files = {Path(row["path"]).name: row["state"] for row in json.loads(said.stdout)["files"]}
    states = [row["state"] for row in json.loads(said.stdout)["files"]]
    assert states == ["ignored", "not there", "read"]
    assert files["etc.toml"] == "read"
    (line,) = said.stderr.splitlines()
    assert line.startswith("claimant: ./claimant.toml is ignored: everybody may write it.")


def test_the_embedded_default_is_shown_where_there_is_one(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store: this host's file; in a container, that one must be said."""
    monkeypatch.setenv("XDG_STATE_HOME", str(here.parent))
    monkeypatch.setattr("claimant.embedded.in_a_container", lambda: False)
    assert f"(sqlite:{here.parent / 'claimant' / 'leases.db'})" in call("config").output
    monkeypatch.setattr("claimant.embedded.in_a_container", lambda: True)
    assert call("config").output.count("(must be said: this is a container)") == 2


def test_what_was_probably_meant_is_said(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a section, a variable that no command reads, a schedule that another one hides: a note each."""
    here.write_text('[jobs.nightly-report]\nstake = "scan"\nevery = "1h"\n')
    monkeypatch.setenv("CLAIMANT_LIFTIME", "3s")
    monkeypatch.setenv("CLAIMANT_SLOT", "x")
    (here.parent / "etc.toml").write_text('[jobs.nightly-report]\ncron = "0 3 * * *"\n')
    said = call("config", "nightly-reprot").output
    assert "note: no file has a section for this job; did you mean nightly-report?" in said
    assert "CLAIMANT_LIFTIME is set and not read: no option; did you mean CLAIMANT_LIFETIME?" in said
    assert "CLAIMANT_SLOT is set and not read: told to a child by claimant run" in said
    assert (
        "cron is not used: every is said closer by, at ./claimant.toml:3"
        in call("config", "nightly-report").output
    )
    assert "jobs with a section of their own: nightly-report" in call("config").output


def test_a_file_with_a_password_that_everybody_may_read_is_pointed_out(here: Path) -> None:
    """Mode o+r beside a password is a note; without a password, or closed, there is none."""
    note = "holds a password, and its mode lets everybody read it"
    here.write_text(FILE)
    here.chmod(0o644)
    assert note in call("config").output
    here.chmod(0o640)
    assert note not in call("config").output
    here.write_text('store = "redis://leases.example/0"')
    here.chmod(0o644)
    assert note not in call("config").output


def test_without_a_name_every_jobs_section_is_checked(here: Path) -> None:
    """`claimant config` finds the mistake in a job's section that `claimant config OTHER` has no business with."""
    here.write_text('[jobs.it]\nstake = "scan"\n[jobs.other]\nstale = "scan"\n')
    assert call("config", "it").exit_code == 0
    whole = call("config")
    assert (whole.exit_code, whole.stdout) == (2, "")
    assert whole.stderr == (
        "claimant: CLM092: ./claimant.toml, line 4: jobs.other.stale is not an option here; did you mean stake?\n"
    )


def test_a_mistake_ends_each_command_with_its_code_for_bad_usage(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence and exit code 2, never a traceback; help and version still answer; a command may have its own codes."""
    here.write_text("store = redis://h")
    for words in (["status"], ["leases"], ["init"], ["config"]):
        said = call(*words)
        assert (said.exit_code, said.stdout) == (2, "")
        assert said.stderr.startswith("claimant: CLM091: ./claimant.toml is not TOML")
        assert len(said.stderr.splitlines()) == 1
        assert call(*words, "--help").exit_code == 0
    assert call("--version").exit_code == 0

    class Strict(Command):
        failed = misused = 125

    @click.group(cls=Commands)
    def group() -> None: ...

    @group.command(cls=Strict)
    @click.argument("name")
    @places
    @click.pass_context
    def run(ctx: click.Context, /, name: str, **_: object) -> None:
        configured(ctx, name)

    for words in (["run", "it"], ["run"], ["run", "it", "--nonsense"]):
        assert CliRunner().invoke(group, words).exit_code == 125
    assert CliRunner().invoke(group, ["rnu"]).exit_code == 2


def test_commands_use_what_is_configured(here: Path, tmp_path: Path) -> None:
    """`status` and `leases` read the store, ledger and namespace that a file names; a flag still wins."""
    url = f"sqlite:{tmp_path / 'leases.db'}", f"sqlite:{tmp_path / 'ledger.db'}"
    here.write_text(f'store = "{url[0]}"\nledger = "{url[1]}"\nnamespace = "shop"\n')
    with Claimant(url[0], ledger=url[1], namespace="shop") as claims:
        claims.job("rebuild-index", stake="rebuild")(lambda run: None)()
        with held_by_another(claims, "rebuild-index"):
            assert call("leases").output.startswith("rebuild-index: held by somebody-else:1")
            assert "namespace other" in call("leases", "--namespace", "other").output
    assert call("status").output.startswith("rebuild-index: ok")
    assert call("init").output == f"ledger tables are in {url[1]}\n"
    # A guard that is named is made alone: the ledger may be another kind of database.
    assert call("init", "--guard", f"sqlite:{tmp_path / 'app.db'}").output.startswith("guard tables are in ")


def test_the_demo_leaves_what_is_configured_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configured store is at work somewhere: the demo takes it only from a flag, and reads no file."""
    here.write_text("store = redis://broken")
    given: list[tuple[object, ...]] = []
    monkeypatch.setenv("CLAIMANT_LEDGER", "postgresql:///production")
    monkeypatch.setattr("claimant.cli.demo.perform", lambda *words: given.append(words[:2]))
    assert call("demo").exit_code == 0
    assert call("demo", "--store", "sqlite:x").exit_code == 0
    assert given == [(None, None), ("sqlite:x", None)]


def test_a_file_is_read_once_for_a_command(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three options that fall back to the same files cost one look at each."""
    here.write_text("")
    looked: list[object] = []
    real = config_files.find

    def find(environ: Mapping[str, str]) -> config_files.Files:
        looked.append(environ)
        return real(environ)

    monkeypatch.setattr("claimant.cli.config.find", find)
    call("leases")
    call("config", "it")
    assert len(looked) == 2


@given(
    st.sampled_from(["redis", "postgresql", "valkeys", "etcd", "mysql+pymysql"]),
    st.text(st.characters(codec="ascii", exclude_categories=["Cc", "Zs"]), min_size=6).map(
        lambda text: f"HUNTER{text}"
    ),
    st.booleans(),
)
def test_no_password_survives_in_a_shown_url(scheme: str, password: str, named: bool) -> None:
    """Whatever characters a password has, raw "@", "/", "?" and "#" among them, nothing of it is shown."""
    shown = place_shown(f"{scheme}://{'app' if named else ''}:{password}@db.example:5/x?deadline=1s")
    assert "HUNTER" not in shown
    if "?" in password:
        assert shown == f"{scheme}://***"
    else:
        assert shown.endswith("db.example:5/x?deadline=1s")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:/var/lib/app/leases.db", "sqlite:/var/lib/app/leases.db"),
        ("postgresql://app@db/x", "postgresql://app@db/x"),
        ("postgresql:///app", "postgresql:///app"),
        ("redis://hunter2@h/0", "redis://***@h/0"),
        ("redis://h/0?p%61ssword=hunter2&db=1", "redis://h/0?p%61ssword=***&db=1"),
        ("host=db password=hunter2", "***"),
        ("hunter2", "***"),
        ("redis://h:6379/0?password=a@hunter2", "redis://***"),
    ],
)
def test_places_are_shown_as_far_as_they_are_understood(url: str, shown: str) -> None:
    """Files and hosts are shown; a lone word before "@" may be a password; what is no URL is hidden."""
    assert place_shown(url) == shown


def test_pings_and_texts_keep_their_secrets() -> None:
    """A ping is its host; a text loses the passwords of its URLs and what is called a password."""
    assert ping_shown("https://me:pw@hc.example/uuid?x=1") == "https://hc.example/***"
    assert ping_shown("nonsense") == "***"
    assert (
        text_shown("see postgresql://a:pw@h/x and api_key: abc")
        == "see postgresql://a:***@h/x and api_key: ***"
    )
    assert text_shown("unique index on (order_id)") == "unique index on (order_id)"


def test_the_page_is_right_about_the_file_that_it_shows(here: Path) -> None:
    """The file of the how-to page is accepted whole, and names every table that there is."""
    block, *_ = Page(ROOT / "docs/how-to/configure-the-command-line.md").blocks("toml")
    here.write_text(block.text)
    assert call("config").exit_code == 0
    assert json.loads(call("config", "--json").stdout)["jobs"]


def test_every_option_stands_in_the_reference() -> None:
    """cli.md names each key of a file with its variable, and where it may stand."""
    section = (ROOT / "docs/reference/cli.md").read_text().partition("## Configuration")[2]
    for option in OPTIONS.values():
        row = next(line for line in section.splitlines() if line.startswith(f"| `{option.name}` |"))
        assert (f"`{option.variable}`" in row) is bool(option.variable)
        where = {"PLACE": "top", "HABIT": "`[defaults]`, `[jobs.NAME]`", "JOB": "`[jobs.NAME]`"}[
            option.reach.name
        ]
        assert f"| {where} |" in row


def test_a_process_sees_the_same(here: Path) -> None:
    """`python -m claimant.cli config` in a real process reads ./claimant.toml and exits 0; broken, it exits 2."""

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "claimant.cli", "config"], capture_output=True, text=True, check=False
        )

    here.write_text('store = "sqlite:x.db"')
    assert run().stdout.startswith("store ")
    here.write_text("[defaults]\nstake = 'scan'")
    broken = run()
    assert (broken.returncode, broken.stdout) == (2, "")
    assert broken.stderr.startswith("claimant: CLM094")
    assert "Traceback" not in broken.stderr
