-- The consequences of a failed attempt: the policy that counts, and the fate of the job and its
-- group when no attempt is left. Workers, receivers and operators call these functions.

-- Returns the settings that are stored about failures of a job, as `queue_settings` has them. The
-- job's own limit of attempts goes before its queue's, and its group's policy before its queue's. A
-- setting that is null is not stored: the caller's default counts. `cancel_requested`: the job is
-- to be cancelled.
create or replace function {schema}.failure_policy(of_job bigint) returns jsonb
language sql stable as $$
  select {schema}.queue_settings(j.queue)
    || jsonb_build_object('cancel_requested', exists (
      select from {schema}.cancel_request r where r.job_id = j.id))
    || case when j.max_attempts is null then '{}' else jsonb_build_object('max_attempts', j.max_attempts) end
    || coalesce((
      select jsonb_build_object(
        'out_of_attempts', s.out_of_attempts, 'halt_for', s.halt_for_ms || ' ms', 'halt_then', s.halt_then)
      from {schema}.group_setting s
      where s.queue = j.queue and s.group_id = j.group_id and s.out_of_attempts is not null), '{}')
  from {schema}.job j where j.id = of_job
$$;

-- Parks up to 1,000 jobs behind a failed one of a group, in order, up to `last` if that is given.
-- Returns the last that is left to park (`rest`), and whether any were parked. Their flags would
-- stand before all others: a redrive flags the first of them. Other flags stay, as they speak for
-- jobs beside these.
--
-- Locks: the jobs NO KEY UPDATE, skips. This transaction has the group's row.
create or replace function {schema}.park_batch(of_queue text, of_group text, failed bigint, last bigint,
  out rest bigint, out moved boolean)
language plpgsql volatile as $$
begin
  with next as materialized (
    select j.id from {schema}.job j
    where j.queue = of_queue and (j.group_id, j.id) > (of_group, failed) and j.group_id <= of_group
      and j.group_id is not null and j.status in ('queued', 'started')
      and j.status = 'queued' and (last is null or j.id <= last)
    order by j.group_id, j.id limit {park_batch} for no key update skip locked),
  written as (
    update {schema}.job p set status = 'parked', parked_with = failed, flagged = false
    from next where p.id = any (array[next.id]) and p.finished_at is null
    returning p.id)
  select exists (select from written), (
      select j.id from {schema}.job j
      where j.queue = of_queue and (j.group_id, j.id) > (of_group, failed) and j.group_id <= of_group
        and j.group_id is not null and j.status in ('queued', 'started')
        and j.status = 'queued' and (last is null or j.id <= last)
        and j.id not in (select next.id from next)
      order by j.group_id desc, j.id desc limit 1)
    into moved, rest;
end $$;

-- Does what the policy says with a job that this transaction has ended as failed, and with its
-- group: a dead letter, a halt, or a halt until all behind it are parked. Returns whether the group
-- is halted: its turn is not to be passed on then. No group waits for a job that expired. Without
-- `keep` the job is deleted if it stays and nothing needs it.
--
-- The group's row has `token`; null: no claim. With `at_once` the first jobs are parked here, else
-- maintenance does it. Parking comes before the group's row is written: an adopter waits for a row
-- that was written.
--
-- Locks: the jobs that it parks NO KEY UPDATE, skips. The job and its group's row are locked.
create or replace function {schema}.end_behind(of_job bigint, token uuid, policy jsonb,
  keep boolean default true, at_once boolean default false) returns boolean
language plpgsql volatile as $$
declare
  failed record; word text; until timestamptz; ends text; rest bigint;
begin
  select j.queue, j.group_id, j.error->>'kind' = 'expired' as expired, j.error->>'message' as message
    into failed
  from {schema}.job j where j.id = of_job;
  word := case when failed.group_id is null or failed.expired then 'continue'
    else coalesce(policy->>'out_of_attempts', 'continue') end;
  if word = 'continue' then
    if (failed.expired or not {schema}.dead_letter(of_job)) and not keep then
      delete from {schema}.job j where j.id = of_job and j.status::text in ('failed');
    end if;
    return false;
  end if;
  if word = 'park' and at_once then
    -- The one that others are parked with.
    update {schema}.job j set parked_with = j.id where j.id = of_job;
    rest := (select b.rest from {schema}.park_batch(failed.queue, failed.group_id, of_job, null) b);
    if rest is null then
      return false;
    end if;
  else
    until := case when word = 'park' then clock_timestamp()
      else clock_timestamp() + (policy->>'halt_for')::interval end;
    ends := case when word = 'park' then 'park' else policy->>'halt_then' end;
  end if;
  perform {schema}.free_slots_of(array(
    select g.ctid from {schema}.queue_group g
    where g.queue = failed.queue and g.group_id = failed.group_id
      and g.claim is not distinct from end_behind.token));
  update {schema}.queue_group g set
    {free_group}, gated_by = null, gated_at = null,
    ready_at = 'infinity', halted_at = clock_timestamp(), halt_reason = failed.message, halt_job_id = of_job,
    halt_until = until, halt_then = ends, park_to = rest
  where g.queue = failed.queue and g.group_id = failed.group_id
    and g.claim is not distinct from end_behind.token;
  if not found then
    raise 'the group is not as its worker has locked it' using errcode = 'no_data_found';
  end if;
  return true;
end $$;

-- Forgets the requests to cancel a job that has ended.
create or replace function {schema}.forget_requests(of_job bigint) returns void
language sql volatile as $$
  delete from {schema}.cancel_request r where r.ctid in (
    select r.ctid from {schema}.cancel_request r where r.job_id = of_job for update skip locked)
$$;

-- Ends a worker's attempt as `outcome` says, and passes the turn on: the one place for whatever a
-- handler's run comes to. `how` is succeeded (with the `result`), retried, snoozed, failed,
-- cancelled or released; `then` is the policy of a failed one. A group without a next job keeps its
-- row, which the next claim deletes. Returns false if the job is not as its claim has locked it.
-- Without `keep` an ended job is deleted.
create or replace function {schema}.settle_outcome(of_job bigint, with_token uuid, outcome jsonb, result text,
  keep boolean) returns boolean
language plpgsql volatile as $$
declare
  how constant text := outcome->>'how';
  of_group text; marked text;
begin
  select j.group_id into of_group from {schema}.job j where j.id = of_job;
  if how = 'succeeded' then
    perform from {schema}.succeed(array[of_job], array[with_token], array[result], keep,
      array[(outcome->>'began')::float8]);
  elsif how = 'cancelled' and not keep then
    delete from {schema}.job j where j.id = of_job and {claimed}
    returning case when j.batch_id is not null
      then {schema}.mark_end(j.batch_id, j.id, j.queue, j.group_id, 'cancelled', null) end into marked;
  else
    perform where {schema}.end_attempt(of_job, how, outcome->>'kind', outcome->>'message',
      (outcome->>'delay')::float8, outcome->'chain', (outcome->>'began')::float8);
  end if;
  if not found then
    return false;
  end if;
  if how = 'cancelled' then
    perform {schema}.forget_requests(of_job);
  end if;
  if how = 'failed' and {schema}.end_behind(of_job, with_token, outcome->'then', keep, true) then
    return true;
  end if;
  if of_group is not null then
    perform {schema}.pass_turns(array[with_token], array[null::bigint]);
  end if;
  return true;
end $$;
