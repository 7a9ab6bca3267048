"""Runs a page: its files are written, its Python runs in one namespace, its commands run in real processes.

The addresses that pages use (`redis://localhost:6379/0`, `postgresql:///app`) become those of the test's own servers.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import os
import shlex
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tests.docs_support.pages import ROOT, Block, Command, Page, commands, fits, same_output

REDIS = "redis://localhost:6379/0"
POSTGRESQL = "postgresql:///app"
RUN = ("claimant", "python", "pytest")
"""Commands that are run; of others it is only checked that what they name exists."""


class Runner:
    """One page in one folder, with one namespace."""

    def __init__(self, page: Page, folder: Path, addresses: dict[str, str]) -> None:
        self.page = page
        self.folder = folder
        self.addresses = addresses
        # A module that can be found, because dataclasses and ORM models look their own module up.
        self.module = ModuleType(f"page_{page.path.stem.replace('-', '_')}")
        self.module.__dict__["print"] = self._print
        self.printed: list[tuple[int, str]] = []
        self.ran = 0
        self.compared = 0

    def run(self) -> None:
        """Run the blocks from top to bottom; raises at the first that is not as described."""
        known_modules = set(sys.modules)
        sys.modules[self.module.__name__] = self.module
        sys.path.insert(0, str(self.folder))
        try:
            for block in self.page.blocks():
                if block.file is not None:
                    target = self.folder / block.file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(self._addressed(block.text))
                elif block.language == "python":
                    self._python(block)
                elif block.language == "console":
                    for command in commands(block):
                        self._command(command)
        finally:
            sys.path.remove(str(self.folder))
            self._close(set(sys.modules) - known_modules)

    def _addressed(self, text: str) -> str:
        for shown, real in self.addresses.items():
            text = text.replace(shown, real)
        return text

    def _print(self, *values: object, sep: str = " ", end: str = "\n", **_: object) -> None:
        self.printed.append((sys._getframe(1).f_lineno, sep.join(map(str, values))))

    def _python(self, block: Block) -> None:
        # Blank lines in front, so that a traceback names the line of the page.
        text = "\n" * (block.line - 1) + self._addressed(block.text)
        self.printed.clear()
        exec(compile(text, str(self.page.path), "exec"), self.module.__dict__)
        self.ran += 1
        for first, last, comment in printing(text):
            real = ", ".join(said for line, said in self.printed if first <= line <= last)
            assert said_so(comment, real), f"{self.page.name}:{last}: shown {comment!r}, printed {real!r}"
            self.compared += 1

    def _command(self, command: Command) -> None:
        where = f"{self.page.name}:{command.line}: $ {command.text}"
        if not command.text.startswith(tuple(f"{word} " for word in RUN)):
            assert known(command.text), f"{where}: it names something that does not exist"
            return
        done = subprocess.run(
            ["sh", "-c", self._addressed(command.text)],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{where}: exit {done.returncode}\n{done.stdout}"
        if command.expected:
            shown = "\n".join(command.expected)
            assert same_output(command.expected, done.stdout), (
                f"{where}: shown\n{shown}\nprinted\n{done.stdout}"
            )
            self.compared += 1
        self.ran += 1

    def _environment(self) -> dict[str, str]:
        bin_folder = self.folder / ".bin"
        if not bin_folder.is_dir():
            bin_folder.mkdir()
            for name, words in {
                "claimant": "-m claimant.cli",
                "python": "",
                "pytest": "-m pytest -p no:valkey -p no:cacheprovider",
            }.items():
                script = bin_folder / name
                script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -W error {words} "$@"\n')
                script.chmod(0o755)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("CLAIMANT_", "PYTEST_"))
        }
        mark = {name: value for name, value in os.environ.items() if name == "CLAIMANT_TEST_RUN"}
        return {
            **kept,
            **mark,
            "PATH": f"{bin_folder}:{os.environ.get('PATH', '')}",
            "XDG_STATE_HOME": str(self.folder / "state"),
            "COLUMNS": "160",
            # As in a terminal: log lines stand between the printed ones where they happened.
            "PYTHONUNBUFFERED": "1",
        }

    def _close(self, imported: set[str]) -> None:
        """Close what the page opened, and forget the modules that it wrote."""
        from claimant import Claimant

        for name in imported:
            module = sys.modules[name]
            if module is self.module or (getattr(module, "__file__", None) or "").startswith(
                str(self.folder)
            ):
                for value in list(vars(module).values()):
                    if isinstance(value, Claimant):
                        asyncio.run(value.aclose())
                del sys.modules[name]


def printing(text: str) -> Iterator[tuple[int, int, str]]:
    """Each `print(…)` with a comment behind it: first line, last line, the comment."""
    comments = {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            last = node.end_lineno or node.lineno
            if last in comments:
                yield node.lineno, last, comments[last]


def said_so(comment: str, real: str) -> bool:
    """Whether a comment tells what was printed: the text ("…" for anything), or the text, a colon and an explanation."""
    return fits(comment, real) or (bool(real) and comment.startswith(f"{real}: "))


def known(line: str) -> bool:
    """Whether a command that is not run names a target of the Makefile, or extras that the project has."""
    import tomllib

    words = shlex.split(line, comments=True)
    match words:
        case ["make", target, *_]:
            return f"\n{target}:" in (ROOT / "Makefile").read_text()
        case ["pip", "install", what]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            name, _, extras = what.rstrip("]").partition("[")
            offered = project["optional-dependencies"]
            return name == project["name"] and all(extra in offered for extra in extras.split(",") if extra)
        case _:
            return False


def prepare(dsn: str, tables: str) -> None:
    """A database as the reader of a page has it: the ledger's and the guard's tables, and the page's own."""
    import psycopg

    from claimant import guards, ledger

    ledger.init(dsn)
    guards.init(dsn)
    if tables.strip():
        with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as conn:
            conn.execute(tables.encode())
