"""What `claimant init --sql` prints: the statements, with what a reviewer asks about each table. It asks no server.

The statements are the ledger's and the guard's own; here only comments are added.
"""

from __future__ import annotations

from claimant import guards
from claimant._model.errors import Refused
from claimant.ledger import sql_for

ABOUT = {
    "claimant_ledger": (
        "The version of these tables, so that an older claimant refuses a newer ledger.",
        "One row.",
    ),
    "claimant_jobs": (
        "What `claimant status` reads: running totals and the last run of each job and key.",
        (
            "One row for each job, and for each key that a job ever had (a job with an order's number as its key: one for each "
            "order), about 1 kB each. Updated by every start."
        ),
    ),
    "claimant_slots": (
        'The occasions of periodic jobs: open, or closed by which run. This is where "done" is kept.',
        (
            "One row for each slot that was ever started: 8,760 a year for an hourly job. Removing a closed one opens that "
            "occasion again."
        ),
    ),
    "claimant_runs": (
        "The history: one row when a run begins, updated when it ends.",
        "One row for each run, 1 to 2 kB with its indexes: a job that runs every minute adds less than 1 GB a year. Nothing deletes them.",
    ),
    "claimant_answers": (
        "What guards said in a run: applied, duplicate and so on.",
        "One row for each guarded operation in a run, about 0.3 kB. Nothing deletes them.",
    ),
    "claimant_skips": (
        "Starts that did not run, and why.",
        "At most 1,440 rows for each job, key and kind: one for each minute of a day, written over the next day.",
    ),
    "claimant_guard": (
        "The guard: an operation has a row, or it has not happened. The row commits in the effect's own transaction.",
        (
            "One row for each operation that ever happened, about 0.3 kB and the result if it is kept. "
            "Removing a row lets that operation happen again."
        ),
    ),
    "claimant_rejection": (
        "Second attempts that the guard rejected, counted where the effects are.",
        "One row for each rejected attempt and cause: few, unless the lease store was away for long.",
    ),
}
"""For each table, what it is for and how it grows. Sizes were measured on PostgreSQL, indexes included."""

RIGHTS = "The workers need SELECT, INSERT and UPDATE on these tables, and no right to create or delete."
WIDTH = 110


def script(ledger: str | None, guard: str | None) -> list[str]:
    """The scripts of the ledger's and the guard's tables. At least one of the two is named.

    Raises `Refused`: CLM072 where the two are of different databases, and one script would fit neither.
    """
    parts: list[tuple[str, str, str]] = []
    if ledger is not None:
        parts.append(("ledger", _kind(ledger), sql_for(ledger)))
    if guard is not None:
        dialect = guards.once(guard).dialect
        parts.append(("guard", dialect, guards.schema_sql(dialect)))
    if len({kind for _, kind, _ in parts}) > 1:
        raise Refused(
            "CLM072",
            "the ledger and the guard are in different kinds of database, and one script would fit neither: ask for "
            "--ledger URL --sql and --guard URL --sql one after the other",
        )
    return [explained(what, kind, sql) for what, kind, sql in parts]


def explained(what: str, kind: str, sql: str) -> str:
    """One script with a heading, and above each table what it is for and how it grows."""
    names = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
    heading = f"The tables of claimant's {what}, for {names[kind]}. May be run again: what is there stays as it is. {RIGHTS}"
    lines = _comment(heading)
    for statement in sql.strip().split(";\n\n"):
        table = statement.partition("CREATE TABLE IF NOT EXISTS ")[2].partition(" ")[0]
        lines.append("")
        for text in ABOUT.get(table, ()):
            lines += _comment(text)
        lines.append(f"{statement.removesuffix(';')};")
    return "\n".join(lines)


def _kind(ledger: str) -> str:
    return "sqlite" if ledger.partition(":")[0].lower() == "sqlite" else "postgresql"


def _comment(text: str) -> list[str]:
    from textwrap import wrap

    return wrap(text, WIDTH, initial_indent="-- ", subsequent_indent="-- ", break_on_hyphens=False)
