CREATE TABLE IF NOT EXISTS claimant_ledger (version BIGINT NOT NULL);

CREATE TABLE IF NOT EXISTS claimant_jobs (
  id BYTEA NOT NULL PRIMARY KEY,
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
  last_run BYTEA,
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
) WITH (fillfactor = 60);

CREATE TABLE IF NOT EXISTS claimant_slots (
  id BYTEA NOT NULL PRIMARY KEY,
  job BYTEA NOT NULL,
  slot TEXT NOT NULL,
  attempts BIGINT NOT NULL,
  failed BIGINT NOT NULL DEFAULT 0,
  last_run BYTEA,
  last_started BIGINT,
  closed BIGINT,
  closed_by TEXT NOT NULL DEFAULT '',
  completed BIGINT NOT NULL DEFAULT 0,
  result TEXT,
  reason TEXT NOT NULL DEFAULT ''
) WITH (fillfactor = 60);

CREATE TABLE IF NOT EXISTS claimant_runs (
  id BYTEA NOT NULL PRIMARY KEY,
  run_id TEXT NOT NULL,
  job BYTEA NOT NULL,
  slot BYTEA,
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
) WITH (fillfactor = 60);

CREATE INDEX IF NOT EXISTS claimant_runs_by_job ON claimant_runs (job, started);

CREATE INDEX IF NOT EXISTS claimant_runs_by_time ON claimant_runs (started);

CREATE INDEX IF NOT EXISTS claimant_runs_open ON claimant_runs (job) WHERE ended IS NULL;

CREATE TABLE IF NOT EXISTS claimant_answers (
  run BYTEA NOT NULL,
  n BIGINT NOT NULL,
  operation TEXT NOT NULL,
  kind TEXT NOT NULL,
  hole TEXT NOT NULL,
  joined BIGINT NOT NULL,
  lease_checked TEXT NOT NULL,
  PRIMARY KEY (run, n)
);

CREATE INDEX IF NOT EXISTS claimant_answers_rejected ON claimant_answers (run) WHERE kind = 'duplicate';

CREATE TABLE IF NOT EXISTS claimant_skips (
  job BYTEA NOT NULL,
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
) WITH (fillfactor = 60);

INSERT INTO claimant_ledger (version) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM claimant_ledger);
