"""The house rules that a reader would otherwise have to police: floors, sizes, exports, import cost, parity."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "claimant"

# A floor imports only floors below it. `sim` and `testing` stand beside the house and have rules of their own.
FLOORS = {
    "_model": 0,
    "_flows": 1,
    "_sql": 1,
    "_drive": 2,
    "stores": 2,
    "guards": 2,
    "ledger": 2,
    "claims": 3,
    "evidence": 3,
    "doctor": 3,
    "observe": 3,
    "integrations": 3,
    "": 4,  # claimant/__init__.py: the public names
    "cli": 5,
    "web": 5,
    "__main__": 5,
}
SIDE = {"sim", "testing"}

# What may be imported from the same floor, each with its reason.
SIDEWAYS = {
    ("stores", "_drive"): "the ports that a store fills, and the connector and clock that it is driven by",
    ("guards", "_drive"): "the interpreters that carry a guard's flow out on the caller's connection",
    ("ledger", "_drive"): "the port that a ledger fills",
    ("claims", "observe"): "the observer that is there by default writes to logging",
}

# One room in several files: what `claims.py` would hold if files could be long.
PART_OF = dict.fromkeys(
    ["declaring", "embedded", "holds", "jobs", "leases", "runs", "wiring", "zones"], "claims"
)

# Where nothing but decisions lives: values in, values out.
PURE = {"_model", "_flows"}
PURE_MAY_IMPORT = {
    *(
        "__future__",
        "abc",
        "base64",
        "bisect",
        "collections",
        "contextlib",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
    ),
    *(
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "string",
        "types",
    ),
    *("typing", "unicodedata", "urllib", "uuid", "zoneinfo"),
    "cronsim",  # values in, values out as well: when an expression's occasions are
}

EXPORTS = {
    *("Claimant", "Stake", "once"),
    *("Run", "AsyncRun", "Outcome", "Answer", "Lease"),
    *("ClaimantError", "Refused", "NotDone", "LeaseLost"),
}
MAY_EXPORT = {"Job", "AsyncJob"}

# The third-party names that `import claimant` must leave alone, our own heavy or lazy rooms among them.
NOT_AT_IMPORT = {
    *(
        "redis",
        "hiredis",
        "valkey",
        "pymemcache",
        "psycopg",
        "psycopg_pool",
        "psycopg_binary",
        "asyncpg",
        "pymysql",
    ),
    *(
        "sqlalchemy",
        "aiosqlite",
        "django",
        "etcd3",
        "prometheus_client",
        "opentelemetry",
        "starlette",
        "jinja2",
    ),
    *("uvicorn", "celery", "apscheduler", "click", "rich", "cronsim", "pytest", "hypothesis"),
    *(
        "claimant.cli",
        "claimant.web",
        "claimant.sim",
        "claimant.testing",
        "claimant.doctor",
        "claimant.integrations",
    ),
}
IMPORT_BUDGET_MS = 60
WHEEL_LIMIT = 500_000
VAGUE = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc"}


@dataclasses.dataclass(frozen=True)
class Import:
    """One import in one file: what room it stands in and what it names, absolutely."""

    file: Path
    line: int
    name: str

    @property
    def room(self) -> str:
        return room(self.file)

    @property
    def target(self) -> str | None:
        """The room of ours that is imported, or None for somebody else's module."""
        head, _, rest = self.name.partition(".")
        if head != "claimant":
            return None
        first = rest.partition(".")[0]
        known = (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").is_file()
        return PART_OF.get(first, first) if known else ""

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.name}"


