"""Configuration: which of flag, environment and files wins, what is believed, and what is refused with which words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from claimant.cli import config_files
from claimant.cli.config import Misconfigured, Settings, settings
from claimant.cli.config_lines import line_of
from claimant.cli.config_options import OPTIONS, Reach


class Host:
    """A host of the test's own: four places for files, an environment, a folder to stand in."""

    def __init__(self, folder: Path) -> None:
        self.named = folder / "named.toml"
        self.here = folder / "here" / "claimant.toml"
        self.user = folder / "home" / "claimant" / "claimant.toml"
        self.system = folder / "etc" / "claimant.toml"
        for file in (self.here, self.user, self.system):
            file.parent.mkdir(parents=True)
        self.environ: dict[str, str] = {"XDG_CONFIG_HOME": str(folder / "home")}

    def settings(self, name: str | None = None, **environ: str) -> Settings:
        return settings(name, environ=self.environ | environ)

    def refusal(self, name: str | None = None, **environ: str) -> str:
        with pytest.raises(Misconfigured) as refused:
            found = self.settings(name, **environ)
            for option in OPTIONS:
                found.value(option)
        return str(refused.value)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.chdir(made.here.parent)
    monkeypatch.setattr(config_files, "SYSTEM", str(made.system))
    return made


def test_each_place_wins_over_the_ones_behind_it(host: Host) -> None:
    """Flag, environment, CLAIMANT_CONFIG's file, ./claimant.toml, the user's, the system's, default: in this order."""
    for place in (host.named, host.here, host.user, host.system):
        place.write_text(f'store = "sqlite:{place.parent.name}"')
    at = {"CLAIMANT_CONFIG": str(host.named), "CLAIMANT_STORE": "sqlite:environ"}
    found = host.settings(**at)
    assert found.value("store", "sqlite:flag") == "sqlite:flag"
    assert str(found.source("store", "sqlite:flag")) == "--store"
    assert (found.value("store"), str(found.source("store"))) == ("sqlite:environ", "CLAIMANT_STORE")
    del at["CLAIMANT_STORE"]
    for place in (host.named, host.here, host.user, host.system):
        found = host.settings(**at)
        assert found.value("store") == f"sqlite:{place.parent.name}"
        assert str(found.source("store")).endswith(f"{place.name}:1: store")
        at = {}
        place.unlink()
    assert host.settings().value("store") is None
    assert str(host.settings().source("store")) == "default"


def test_values_merge_one_by_one_and_a_jobs_own_section_wins(host: Host) -> None:
    """A file hides only the values that it says; `[jobs.NAME]` of any file wins over `[defaults]` of any file."""
    host.here.write_text('[defaults]\nlifetime = "20s"\non-loss = "stop"\n')
    host.system.write_text(
        'ledger = "sqlite:l"\n[defaults]\nlifetime = "40s"\ntz = "UTC"\n[jobs.report]\nlifetime = 10\nstake = "scan"\n'
    )
    mine, other = host.settings("report"), host.settings("other")
    assert (mine.value("lifetime"), other.value("lifetime")) == (10, "20s")
    assert (mine.value("on-loss"), mine.value("tz"), mine.value("ledger")) == ("stop", "UTC", "sqlite:l")
    assert (mine.value("stake"), other.value("stake")) == ("scan", None)
    assert str(mine.source("lifetime")).endswith("etc/claimant.toml:6: jobs.report.lifetime")


def test_a_key_is_the_flags_name_or_the_decorators(host: Host) -> None:
    """`max-run` and `max_run` are the same key, and a table that has both is refused."""
    host.here.write_text('[defaults]\nmax_run = "2h"\non-loss = "stop"\n')
    found = host.settings()
    assert (found.value("max-run"), found.value("on-loss")) == ("2h", "stop")
    host.here.write_text('[defaults]\nmax_run = "2h"\nmax-run = "3h"\n')
    assert "line 3: defaults.max-run max_run says the same" in host.refusal()


