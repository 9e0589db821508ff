-- Returns the deduplication id of a job by its content.
create or replace function {schema}.content_id(data jsonb, payload bytea) returns text
language sql stable as $$
  select encode(sha256(coalesce(payload, convert_to(data::text, 'UTF8'))), 'hex')
$$;

-- Gives a deduplication id that is new, or whose window is over, to `for_job`. Returns the job that
-- has the id. Waits for another open transaction with the same id, and for nothing else (P5).
create or replace function claim_dedup_id(of_queue text, of_group text, once text, for_job bigint)
returns bigint
language plpgsql volatile set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  -- The window is judged by one instant, or a row could keep its job and get a new window.
  at constant timestamptz := clock_timestamp();
  setting queue; first_job bigint;
begin
  select s.* into setting from queue s where s.name = of_queue;
  -- Hashed: with the longest queue and id, the longest group would not fit an index entry.
  insert into dedup as d (queue, scope, dedup_id, job_id, expires_at)
  values (of_queue, case when setting.dedup_scope = 'group' and of_group is not null
    then encode(sha256(convert_to(of_group, 'UTF8')), 'hex') else '' end, once,
    for_job, at + make_interval(secs => coalesce(setting.dedup_window_ms, {dedup_window_ms}) / 1000.0))
  on conflict (queue, scope, dedup_id) do update set
    job_id = case when d.expires_at <= at then excluded.job_id else d.job_id end,
    expires_at = case when d.expires_at <= at then excluded.expires_at else d.expires_at end
  returning d.job_id into first_job;
  return first_job;
end $$;
