"""The face is typed: a money job without a guard is an error before anything runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PREAMBLE = """
from claimant import AsyncRun, Claimant, Outcome, Run, Stake, once

claims = Claimant("memory:types", ledger="sqlite:types.db")
guard = once("sqlite:app.db")


def body(run: Run, order_id: int) -> str:
    return ""


async def later(run: AsyncRun, order_id: int) -> str:
    return ""

"""

FINE = [
    'claims.job("a", stake="rebuild")(lambda run: None)',
    'claims.job("b", stake="money", guard=guard, key=["order_id"])(body)',
    'claims.job("c", stake=Stake.APPEND, guard=guard, key=["order_id"])(body)',
    'claims.job("d", stake="notify", delivery="at-most-once", key=["order_id"])(body)',
    'outcome: Outcome[str] = claims.job("e", stake="scan", key=["order_id"])(body)(42)',
    'async def main() -> Outcome[str]:\n    return await claims.job("f", stake="scan", key=["order_id"])(later)(order_id=42)',
    'with claims.hold("g", stake="scan", max_run="1m") as lease:\n    left: float = lease.remaining()',
    'text: str | None = claims.job("h", stake="scan", key=["order_id"])(body)(42).value',
]

WRONG = [
    'claims.job("a", stake="money", key=["order_id"])(body)',
    'claims.job("b", stake=Stake.MONEY, key=["order_id"])(body)',
    'claims.job("c", stake="append", key=["order_id"])(body)',
    'claims.job("d", stake="notify", key=["order_id"])(body)',
    'claims.job("e", key=["order_id"])(body)',
    'claims.job("f", stake="important", key=["order_id"])(body)',
    'claims.job("g", stake="scan", on_loss="panic", key=["order_id"])(body)',
    'claims.job("h", stake="scan", key=["order_id"])(body)("forty-two")',
    'claims.job("i", stake="scan", key=["order_id"])(body)()',
    'claims.hold("j", stake="money", max_run="1m")',
    'claims.hold("k", stake="scan")',
]


def sources(tmp_path: Path, snippets: list[str]) -> Path:
    folder = tmp_path / "snippets"
    folder.mkdir()
    for number, snippet in enumerate(snippets):
        (folder / f"case_{number:02d}.py").write_text(PREAMBLE + snippet + "\n")
    return folder


def mypy(folder: Path) -> set[str]:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--config-file=",
        "--no-error-summary",
        str(folder),
    ]
    found = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    return {Path(line.split(":")[0]).name for line in found.stdout.splitlines() if ": error:" in line}


def pyright(folder: Path) -> set[str]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    report = json.loads(found.stdout)
    assert report["summary"]["filesAnalyzed"] > 0
    return {
        Path(entry["file"]).name for entry in report["generalDiagnostics"] if entry["severity"] == "error"
    }


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_type_checker_accepts_what_is_safe_and_refuses_what_is_not(tmp_path: Path, checker: object) -> None:
    """Each safe use passes, and each unsafe one is an error, in mypy and in pyright."""
    assert callable(checker)
    (tmp_path / "fine").mkdir()
    (tmp_path / "wrong").mkdir()
    assert checker(sources(tmp_path / "fine", FINE)) == set()
    assert checker(sources(tmp_path / "wrong", WRONG)) == {
        f"case_{number:02d}.py" for number in range(len(WRONG))
    }
