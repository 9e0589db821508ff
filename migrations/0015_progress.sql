-- A running job may say how far it is, and keep a checkpoint for its next attempt. Both are in a
-- table of their own: the handler's transaction has the job's row locked.
--
-- A row is kept while its job can run again: until the job has succeeded, or is deleted. Without a
-- foreign key, which would lock the job's row. Rows that are left behind are never shown, and
-- maintenance deletes them.
create table job_progress (
  job_id bigint primary key,
  percent smallint,                            -- 0 to 100; null: none was reported
  message text,
  reported_at timestamptz,
  checkpoint jsonb,
  checkpoint_at timestamptz
) with (
  -- Written up to once a second while its job runs: room for new versions on its page.
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

alter type received add attribute checkpoint jsonb;
alter type explanation
  add attribute progress_percent integer, add attribute progress_message text,
  add attribute progress_at timestamptz;