def sources() -> list[Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files, "no source was found, so nothing was looked at"
    return files


def room(file: Path) -> str:
    first = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else PART_OF.get(first, first)


def imports(file: Path) -> Iterator[Import]:
    """Every import of a file, in functions and under TYPE_CHECKING too, relative ones resolved."""
    package = ["claimant", *file.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (Import(file, node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module" and node.args:
            name = node.args[0]
            if (
                isinstance(name, ast.Constant)
                and isinstance(name.value, str)
                and not name.value.startswith(".")
            ):
                yield Import(file, node.lineno, name.value)


def all_imports() -> list[Import]:
    found = [each for file in sources() for each in imports(file)]
    assert len(found) > 50, "hardly any import was found, so hardly anything was looked at"
    return found


def none(violations: list[object]) -> None:
    assert not violations, "\n" + "\n".join(map(str, violations))


def test_every_room_has_a_floor() -> None:
    """A new package or module at the top of the house is put on a floor before it is used."""
    rooms = {room(file) for file in sources()}
    assert {"_model", "_flows"} <= rooms
    assert rooms <= FLOORS.keys() | SIDE


def test_a_floor_imports_only_floors_below_it() -> None:
    """Lazy imports and those for the type checker count like any other."""
    violations: list[object] = []
    looked_at = 0
    for each in all_imports():
        if each.room in SIDE or each.target is None or each.target in SIDE:
            continue
        looked_at += 1
        down = each.room == each.target or FLOORS[each.target] < FLOORS[each.room]
        if not down and (each.room, each.target) not in SIDEWAYS:
            violations.append(f"{each}: floor {FLOORS[each.room]} to floor {FLOORS[each.target]}")
    assert looked_at > 10
    none(violations)


def test_every_sideways_import_that_is_allowed_is_used_and_stays_on_its_floor() -> None:
    """The list of exceptions holds what is needed and nothing else."""
    used = {(each.room, each.target) for each in all_imports()}
    for pair, reason in SIDEWAYS.items():
        assert FLOORS[pair[0]] == FLOORS[pair[1]], pair
        assert pair in used, f"{pair} is allowed and not used"
        assert reason


def test_flows_and_values_import_no_clock_no_chance_and_no_client() -> None:
    """Only what is on the list: a decision that reads a clock by itself cannot be simulated."""
    files = [file for file in sources() if room(file) in PURE]
    assert {room(file) for file in files} == PURE
    none(
        [
            each
            for file in files
            for each in imports(file)
            if each.target is None and each.name.partition(".")[0] not in PURE_MAY_IMPORT
        ]
    )


def test_stores_and_guards_never_import_each_other() -> None:
    """A lease and a guard that share code share its bugs."""
    rooms = {"stores", "guards"}
    assert rooms <= {room(file) for file in sources()}
    none([each for each in all_imports() if {each.room, each.target} == rooms])


def test_only_the_cli_imports_what_stands_beside_the_house() -> None:
    """`testing` and `sim` are imported by tests, by the commands that run them, and by nothing else."""
    assert {room(file) for file in sources()} >= SIDE
    none(
        [
            each
            for each in all_imports()
            if each.target in SIDE and each.room not in {each.target, "cli", "testing"}
        ]
    )


def test_the_simulator_imports_only_values_and_flows() -> None:
    """It runs the production decisions and none of the production interpreters."""
    found = [each for file in sources() if room(file) == "sim" for each in imports(file)]
    assert any(each.target == "_flows" for each in found)
    none([each for each in found if each.target not in {None, "sim", "_model", "_flows"}])


def test_files_stay_small() -> None:
    """A store has at most 250 lines, any file at most 500."""
    sizes = {
        file: len(file.read_text().splitlines()) for file in [*sources(), *(ROOT / "tests").rglob("*.py")]
    }
    none(
        [
            f"{file.relative_to(ROOT)} has {size} lines"
            for file, size in sizes.items()
            if size > (250 if file.is_relative_to(PACKAGE / "stores") else 500)
        ]
    )


def test_no_module_has_a_vague_name() -> None:
    """A newcomer finds the room by its name."""
    none(
        [
            file.relative_to(ROOT)
            for file in [*sources(), *(ROOT / "tests").rglob("*.py")]
            if file.stem in VAGUE
        ]
    )


def test_every_module_says_why_it_exists() -> None:
    """Each source file with code in it begins with a docstring."""
    trees = {file: ast.parse(file.read_text()) for file in sources()}
    none(
        [file.relative_to(ROOT) for file, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    )


def test_every_test_states_its_property() -> None:
    """Each test function has a docstring: one sentence that could be false."""
    functions = [
        (file, node)
        for file in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert len(functions) > 20
    none(
        [f"{file.name}:{node.lineno} {node.name}" for file, node in functions if not ast.get_docstring(node)]
    )


def tracked() -> list[Path]:
    """The files git knows or would take: what a commit of everything would hold."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert any(file.name == "pyproject.toml" for file in files)
    return [file for file in files if file.is_file()]


def test_nothing_unfinished_and_no_path_of_a_machine_is_kept() -> None:
    """No file promises work for later, names a home or build folder, or carries the address of a package index."""
    # One letter stands in brackets, so that this file is not its own first finding.
    unfinished = re.compile(r"\b([T]ODO|[F]IXME|[X]XX)\b")
    homes = "[h]ome/[a-z]|[r]oot/|[U]sers/[a-z]|[w]ork/|[t]mp/w/|[o]pt/pypi"
    here = re.compile(rf"(?<![\w.$}}~*-])/({homes})|[f]iles[.]pythonhosted|[p]ypi[.]org/simple")
    violations: list[object] = []
    for file in tracked():
        if file.name == "LICENSE":
            continue
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        lines = enumerate(text.splitlines(), 1)
        violations += [
            f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in lines
            if unfinished.search(line) or here.search(line)
        ]
    none(violations)


# --- the face


def load() -> ModuleType:
    import claimant

    return claimant


def test_the_public_names_are_exactly_these() -> None:
    """`claimant.__all__` holds what is built, no stub of what is not, and every name resolves."""
    claimant = load()
    assert len(claimant.__all__) == len(set(claimant.__all__))
    assert set(claimant.__all__) - MAY_EXPORT == EXPORTS
    for name in claimant.__all__:
        assert getattr(claimant, name) is not None


def test_importing_costs_little_and_loads_no_extra() -> None:
    """`import claimant` takes at most 60 ms of processor time over a bare interpreter, and pulls in no client.

    Processor time grows when the other half of a core is busy, so on a loaded machine the yardstick is `import asyncio`,
    measured in turns: on an idle one both cost about 41 ms here.
    """
    code = (
        "import sys, time; began = time.process_time(); import {0}; spent = time.process_time() - began;"
        "print(spent * 1000, *sys.modules)"
    )
    spent: list[float] = []
    yardstick: list[float] = []
    loaded: set[str] = set()
    for _ in range(9):
        for module, times in (("asyncio", yardstick), ("claimant", spent)):
            words = subprocess.run(
                [sys.executable, "-c", code.format(module)], capture_output=True, text=True, check=True
            ).stdout.split()
            times.append(float(words[0]))
            if module == "claimant":
                loaded |= set(words[1:])
    assert "claimant" in loaded
    assert not loaded & NOT_AT_IMPORT
    assert min(spent) <= max(IMPORT_BUDGET_MS, 1.3 * min(yardstick))


def parity(name: str) -> dict[str, object]:
    """The public attributes of a class: names of parameters, kinds and defaults for methods, the type's name otherwise."""
    kind = getattr(load(), name, None) or getattr(sys.modules["claimant.claims"], name)
    seen: dict[str, object] = {}
    for attribute in dir(kind):
        if attribute.startswith("_") and attribute != "__call__":
            continue
        value = inspect.getattr_static(kind, attribute)
        if callable(value):
            parameters = inspect.signature(value).parameters.values()
            seen[attribute] = [(each.name, each.kind, repr(each.default)) for each in parameters]
        else:
            seen[attribute] = type(value).__name__
    return seen


@pytest.mark.parametrize("plain", ["Job", "Run"])
def test_the_plain_and_the_async_face_are_the_same(plain: str) -> None:
    """`Job` and `AsyncJob`, `Run` and `AsyncRun` have the same public attributes and the same parameters."""
    first, second = parity(plain), parity(f"Async{plain}")
    assert first
    assert first == second


# --- what is shipped


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_dev_extra_and_the_dev_group_are_equal() -> None:
    """Old pip installs the extra, new tools the group; both give the same environment."""
    loaded = project()
    extra = loaded["project"]["optional-dependencies"]["dev"]  # type: ignore[index]
    group = loaded["dependency-groups"]["dev"]  # type: ignore[index]
    assert [each for each in extra if not each.startswith("claimant[")] == group
    assert group


def test_the_core_needs_two_packages() -> None:
    """`pip install claimant` brings click and cronsim, and nothing that is not used."""
    names = [re.split(r"[^\w-]", each)[0] for each in project()["project"]["dependencies"]]  # type: ignore[index]
    assert names == ["click", "cronsim"]


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    """It ships `py.typed`, none of the tests, and stays under 500 kB."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < WHEEL_LIMIT
    names = zipfile.ZipFile(wheel).namelist()
    assert "claimant/py.typed" in names
    assert "claimant/__init__.py" in names
    assert {name.partition("/")[0] for name in names} == {"claimant", "claimant-0.1.0.dist-info"}
    assert not [
        name for name in names if not name.startswith("claimant-") and not name.endswith((".py", "py.typed"))
    ]
