-- Returns whether the token of a claim is still in the group's row, or in the job's. A plain read:
-- only another token, or no row, says that the claim is lost.
create or replace function {schema}.has_claim(of_job bigint, with_token uuid) returns boolean
language sql stable as $$
  select exists (select from {schema}.queue_group g where g.claim = with_token)
    or exists (select from {schema}.job j where j.id = of_job and j.claim = with_token)
$$;

-- Locks the rows of a claim for the open transaction: the group's by its token, and the job's.
-- Writes neither: an adopter that skips locked rows would wait for a row that was written. Returns
-- the process id of the session that holds them (`pid`), whether the claim is suspected, and
-- whether the job is to be cancelled: the handler's monitor finds a request that is written later.
-- Without a `pid`, perhaps with some of the locks: the claim is lost, or another transaction has a
-- row for a moment. The transaction of a handler may take its time from here on.
create or replace function {schema}.hold_job(of_job bigint, with_token uuid, for_handler boolean,
  out pid integer, out suspected boolean, out cancel_requested boolean, out lost boolean)
language plpgsql volatile as $$
begin
  if for_handler then
    perform set_config('statement_timeout', '0', true),
      set_config('idle_in_transaction_session_timeout', '0', true),
      set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
      set_config('enable_bitmapscan', 'off', true), set_config('lock_timeout', {lock_timeout}, true);
  end if;
  with held as materialized (
    select g.suspect from {schema}.queue_group g
    where g.claim = with_token and of_job = any ({claimed_jobs_g})
    for no key update skip locked),
  held_job as materialized (
    select j.queue, case when j.group_id is not null then (select h.suspect from held h) else j.suspect end
      is not null as suspected
    from {schema}.job j
    where j.id = of_job and {claimed}
      and case when j.group_id is not null then exists (select from held) else j.claim = with_token end
    for no key update skip locked)
  select pg_backend_pid(), held_job.suspected,
      (select r.job_id from {schema}.cancel_request r where r.job_id = of_job limit 1) is not null
    into pid, suspected, cancel_requested
  from held_job
  -- A receive in this transaction passes its own locks: it must not find this job.
  where not for_handler or set_config('lock_timeout', '0', true) = '0'
    and set_config('seriatim.held', held_job.queue, true) is not null;
  if pid is null then
    lost := not {schema}.has_claim(of_job, with_token);
  end if;
end $$;
