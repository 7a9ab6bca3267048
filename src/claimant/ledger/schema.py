"""The ledger's tables: one description for both databases, versioned.

`claimant_jobs` keeps one row per job and key with running totals, so that `status` never reads the history.
`claimant_skips` keeps one row per minute of a day and is written over the next day: a thousand skips a second for
months take no more room than one day of them.
"""

# ruff: noqa: S608 - the texts are joined from constants of this package; every value is a parameter
from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from claimant._model.errors import LedgerCorrupt

Dialect = Literal["sqlite", "postgresql"]

VERSION = 2
COMPATIBLE = 1
"""The oldest schema version whose libraries can use this one as well: additions do not stop a fleet that is older."""
GOES_ON_WITH = 1
"""The oldest version of a shared ledger that this library goes on with, without the columns that are missing: the workers of
a deploy may come before its `init`. One step back is enough."""

MINUTES_KEPT = 1_440
"""Minutes of skips that are kept per job, key and kind: one day."""

_TABLES = (
    """CREATE TABLE IF NOT EXISTS claimant_ledger (
  version BIGINT NOT NULL,
  compatible BIGINT NOT NULL DEFAULT 1
)""",
    """CREATE TABLE IF NOT EXISTS claimant_jobs (
  id {bytes} NOT NULL PRIMARY KEY,
  namespace TEXT NOT NULL,
  job TEXT NOT NULL,
  key TEXT NOT NULL,
  stake TEXT NOT NULL DEFAULT '',
  guarded BIGINT NOT NULL DEFAULT 0,
  lifetime_ms BIGINT NOT NULL DEFAULT 0,
  stall_bound_ms BIGINT NOT NULL DEFAULT 0,
  max_run_ms BIGINT NOT NULL DEFAULT 0,
  runs BIGINT NOT NULL DEFAULT 0,
  failed BIGINT NOT NULL DEFAULT 0,
  duplicates BIGINT NOT NULL DEFAULT 0,
  without_claim BIGINT NOT NULL DEFAULT 0,
  overlapped BIGINT NOT NULL DEFAULT 0,
  skips BIGINT NOT NULL DEFAULT 0,
  last_run {bytes},
  last_slot TEXT,
  last_started BIGINT,
  last_ended BIGINT,
  last_success BIGINT,
  last_kind TEXT NOT NULL DEFAULT '',
  last_reason TEXT NOT NULL DEFAULT '',
  skips_in_row BIGINT NOT NULL DEFAULT 0,
  skips_since BIGINT,
  last_skip BIGINT,
  last_skip_holder TEXT NOT NULL DEFAULT '',
  last_skip_reason TEXT NOT NULL DEFAULT '',
  guard TEXT NOT NULL DEFAULT '',
  mode TEXT NOT NULL DEFAULT 'enforce',
  schedule TEXT NOT NULL DEFAULT '',
  would_skip BIGINT NOT NULL DEFAULT 0,
  would_reject BIGINT NOT NULL DEFAULT 0,
  forced BIGINT NOT NULL DEFAULT 0
){roomy}""",
    """CREATE TABLE IF NOT EXISTS claimant_slots (
  id {bytes} NOT NULL PRIMARY KEY,
  job {bytes} NOT NULL,
  slot TEXT NOT NULL,
  attempts BIGINT NOT NULL,
  failed BIGINT NOT NULL DEFAULT 0,
  last_run {bytes},
  last_started BIGINT,
  closed BIGINT,
  closed_by TEXT NOT NULL DEFAULT '',
  completed BIGINT NOT NULL DEFAULT 0,
  result TEXT,
  reason TEXT NOT NULL DEFAULT ''
){roomy}""",
    """CREATE TABLE IF NOT EXISTS claimant_runs (
  id {bytes} NOT NULL PRIMARY KEY,
  run_id TEXT NOT NULL,
  job {bytes} NOT NULL,
  slot {bytes},
  slot_text TEXT,
  attempt BIGINT NOT NULL,
  stake TEXT NOT NULL,
  guarded BIGINT NOT NULL,
  holder TEXT NOT NULL,
  claim_at_start TEXT NOT NULL,
  lifetime_ms BIGINT NOT NULL,
  stall_bound_ms BIGINT NOT NULL,
  max_run_ms BIGINT NOT NULL,
  overlapping BIGINT NOT NULL,
  started BIGINT NOT NULL,
  ended BIGINT,
  kind TEXT NOT NULL DEFAULT '',
  claim TEXT NOT NULL DEFAULT '',
  reason TEXT NOT NULL DEFAULT '',
  took_ms BIGINT NOT NULL DEFAULT 0,
  wasted_ms BIGINT NOT NULL DEFAULT 0,
  result TEXT,
  renewals BIGINT NOT NULL DEFAULT 0,
  worst_gap_ms BIGINT NOT NULL DEFAULT 0,
  mode TEXT NOT NULL DEFAULT 'enforce',
  forced BIGINT NOT NULL DEFAULT 0,
  would TEXT NOT NULL DEFAULT ''
){roomy}""",
    "CREATE INDEX IF NOT EXISTS claimant_runs_by_job ON claimant_runs (job, started)",
    "CREATE INDEX IF NOT EXISTS claimant_runs_by_time ON claimant_runs (started)",
    # Runs that never ended: the ones at work, and what crashes left. A partial index, so that it stays small.
    "CREATE INDEX IF NOT EXISTS claimant_runs_open ON claimant_runs (job) WHERE ended IS NULL",
    """CREATE TABLE IF NOT EXISTS claimant_answers (
  run {bytes} NOT NULL,
  n BIGINT NOT NULL,
  operation TEXT NOT NULL,
  kind TEXT NOT NULL,
  hole TEXT NOT NULL,
  joined BIGINT NOT NULL,
  lease_checked TEXT NOT NULL,
  PRIMARY KEY (run, n)
)""",
    "CREATE INDEX IF NOT EXISTS claimant_answers_rejected ON claimant_answers (run) WHERE kind = 'duplicate'",
    """CREATE TABLE IF NOT EXISTS claimant_skips (
  job {bytes} NOT NULL,
  kind TEXT NOT NULL,
  minute BIGINT NOT NULL,
  count BIGINT NOT NULL,
  first BIGINT NOT NULL,
  last BIGINT NOT NULL,
  holder TEXT NOT NULL,
  remaining_ms BIGINT,
  slot TEXT,
  reason TEXT NOT NULL,
  skipped_by TEXT NOT NULL,
  PRIMARY KEY (job, kind, minute)
){roomy}""",
    (
        f"INSERT INTO claimant_ledger (version, compatible) SELECT {VERSION}, {COMPATIBLE}"
        " WHERE NOT EXISTS (SELECT 1 FROM claimant_ledger)"
    ),
)

