"""The guard's tables and statements in each dialect.

Keys are 32 bytes, so no length, collation or type can make two operations one. Instants are epoch milliseconds on
the database's clock. Nothing here deletes: a guard row outlives every retry of its operation.
"""

# ruff: noqa: S608 - the texts are joined from constants of this module; every value is a parameter
from __future__ import annotations

from collections.abc import Mapping

from claimant._model.dialect import Dialect
from claimant._model.guarding import Statement

GUARD = "claimant_guard"
REJECTION = "claimant_rejection"

_SQLITE_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_POSTGRES_NOW = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


def _guard_table(blob: str, big: str, now: str) -> str:
    return f"""CREATE TABLE IF NOT EXISTS claimant_guard (
    key {blob} NOT NULL PRIMARY KEY,
    label TEXT NOT NULL,
    fingerprint {blob} NOT NULL,
    attempt TEXT NOT NULL,
    job TEXT NOT NULL,
    created_ms {big} NOT NULL DEFAULT ({now}),
    result TEXT,
    note TEXT
)"""


def _rejection_table(blob: str, big: str, now: str) -> str:
    # One attempt is rejected for one cause once: the key makes counting repeatable after a lost reply.
    return f"""CREATE TABLE IF NOT EXISTS claimant_rejection (
    key {blob} NOT NULL,
    run_id TEXT NOT NULL,
    cause TEXT NOT NULL,
    job TEXT NOT NULL,
    operation TEXT NOT NULL,
    stake TEXT NOT NULL,
    hole TEXT NOT NULL,
    at_ms {big} NOT NULL DEFAULT ({now}),
    PRIMARY KEY (key, run_id, cause)
)"""


_SHARED = {
    Statement.LOOK: "SELECT fingerprint, attempt, result, note FROM claimant_guard WHERE key = ?",
    Statement.KEEP: "UPDATE claimant_guard SET result = ?, note = ? WHERE key = ? AND attempt = ?",
    Statement.REJECT: "INSERT INTO claimant_rejection (key, run_id, cause, job, operation, stake, hole) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key, run_id, cause) DO NOTHING",
    Statement.TALLY: "SELECT job, stake, cause, hole, count(*), min(at_ms), max(at_ms) FROM claimant_rejection "
    "WHERE job = ? OR ? = '' GROUP BY job, stake, cause, hole ORDER BY job, stake, cause, hole",
}
# With the arbiter column: without it, a violation of the effect's own index would be swallowed as a duplicate.
_CLAIM = "INSERT INTO claimant_guard (key, label, fingerprint, attempt, job) VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"

# Below statement_timeout, whose end would look like any cancelled statement.
_SET_LOCK = (
    "set_config('lock_timeout', ceil(1000 * extract(epoch FROM least((?::text)::interval, "
    "nullif(current_setting('statement_timeout'), '0')::interval * 0.8)))::text, true)"
)
_SET_IDLE = "set_config('idle_in_transaction_session_timeout', ?, true)"
# One round trip for the bounds and the row: the insert takes its row from `bound`, so the bounds are set before it waits.
_CLAIMED = (
    "claimed AS (INSERT INTO claimant_guard (key, label, fingerprint, attempt, job) "
    "SELECT CAST(? AS BYTEA), CAST(? AS TEXT), CAST(? AS BYTEA), CAST(? AS TEXT), CAST(? AS TEXT) FROM bound "
    "WHERE bound.now IS NOT NULL ON CONFLICT (key) DO NOTHING RETURNING txid_current()::text AS mark)"
)

_SQLITE = {
    **_SHARED,
    Statement.IMMEDIATE: "BEGIN IMMEDIATE",
    Statement.PATIENCE: "PRAGMA busy_timeout",
    Statement.CLAIM: _CLAIM,
    Statement.MAKE_GUARD: _guard_table("BLOB", "INTEGER", _SQLITE_NOW),
    Statement.MAKE_REJECTION: _rejection_table("BLOB", "INTEGER", _SQLITE_NOW),
}
_POSTGRESQL = {
    **_SHARED,
    Statement.BOUNDS: f"SELECT {_SET_LOCK}, {_SET_IDLE}",
    Statement.CLAIM_BOUND: f"WITH bound AS MATERIALIZED (SELECT {_SET_LOCK} AS now, {_SET_IDLE}), {_CLAIMED} "
    "SELECT (SELECT mark FROM claimed)",
    # The bound that was there comes back once the insert has waited, whatever came of it.
    Statement.CLAIM_WITHIN: "WITH bound AS MATERIALIZED (SELECT was, set_config('lock_timeout', CASE WHEN was = '0' "
    "OR was::interval > (?::text)::interval THEN ? ELSE was END, true) AS now "
    f"FROM (SELECT current_setting('lock_timeout') AS was) AS present), {_CLAIMED} "
    "SELECT mark, set_config('lock_timeout', was, true) "
    "FROM (SELECT was, (SELECT mark FROM claimed) AS mark FROM bound OFFSET 0) AS ended",
    Statement.BEGUN: "SELECT txid_current()::text",
    Statement.STILL: "SELECT txid_current_if_assigned()::text",
    Statement.MAKE_GUARD: _guard_table("BYTEA", "BIGINT", _POSTGRES_NOW),
    Statement.MAKE_REJECTION: _rejection_table("BYTEA", "BIGINT", _POSTGRES_NOW),
}
TEXTS: Mapping[Dialect, Mapping[Statement, str]] = {Dialect.SQLITE: _SQLITE, Dialect.POSTGRESQL: _POSTGRESQL}


def schema_sql(dialect: Dialect) -> str:
    """The guard's tables as statements that may be run again, for those who apply schemas by hand."""
    texts = TEXTS[dialect]
    return f"{texts[Statement.MAKE_GUARD]};\n\n{texts[Statement.MAKE_REJECTION]};\n"
