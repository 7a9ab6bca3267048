"""The documentation is run: every Python block, every command that can be, every link."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs_support.pages import DOCS, ROOT, Block, Page, all_pages, commands, fits, same_output
from tests.docs_support.running import POSTGRESQL, REDIS, Runner, known, prepare, printing, said_so

PAGES = all_pages()
TOLD = {
    "docs/index.md",
    "docs/glossary.md",
    "docs/reference/ledger-and-guard-tables.md",
    "docs/reference/performance.md",
    "docs/explanation/the-holes.md",
    "docs/explanation/choosing-a-lifetime.md",
}
"""Pages that tell and show nothing that could be run. Every other page runs something."""
FEWEST_BLOCKS = 70
FEWEST_COMPARED = 100
README_TABLES = "CREATE TABLE wallet (id bigint PRIMARY KEY, cents bigint NOT NULL); INSERT INTO wallet VALUES (1, 100000)"
"""What the README's reader has; a page of docs/ shows its tables in an ``sql`` block of its own."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_does_what_it_shows(
    page: Page, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks run from top to bottom on real servers, and print what stands beside or below them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shown = "".join(block.text for block in page.blocks())
    addresses: dict[str, str] = {}
    if REDIS in shown:
        addresses[REDIS] = request.getfixturevalue("valkey_url")
    if POSTGRESQL in shown:
        dsn = request.getfixturevalue("pg_dsn")
        tables = (
            README_TABLES if page.path.name == "README.md" else "".join(b.text for b in page.blocks("sql"))
        )
        prepare(dsn, tables)
        addresses[POSTGRESQL] = dsn
        addresses[POSTGRESQL.replace(":", "+psycopg:", 1)] = dsn.replace(":", "+psycopg:", 1)
    runner = Runner(page, tmp_path, addresses)
    runner.run()
    assert (runner.ran == 0) == (page.name in TOLD), f"{page.name} ran {runner.ran} blocks and commands"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    """A link to a file, a folder or a heading names one that exists; nothing links into the void."""
    lost = []
    for link in page.links():
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        if (
            not target.exists()
            or not target.is_relative_to(ROOT)
            or (anchor and anchor not in Page(target).anchors())
        ):
            lost.append(link)
    assert not lost


def test_every_page_is_reached_from_the_index() -> None:
    """Whoever starts at docs/index.md finds each page by following links."""
    seen: set[Path] = set()
    todo = [DOCS / "index.md"]
    while todo:
        path = todo.pop()
        if path in seen or path.suffix != ".md":
            continue
        seen.add(path)
        page = Page(path)
        todo += [
            (path.parent / link.partition("#")[0]).resolve() for link in page.links() if "://" not in link
        ]
    assert {page.path for page in PAGES} - seen - {ROOT / "README.md"} == set()


def test_enough_is_run_and_compared() -> None:
    """The pages hold many blocks and many outputs, so that a parser that finds nothing cannot pass."""
    blocks = [block for page in PAGES for block in page.blocks() if block.language in ("python", "console")]
    comments = sum(len(list(printing(block.text))) for block in blocks if block.language == "python")
    printed = sum(
        bool(command.expected)
        for block in blocks
        if block.language == "console"
        for command in commands(block)
    )
    assert len(blocks) >= FEWEST_BLOCKS
    assert comments + printed >= FEWEST_COMPARED


def test_every_fence_names_a_language_that_the_harness_knows() -> None:
    """A misspelt ``pyhton`` would be shown and never run."""
    known_languages = {"python", "toml", "console", "sql", "text"}
    odd = [
        f"{page.name}:{block.line} {block.language!r}"
        for page in PAGES
        for block in page.blocks()
        if block.language not in known_languages
    ]
    assert not odd
    assert all(page.text.count("```") == 2 * len(page.blocks()) for page in PAGES)


def test_a_wrong_comment_is_noticed(tmp_path: Path) -> None:
    """A page whose comment does not tell what was printed fails, with its line."""
    path = ROOT / "docs" / "never-written.md"
    block = Block("python", 'print("held")   # ran\n', 7)
    with pytest.raises(AssertionError, match=r"never-written.md:7: shown 'ran', printed 'held'"):
        Runner(Page(path), tmp_path, {})._python(block)


def test_a_comment_that_nothing_reached_is_noticed(tmp_path: Path) -> None:
    """A print that never ran does not pass for one that printed what its comment says."""
    block = Block("python", 'if False:\n    print("ran")   # ran\n', 1)
    with pytest.raises(AssertionError, match="printed ''"):
        Runner(Page(ROOT / "docs" / "never-written.md"), tmp_path, {})._python(block)


@pytest.mark.parametrize(
    ("comment", "real", "told"),
    [
        ("ran", "ran", True),
        ("ran", "run", False),
        ("CLM021: refund … Add …", "CLM021: refund: never. Add a guard", True),
        ("CLM021: refund … Add …", "CLM021: refund: never.", False),
        ("done: this hour's slot is closed", "done", True),
        ("done, as one would hope", "done", False),
        ("anything", "", False),
    ],
)
def test_what_a_comment_tells(comment: str, real: str, told: bool) -> None:
    """The text itself, with "…" for anything, or the text, a colon and an explanation; nothing looser."""
    assert said_so(comment, real) is told


def test_what_printed_lines_are_as_shown() -> None:
    """Each line in order; "…" within a line stands for anything, alone on a line for any lines."""
    assert same_output(("a … c", "…", "z"), "a b c\nk\nl\nz\n")
    assert same_output(("…",), "")
    assert not same_output(("a",), "a\nb")
    assert not same_output(("a", "b"), "a")
    assert not same_output(("a", "…", "z"), "a\nz\nb")
    assert not fits("a", "ab")


@pytest.mark.parametrize(
    ("line", "exists"),
    [
        ("make demo     # half a minute", True),
        ("make coffee", False),
        ("pip install 'claimant[redis,postgres]'", True),
        ("pip install 'claimant[mongo]'", False),
        ("curl https://example.org", False),
    ],
)
def test_commands_that_are_not_run_name_what_exists(line: str, exists: bool) -> None:
    """A target of the Makefile, an extra of the project; everything else is refused."""
    assert known(line) is exists