def test_every_option_can_be_said_where_it_belongs_and_nowhere_else(host: Host) -> None:
    """Each option is accepted in the tables and variables of its reach, and refused in the others, with a reason."""
    good = {"duration": '"90s"', "flag": "true", "exit code": "75", "count": "3", "text": '"x"'}
    for name, option in OPTIONS.items():
        value = f'"{option.one_of[0]}"' if option.one_of else good[option.kind]
        tables = {"": f"{name} = {value}\n", "[defaults]": "", "[jobs.it]": ""}
        for table in tables:
            host.here.write_text(f"{table}\n{name} = {value}\n")
            fits = {
                Reach.PLACE: table == "",
                Reach.HABIT: table != "",
                Reach.JOB: table == "[jobs.it]",
            }[option.reach]
            if fits:
                assert host.settings("it").value(name) is not None, (name, table)
            else:
                assert "CLM094" in host.refusal("it"), (name, table)
        host.here.unlink()
        variable = f"CLAIMANT_{name.upper().replace('-', '_')}"
        text = value.strip('"')
        if option.reach is Reach.JOB:
            assert f"{variable} is set, and {name} belongs to one job" in host.refusal(
                "it", **{variable: text}
            )
        else:
            assert host.settings("it", **{variable: text}).source(name).key == variable


def test_a_stake_is_never_a_default(host: Host) -> None:
    """`[defaults] stake` says that it belongs to one job, and where to write it."""
    host.here.write_text('[defaults]\nstake = "rebuild"\n')
    said = host.refusal()
    assert said.startswith("CLM094: ./claimant.toml, line 2: defaults.stake belongs to one job")
    assert "[jobs.NAME]" in said
    assert "nobody chose" in said


def test_slot_force_and_name_never_come_from_a_file(host: Host) -> None:
    """Each is refused in every table, with the reason."""
    for key in ("slot", "force", "name"):
        for table in ("", "[defaults]", "[jobs.it]"):
            host.here.write_text(f'{table}\n{key} = "x"\n')
            assert "never comes from a file" in host.refusal("it")


