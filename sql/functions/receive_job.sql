-- What receivers do with single jobs and groups whose rows they have locked. These functions run
-- with the settings of their callers: search_path, lock_timeout, plans.
--
-- Ends a job without success; its row is locked.
create or replace function receive_end(of_job bigint, with_status job_status, kind text, message text) returns void
language sql volatile
as $$
  update job set
    status = with_status, finished_at = clock_timestamp(), flagged = false,
    {free_job},
    error = case when with_status = 'failed' then jsonb_build_object(
      'kind', kind, 'message', message, 'chain', '[]'::jsonb, 'attempt', attempts) else error end,
    history = history_with(history, attempts, last_started_at, kind, message)
  where id = of_job
$$;

-- Begins an attempt; the job's row is locked. The attempt is committed before a receiver sees it
-- (P9).
create or replace function receive_start(of_job bigint) returns void
language sql volatile
as $$
  update job set
    status = 'started', flagged = false, attempts = attempts + 1, last_started_at = clock_timestamp(),
    history = case when status = 'started' then history_with(history, attempts, last_started_at, 'worker_lost',
      'the worker was lost before the attempt ended') else history end
  where id = of_job
$$;

-- Frees a locked group row. `at` is when its next turn may start.
create or replace function receive_free(of_queue text, of_group text, at timestamptz) returns void
language sql volatile
as $$
  update queue_group set {free_group},
    ready_at = at
  where queue = of_queue and group_id = of_group
$$;

-- Does with a group what its setting says of a job that has failed for good; its row is locked.
-- Returns true if the group is halted, and so not claimed. Parking is left to maintenance, as is
-- the end of a halt.
create or replace function receive_dead_letter(of_queue text, of_group text, of_job bigint, reason text) returns boolean
language plpgsql volatile
as $$
declare
  setting group_setting;
begin
  select s.* into setting from group_setting s where s.queue = of_queue and s.group_id = of_group;
  if coalesce(setting.out_of_attempts, 'continue') = 'continue' then
    return false;
  end if;
  perform receive_free(of_queue, of_group, 'infinity');
  update queue_group g set halted_at = clock_timestamp(), halt_reason = reason, halt_job_id = of_job,
    halt_until = case when setting.out_of_attempts = 'park' then clock_timestamp()
      else clock_timestamp() + make_interval(secs => setting.halt_for_ms / 1000.0) end,
    halt_then = case when setting.out_of_attempts = 'park' then 'park' else setting.halt_then end
  where g.queue = of_queue and g.group_id = of_group;
  return true;
end $$;

-- Returns why a locked job must not begin another attempt, as the kind of its end; null if it may.
create or replace function receive_refusal(j job, attempt_limit integer) returns text
language plpgsql volatile
as $$
begin
  return case
    when exists (select from cancel_request r where r.job_id = j.id) then 'cancelled'
    when j.expires_at <= clock_timestamp() then 'expired'
    when j.attempts - j.attempts_forgiven >= coalesce(j.max_attempts, attempt_limit) then 'worker_lost'
  end;
end $$;

-- Ends a job for that reason. Returns true if the group is halted by it.
create or replace function receive_refuse(j job, refusal text) returns boolean
language plpgsql volatile
as $$
declare
  message text;
begin
  if refusal = 'cancelled' then
    perform receive_end(j.id, 'cancelled', refusal, null);
    delete from cancel_request r where r.ctid in (
      select r.ctid from cancel_request r where r.job_id = j.id for update skip locked);
    return false;
  end if;
  message := case refusal when 'expired' then 'the job expired before an attempt could begin' else
    'attempt ' || j.attempts || ' ended without a trace (its worker died), and no attempt is left' end;
  perform receive_end(j.id, 'failed', refusal, message);
  return refusal = 'worker_lost' and j.group_id is not null and receive_dead_letter(j.queue, j.group_id, j.id, message);
end $$;