_STEPS: dict[int, tuple[tuple[str, str], ...]] = {
    2: (
        ("claimant_ledger", "compatible BIGINT NOT NULL DEFAULT 1"),
        ("claimant_jobs", "guard TEXT NOT NULL DEFAULT ''"),
        ("claimant_jobs", "mode TEXT NOT NULL DEFAULT 'enforce'"),
        ("claimant_jobs", "schedule TEXT NOT NULL DEFAULT ''"),
        ("claimant_jobs", "would_skip BIGINT NOT NULL DEFAULT 0"),
        ("claimant_jobs", "would_reject BIGINT NOT NULL DEFAULT 0"),
        ("claimant_jobs", "forced BIGINT NOT NULL DEFAULT 0"),
        ("claimant_runs", "mode TEXT NOT NULL DEFAULT 'enforce'"),
        ("claimant_runs", "forced BIGINT NOT NULL DEFAULT 0"),
        ("claimant_runs", "would TEXT NOT NULL DEFAULT ''"),
    ),
}
"""The columns that each version added. A version only ever adds: libraries of the one before go on."""

_ADDED = {
    (table, added.partition(" ")[0]): (version, added.partition(" DEFAULT ")[2])
    for version, columns in _STEPS.items()
    for table, added in columns
}
"""Version and default of the columns that the first version did not have."""


def has(version: int, table: str, name: str) -> bool:
    """Whether a ledger of this version has the column."""
    return _ADDED.get((table, name), (1, ""))[0] <= version


def column(version: int, table: str, alias: str, name: str) -> str:
    """The column, or what it would hold in a ledger of this version that does not have it."""
    return f"{alias}.{name}" if has(version, table, name) else _ADDED[table, name][1]


def statements(dialect: Dialect) -> tuple[str, ...]:
    """The statements that make an empty ledger; each may be repeated. They change no ledger of an earlier version."""
    # Half-empty pages let PostgreSQL update a row in place, without touching an index.
    words = {"sqlite": ("BLOB", ""), "postgresql": ("BYTEA", " WITH (fillfactor = 60)")}[dialect]
    return tuple(text.replace("{bytes}", words[0]).replace("{roomy}", words[1]) for text in _TABLES)


def migration(dialect: Dialect, found: int) -> tuple[str, ...]:
    """The statements that bring a ledger of version `found` up to date. On PostgreSQL each may be repeated."""
    if found >= VERSION:
        return ()
    may_repeat = " IF NOT EXISTS" if dialect == "postgresql" else ""
    added = [
        f"ALTER TABLE {table} ADD COLUMN{may_repeat} {definition}"
        for version in range(found + 1, VERSION + 1)
        for table, definition in _STEPS[version]
    ]
    known = (
        f"UPDATE claimant_ledger SET version = {VERSION}, compatible = {COMPATIBLE} WHERE version < {VERSION}"
    )
    return (*added, known)


def schema_sql(dialect: Dialect) -> str:
    """What `claimant init` runs, as one script, for people who run such things themselves.

    On PostgreSQL it makes a ledger or brings one of an earlier version up to date. A ledger in SQLite needs no script: it is
    made and brought up to date by its first use.
    """
    texts = statements(dialect)
    if dialect == "postgresql":
        # Before the row with the version, which a new ledger gets as it is now.
        texts = (*texts[:-1], *migration(dialect, 1), texts[-1])
    return ";\n\n".join(texts) + ";\n"


def version_of(row: Sequence[object]) -> int:
    """The version that a row of `claimant_ledger`, as it is, says; 0 for none."""
    return row[0] if row and isinstance(row[0], int) else 0


def is_older(row: Sequence[object]) -> bool:
    """Whether a row of `claimant_ledger`, as it is, says a version that `migration` starts from."""
    return 1 <= version_of(row) < VERSION


def goes_on_with(row: Sequence[object]) -> bool:
    """Whether this library can work with an older ledger as it is."""
    return is_older(row) and version_of(row) >= GOES_ON_WITH


def checked_version(row: Sequence[object], address: str) -> None:
    """Raise `LedgerCorrupt` unless this library reads and writes such a ledger. `row`: version, compatible."""
    found, compatible = (*row, None, None)[:2]
    if isinstance(found, int) and found >= VERSION and isinstance(compatible, int) and compatible <= VERSION:
        return
    if isinstance(found, int) and found > VERSION:
        raise LedgerCorrupt(
            f"the ledger {address} has schema version {found}, and this version of claimant knows {VERSION}: a newer one "
            "wrote it. Upgrade claimant here; the ledger was not touched"
        )
    raise LedgerCorrupt(
        f"the ledger {address} says schema version {found!r}, which no version of claimant has written. Restore it from a "
        "backup, or name another ledger; it was not touched"
    )
