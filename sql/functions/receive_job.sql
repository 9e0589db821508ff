-- What receivers do with single jobs and groups whose rows they have locked. These functions run
-- with the settings of their callers: search_path, lock_timeout, plans.

-- Halts a group behind a job that failed; its row is locked. At the time `until` maintenance does
-- what `at_end` says.
create or replace function halt_group(of_queue text, of_group text, of_job bigint, reason text, until timestamptz, at_end text)
returns void
language sql volatile
as $$
  update queue_group g set
    {free_group},
    ready_at = 'infinity', halted_at = clock_timestamp(), halt_reason = reason, halt_job_id = of_job,
    halt_until = until, halt_then = at_end
  where g.queue = of_queue and g.group_id = of_group
$$;

-- Returns what a group does with a received job that has failed for good: its own setting, or else
-- its queue's, or else it goes on.
create or replace function receive_policy(of_queue text, of_group text, out out_of_attempts text, out halt_for_ms bigint,
  out halt_then text)
language plpgsql stable
as $$
begin
  select s.out_of_attempts, s.halt_for_ms, s.halt_then into out_of_attempts, halt_for_ms, halt_then
  from group_setting s where s.queue = of_queue and s.group_id = of_group;
  if out_of_attempts is null then
    select q.out_of_attempts, q.halt_for_ms, q.halt_then into out_of_attempts, halt_for_ms, halt_then
    from queue q where q.name = of_queue;
  end if;
  out_of_attempts := coalesce(out_of_attempts, 'continue');
end $$;

-- Does with a job that has failed for good, and with its group, what the policy says; their rows
-- are locked. Returns true if the group is halted, and so not claimed. Parking is left to
-- maintenance, as is the end of a halt.
create or replace function receive_dead_letter(of_queue text, of_group text, of_job bigint, reason text) returns boolean
language plpgsql volatile
as $$
declare
  policy record;
begin
  select * into policy from receive_policy(of_queue, of_group);
  if of_group is null or policy.out_of_attempts = 'continue' then
    perform dead_letter(of_job);
    return false;
  end if;
  perform halt_group(of_queue, of_group, of_job, reason,
    case when policy.out_of_attempts = 'park' then clock_timestamp()
      else clock_timestamp() + make_interval(secs => policy.halt_for_ms / 1000.0) end,
    case when policy.out_of_attempts = 'park' then 'park' else policy.halt_then end);
  return true;
end $$;

-- Ends a job that was claimed and is not to be run, for the reason that its claim gave. Returns
-- true if its group is halted by it.
create or replace function receive_refuse(of_job bigint, disposition text) returns boolean
language plpgsql volatile
as $$
declare
  j job;
  message text;
begin
  select x.* into j from job x where x.id = of_job;
  if disposition = 'cancelled' then
    perform end_attempt(of_job, 'cancelled', 'cancelled', null);
    delete from cancel_request r where r.ctid in (
      select r.ctid from cancel_request r where r.job_id = of_job for update skip locked);
    return false;
  elsif disposition = 'expired' then
    perform end_attempt(of_job, 'failed', 'expired',
      'it expired at ' || to_char(j.expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'));
    return false;
  end if;
  message := 'attempt ' || j.attempts || ' ended without a trace (its worker died), and no attempt is left';
  perform end_attempt(of_job, 'failed', 'worker_lost', message);
  return receive_dead_letter(j.queue, j.group_id, of_job, message);
end $$;