def test_what_a_run_tells_its_child_is_never_read_as_an_option(host: Host) -> None:
    """CLAIMANT_SLOT, NAME, RUN_ID, OPERATION, LEASE and DEADLINE in the environment change nothing."""
    told = {f"CLAIMANT_{name}": "x" for name in ("SLOT", "NAME", "RUN_ID", "OPERATION", "LEASE", "DEADLINE")}
    inside, outside = host.settings("it", **told), host.settings("it")
    assert all(inside.source(option) == outside.source(option) for option in OPTIONS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stroe = 'x'", "line 1: stroe is not an option here; did you mean store?"),
        ("[default]\n", "line 1: default is not an option here; did you mean defaults?"),
        (
            "[defaults]\nlifetme = '3s'",
            "line 2: defaults.lifetme is not an option here; did you mean lifetime?",
        ),
        ("[jobs.it]\nstakes = 'scan'", "line 2: jobs.it.stakes is not an option here; did you mean stake?"),
        ("\nlifetime = '3s'", "line 2: lifetime is said for all jobs, in [defaults], or for one"),
        (
            "[jobs.it]\nstore = 'redis://h'",
            "line 2: jobs.it.store is said for everything: at the top of a file",
        ),
        ("store = 3", "line 1: store must be text in quotes, not a number"),
        ("store = ''", "line 1: store is empty"),
        ("defaults = 3", "line 1: defaults must be a table"),
        ("jobs = []", "line 1: jobs must be a table: [jobs.NAME]"),
        ("[jobs]\nit = 'scan'", "line 2: jobs.it must be a table"),
        ("[defaults]\nlifetime = true", 'line 2: defaults.lifetime must be a duration such as "30s"'),
        (
            "[defaults]\nlifetime = '3 parsecs'",
            "line 2: defaults.lifetime lifetime='3 parsecs' is not a duration",
        ),
        ("[defaults]\nlifetime = 0", "line 2: defaults.lifetime lifetime=0 must be a positive"),
        (
            "[defaults]\non-loss = 'stpo'",
            "line 2: defaults.on-loss 'stpo' is not one of go-on, stop; did you mean stop?",
        ),
        ("[defaults]\non-absent = 'wait:soon'", "line 2: defaults.on-absent"),
        (
            "[jobs.it]\nattempts = 0",
            "line 2: jobs.it.attempts must be a whole number from 1 on",
        ),
        (
            "[jobs.it]\nattempts = true",
            "line 2: jobs.it.attempts must be a whole number from 1 on",
        ),
        (
            "[defaults]\nskip-exit = 256",
            "line 2: defaults.skip-exit must be a whole number from 0 to 255, not 256",
        ),
        ("[defaults]\njson = 'yes'", "line 2: defaults.json must be true or false, not text"),
        (
            "[jobs.it]\nstake = 'precious'",
            "line 2: jobs.it.stake 'precious' is not one of rebuild, scan, append",
        ),
        ("[jobs.it]\nevery = '1h'\ncron = '0 3 * * *'", "line 3: jobs.it.cron and every are two schedules"),
        ("[defaults]\nlifetime = 1979-05-27", "not a date or time"),
        (
            "defaults = { lifetme = '3s' }",
            "line 1: defaults.lifetme is not an option here; did you mean lifetime?",
        ),
        ("defaults.lifetme = '3s'", "line 1: defaults.lifetme is not"),
        ("store = redis://h", "is not TOML: Invalid value (at line 1, column 9)"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_what_was_meant(host: Host, text: str, said: str) -> None:
    """Each wrong key or value is one sentence: the file, the line, the key, and a near miss where there is one."""
    host.here.write_text(text)
    refusal = host.refusal("it")
    assert refusal.startswith("CLM09")
    assert "./claimant.toml" in refusal
    assert said in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("CLAIMANT_LIFETIME", "30", "CLAIMANT_LIFETIME lifetime='30' is not a duration"),
        ("CLAIMANT_OBSERVE", "perhaps", "CLAIMANT_OBSERVE must be one of 1, true"),
        ("CLAIMANT_SKIP_EXIT", "-1", "CLAIMANT_SKIP_EXIT must be a whole number from 0 to 255"),
        ("CLAIMANT_ON_LOSS", "explode", "CLAIMANT_ON_LOSS 'explode' is not one of go-on, stop"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    host: Host, variable: str, text: str, said: str
) -> None:
    """A variable that is no value for its option is refused by its name."""
    assert said in host.refusal("it", **{variable: text})


def test_a_url_in_the_wrong_place_is_not_quoted_with_its_password(host: Host) -> None:
    """A store's URL written as a lifetime, as a key or into another variable: the refusal hides the password."""
    url = "redis://:hunter2@h/0"
    assert "redis://:***@h" in host.refusal(CLAIMANT_LIFETIME=url)
    for text in (
        f"[defaults]\nlifetime = '{url}'",
        f"'{url}' = 1",
        f"[defaults]\non-loss = '{url}'",
        f"store = '{url}",
    ):
        host.here.write_text(text)
        assert "hunter2" not in host.refusal()


def test_flags_and_exit_codes_can_be_said_in_the_environment(host: Host) -> None:
    """Words for yes and no, and whole numbers, are read as what they are; an empty variable says nothing."""
    found = host.settings(CLAIMANT_OBSERVE="No", CLAIMANT_JSON="on", CLAIMANT_SKIP_EXIT="75", CLAIMANT_TZ="")
    assert [found.value(option) for option in ("observe", "json", "skip-exit", "tz")] == [
        False,
        True,
        75,
        None,
    ]


def test_another_jobs_mistake_stops_only_that_job(host: Host) -> None:
    """A wrong key in `[jobs.other]` is refused for `other`, and nobody else's start hangs on it."""
    host.here.write_text('[jobs.it]\nstake = "scan"\n[jobs.other]\nstale = "scan"\n')
    assert host.settings("it").value("stake") == "scan"
    assert "jobs.other.stale" in host.refusal("other")


def test_a_name_with_a_dot_must_be_quoted_and_says_so(host: Host) -> None:
    """`[jobs.shop.debit]` is a table in a table: it is not overlooked, and `[jobs."shop.debit"]` works."""
    host.here.write_text('[jobs.shop.debit]\nstake = "scan"\n')
    assert 'a name with a dot is written in quotes: [jobs."shop.debit"]' in host.refusal("shop.debit")
    host.here.write_text('[jobs."shop.debit"]\nstake = "scan"\n')
    assert host.settings("shop.debit").value("stake") == "scan"
    assert str(host.settings("shop.debit").source("stake")) == './claimant.toml:2: jobs."shop.debit".stake'


def test_a_file_that_was_asked_for_must_be_there(host: Host) -> None:
    """CLAIMANT_CONFIG naming nothing is refused with the path; the other places may be empty; /dev/null is allowed."""
    said = host.refusal(CLAIMANT_CONFIG=str(host.named))
    assert said.startswith(f"CLM090: CLAIMANT_CONFIG names {host.named}, and there is no such file")
    assert host.settings(CLAIMANT_CONFIG=os.devnull).value("store") is None


def test_what_is_no_file_is_refused_and_never_waited_for(host: Host) -> None:
    """A folder, a pipe that nobody writes to, something huge and something that is no text: a sentence each, at once."""
    assert "is not a plain file" in host.refusal(CLAIMANT_CONFIG=str(host.here.parent))
    os.mkfifo(host.named)
    # In a process of its own, because a call that waits for the pipe cannot be ended from within.
    code = f"from claimant.cli.config import settings; settings(environ={{'CLAIMANT_CONFIG': {str(host.named)!r}}})"
    piped = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=20
    )
    assert "is not a plain file" in piped.stderr
    host.named.unlink()
    with host.named.open("wb") as file:
        file.truncate(config_files.LARGEST + 1)
    assert "is not a plain file of at most 1000 kB" in host.refusal(CLAIMANT_CONFIG=str(host.named))
    host.named.write_bytes(b"# fine\nstore = '\xff'")
    assert "line 2: it is not UTF-8" in host.refusal(CLAIMANT_CONFIG=str(host.named))
    host.named.write_bytes(b"\xef\xbb\xbfstore = 'sqlite:x'\r\n")
    assert host.settings(CLAIMANT_CONFIG=str(host.named)).value("store") == "sqlite:x"


def test_a_file_that_everybody_may_write_is_ignored_here_and_says_why(host: Host) -> None:
    """Mode o+w on ./claimant.toml: not read, one warning; g+w is read, and so is the file if it is named."""
    host.here.write_text('store = "sqlite:x"')
    host.here.chmod(0o666)
    found = host.settings()
    assert found.value("store") is None
    assert found.files.warnings() == [
        "./claimant.toml is ignored: everybody may write it. Say chmod o-w, or name it with CLAIMANT_CONFIG"
    ]
    assert host.settings(CLAIMANT_CONFIG="./claimant.toml").value("store") == "sqlite:x"
    host.here.chmod(0o664)
    assert host.settings().value("store") == "sqlite:x"


def test_a_file_of_somebody_else_is_ignored_here(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """./claimant.toml of neither root nor this user is not read; where it is a link, both ends count."""
    host.here.write_text('store = "sqlite:x"')
    strangers, me = 3_987_654, os.geteuid()
    real_lstat, real_stat, real_fstat = os.lstat, os.stat, os.fstat

    def of_stranger(found: os.stat_result) -> os.stat_result:
        fields = list(found)
        fields[4] = strangers
        return os.stat_result(fields)

    for call, real in (("lstat", real_lstat), ("stat", real_stat), ("fstat", real_fstat)):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, lambda where, real=real: of_stranger(real(where)))
            (warning,) = host.settings().files.warnings()
            assert f"is ignored: it belongs to user {strangers}, and this runs as " in warning, call
            assert "or name it with CLAIMANT_CONFIG" in warning
    monkeypatch.setattr(os, "geteuid", lambda: strangers)
    # Root's file is believed by everybody; another user's by nobody else, not even by root.
    assert (host.settings().value("store") == "sqlite:x") is (me == 0)


def test_what_cannot_be_read_is_an_error_and_never_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is there and closed to this user is refused: without its store, a command would look elsewhere."""
    host.system.write_text('store = "redis://h"')
    real = os.open

    def closed(path: Any, *rest: Any, **more: Any) -> int:
        if path == str(host.system):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", closed)
    assert (
        "etc/claimant.toml cannot be read (Permission denied), and what it says would be missed"
        in host.refusal()
    )


def test_a_home_that_is_somebody_elses_is_passed_over(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `sudo -u` HOME may be closed to this user: its file is ignored with a word, and jobs run."""

    def closed(path: Any, *rest: Any, real: Callable[..., Any], **more: Any) -> Any:
        if path == str(host.user):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest, **more)

    for call in ("open", "stat"):
        monkeypatch.setattr(os, call, partial(closed, real=getattr(os, call)))
    found = host.settings()
    assert [path for path, _ in found.files.ignored] == [str(host.user)]
    assert "somebody else's" in found.files.warnings()[0]


