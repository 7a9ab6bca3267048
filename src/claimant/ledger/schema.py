"""The ledger's tables: one description for both databases, versioned.

`claimant_jobs` keeps one row per job and key with running totals, so that `status` never reads the history.
`claimant_skips` keeps one row per minute of a day and is written over the next day: a thousand skips a second for
months take no more room than one day of them.
"""

# ruff: noqa: S608 - the texts are joined from constants of this package; every value is a parameter
from __future__ import annotations

from typing import Literal

from claimant._model.errors import LedgerCorrupt

Dialect = Literal["sqlite", "postgresql"]

VERSION = 1

MINUTES_KEPT = 1_440
"""Minutes of skips that are kept per job, key and kind: one day."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS claimant_ledger (version BIGINT NOT NULL)",
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
  last_skip_reason TEXT NOT NULL DEFAULT ''
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
  worst_gap_ms BIGINT NOT NULL DEFAULT 0
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
    f"INSERT INTO claimant_ledger (version) SELECT {VERSION} WHERE NOT EXISTS (SELECT 1 FROM claimant_ledger)",
)


def statements(dialect: Dialect) -> tuple[str, ...]:
    """The statements that make an empty ledger; each may be repeated."""
    # Half-empty pages let PostgreSQL update a row in place, without touching an index.
    words = {"sqlite": ("BLOB", ""), "postgresql": ("BYTEA", " WITH (fillfactor = 60)")}[dialect]
    return tuple(text.replace("{bytes}", words[0]).replace("{roomy}", words[1]) for text in _TABLES)


def schema_sql(dialect: Dialect) -> str:
    """The same as one script, for people who run such things themselves."""
    return ";\n\n".join(statements(dialect)) + ";\n"


def checked_version(found: object, address: str) -> None:
    """Raise `LedgerCorrupt` unless `found` is a version that this library reads and writes."""
    if isinstance(found, int) and found == VERSION:
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
