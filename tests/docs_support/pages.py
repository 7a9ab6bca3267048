"""A page of the documentation, taken apart: its fenced blocks, headings and links.

How a block is used follows from what it looks like; there are no hidden markers:

* ``python`` or ``toml`` whose first line is a comment that names a file (``# jobs.py``) is that file, written where the
  page runs. Any other ``python`` block runs, in the order of the page, in one namespace per page.
* ``sql`` is carried out on the page's PostgreSQL before anything else: the tables that the page's reader has.
* ``console`` is run line by line where a line begins with ``$ ``; what follows is what must be printed.
* Anything else (``text``) is shown only.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w./-]+\.\w+)\n")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `line`: the number of its first line within the page."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The file that the block is, where its first line names one."""
        match = _FILE.match(self.text)
        return match[1] if match is not None and self.language in ("python", "toml") else None


@dataclass(frozen=True, slots=True)
class Command:
    """One line of a console block, and what must be printed (nothing: it is not compared)."""

    line: int
    text: str
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """One Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def prose(self) -> str:
        """The page without its blocks and without `code`."""
        return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", self.text))

    def blocks(self, language: str = "") -> list[Block]:
        text = self.text
        found = []
        for match in _FENCE.finditer(text):
            indent, kind, body = match.groups()
            lines = [line.removeprefix(indent) for line in body.splitlines(keepends=True)]
            found.append(Block(kind, "".join(lines), text.count("\n", 0, match.start(3)) + 1))
        return [block for block in found if not language or block.language == language]

    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    def anchors(self) -> set[str]:
        """What `#…` may name on this page, as the forges make it from headings."""
        return {_slug(heading) for heading in _HEADING.findall(_FENCE.sub("", self.text))}


def _slug(heading: str) -> str:
    text = unicodedata.normalize("NFC", heading).lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))


def commands(block: Block) -> list[Command]:
    """The commands of a console block."""
    found: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            found.append(Command(number, line[2:], ()))
        elif line.strip() and found:
            last = found[-1]
            found[-1] = Command(last.line, last.text, (*last.expected, line))
    return found


def all_pages() -> list[Page]:
    """README.md and everything under docs/."""
    return [Page(ROOT / "README.md"), *(Page(path) for path in sorted(DOCS.rglob("*.md")))]


def fits(shown: str, real: str) -> bool:
    """Whether one shown line is the real one. "…" stands for anything; at the end, for the rest."""
    pattern = ".*".join(re.escape(piece.strip()) for piece in shown.split("…"))
    return re.fullmatch(pattern, real.strip(), re.DOTALL) is not None


def same_output(shown: tuple[str, ...], real: str) -> bool:
    """Whether printed lines are as shown. A line that is only "…" stands for any number of lines."""
    lines = [line for line in real.splitlines() if line.strip()]

    def match(left: int, right: int) -> bool:
        if left == len(shown):
            return right == len(lines)
        if shown[left].strip() == "…":
            return any(match(left + 1, start) for start in range(right, len(lines) + 1))
        return right < len(lines) and fits(shown[left], lines[right]) and match(left + 1, right + 1)

    return match(0, 0)