def test_of_two_schedules_the_one_that_is_said_closer_by_holds(host: Host) -> None:
    """A flag, then the nearer file; a zone that is only a default is dropped without a cron; two flags stay two."""
    host.here.write_text('[defaults]\ntz = "Europe/Berlin"\n[jobs.it]\nevery = "1h"\n')
    host.system.write_text('[jobs.it]\ncron = "0 3 * * *"\n')
    found = host.settings("it")
    assert found.schedule() == ("1h", None, None)
    assert found.schedule(cron="5 * * * *") == (None, "5 * * * *", "Europe/Berlin")
    assert found.schedule(every="2h", tz="UTC") == ("2h", None, "UTC")
    assert found.schedule(every="2h", cron="5 * * * *")[:2] == ("2h", "5 * * * *")
    host.here.write_text("")
    assert host.settings("it").schedule() == (None, "0 3 * * *", None)


def test_the_same_files_serve_another_job(host: Host) -> None:
    """`of(name)` checks that job's section and reads no file again."""
    host.here.write_text('[jobs.it]\nstake = "scan"\n[jobs.bad]\nstale = 1\n')
    found = host.settings()
    host.here.unlink()
    assert found.of("it").value("stake") == "scan"
    with pytest.raises(Misconfigured, match="jobs.bad.stale"):
        found.of("bad")


