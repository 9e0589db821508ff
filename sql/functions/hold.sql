-- Locks the rows of a claim for the open transaction: the group's by its token, and the job's.
-- Returns the process id of the session that holds them. Null, perhaps with some of the locks:
-- another transaction has a row for a moment, the claim is suspected or lost, or the job is to be
-- cancelled. From here on the transaction may take its time.
create or replace function {schema}.hold_job(of_job bigint, with_token uuid) returns integer
language plpgsql volatile as $$
declare
  pid integer;
begin
  perform set_config('statement_timeout', '0', true),
    set_config('idle_in_transaction_session_timeout', '0', true),
    set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true), set_config('lock_timeout', {lock_timeout}, true);
  with held as materialized (
    select g.claim from {schema}.queue_group g
    where g.claim = with_token and g.suspect is null and of_job = any ({claimed_jobs_g})
    for no key update skip locked),
  held_job as materialized (
    select j.queue from {schema}.job j
    where j.id = of_job and {claimed}
      and case when j.group_id is not null then exists (select from held)
        else j.claim = with_token and j.suspect is null end
      -- The handler's monitor finds a request to cancel that is written later.
      and (select r.job_id from {schema}.cancel_request r where r.job_id = of_job limit 1) is null
    for no key update skip locked)
  -- A receive in this transaction passes its own locks: it must not find this job.
  select pg_backend_pid() into pid from held_job
  where set_config('lock_timeout', '0', true) = '0'
    and set_config('seriatim.held', held_job.queue, true) is not null;
  return pid;
end $$;