def test_a_repr_shows_no_value(host: Host) -> None:
    """Neither settings nor files show what is in them when they are printed by accident."""
    host.here.write_text('store = "redis://:hunter2@h"')
    found = host.settings()
    assert "hunter2" not in f"{found!r} {found.files.read[0]!r} {found.files.read!r}"


def test_lines_are_told_only_where_they_are_certain() -> None:
    """A key's line is found in tables, quoted names, dotted keys and inline tables; with long texts nothing is said."""
    text = '# store = 1\nstore = "x"\n\n[ jobs . "a b" ]\n  max_run = 3\n[jobs.c]\ndefaults = 2\n[defaults]\n'
    assert line_of(text, ("store",)) == 2
    assert line_of(text, ("jobs", "a b")) == 4
    assert line_of(text, ("jobs", "a b", "max_run")) == 5
    assert line_of(text, ("jobs",)) == 4
    assert line_of(text, ("defaults",)) == 8
    assert line_of(text, ("jobs", "c", "stake")) is None
    assert line_of('x = """\nstore = 3\n"""\nstore = 4\n', ("store",)) is None


def test_without_a_file_toml_is_not_even_imported(host: Host) -> None:
    """A command on a host without files pays for four failed opens, and for no parser."""
    code = (
        "import sys\nfrom claimant.cli import config_files\n"
        f"config_files.SYSTEM = {str(host.system)!r}\n"
        "from claimant.cli.config import settings\nassert settings('it').value('store') is None\n"
        "print(*sorted({'tomllib', 'difflib', 'pathlib', 'claimant.cli.config_lines'} & set(sys.modules)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **host.environ},
    )
    assert "tomllib" not in said.stdout
    assert "difflib" not in said.stdout
    assert "config_lines" not in said.stdout
