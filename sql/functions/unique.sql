-- Unique keys. A key is a job's until that job starts (`until_start`, `replace`, `debounce`), or
-- until it ends (`until_end`). The row of `unique_key` names the job; whether that job still waits,
-- or has not ended, is asked of the job itself.

create or replace function check_unique(unique_mode text, unique_scope text, of_group text) returns void
language plpgsql immutable as $$
begin
  if (unique_mode in ('until_start', 'until_end', 'replace', 'debounce')) is not true then
    raise exception 'the unique mode is %, it must be until_start, until_end, replace or debounce',
      coalesce(unique_mode, 'null')
      using errcode = '22023', hint = 'Leave it out for until_start.';
  elsif (unique_scope in ('queue', 'group')) is not true then
    raise exception 'the unique scope is %, it must be queue or group', coalesce(unique_scope, 'null')
      using errcode = '22023', hint = 'Leave it out for queue.';
  elsif unique_scope = 'group' and of_group is null then
    raise exception 'the unique key is one of a group, and the job has no group'
      using errcode = '22023', hint = 'Pass a group_id, or the scope queue.';
  end if;
end $$;

-- Locks a job with a unique key that has never begun, and returns whether it could. If the lock is
-- not free at once, another transaction holds it.
--
-- Locks: the job NO KEY UPDATE, skips.
create or replace function lock_unbegun(of_job bigint, of_queue text, its_key text) returns boolean
language plpgsql volatile set search_path from current {pinned} as $$
begin
  perform from job j
  where j.id = of_job and j.queue = of_queue and j.unique_key = its_key
    and j.status = 'queued' and j.attempts = 0
  for no key update skip locked;
  return found;
exception when lock_not_available then
  return false;
end $$;

-- Returns the job that has a unique key: `for_job`, which is about to be inserted, or an earlier
-- one. With `replace` and `debounce` an earlier one gets what the new one would have had, and keeps
-- its place: its group, its priority, its limit key, its batch and, with `replace`, its time. With
-- the others it gets the new expiry, if that is later: it must not end without a run before the new
-- job would have.
--
-- For a key until the start it locks the job in one statement, and asks in the next one whether a
-- claim names the job. A claim skips a locked job, so the job begins after this transaction. If the
-- job is claimed, it gives the lock back, because a settle would wait for the lock. Other
-- transactions hold the lock for milliseconds. After 8 looks, 2 ms apart, the job counts as begun.
--
-- Enqueues that come one after the other, each with a lock of the job, leave it to no claim. So
-- after 256 duplicates the job counts as begun, and the key goes to a new job.
--
-- Waits for another open transaction that enqueues with the same key, and for maintenance that
-- looks at the key (P5). It runs with the rights of the schema's owner: a producer may not lock or
-- change jobs. So it takes no job but one with this key.
--
-- Locks: the row of the key; then a job that waits NO KEY UPDATE, skips.
create or replace function claim_unique_key(of_queue text, of_group text, unique_key text, unique_mode text,
  unique_scope text, for_job bigint, notifies boolean, new_run_at timestamptz, new_data jsonb,
  new_payload bytea, new_content_type text, new_name text, new_reference text, new_expires_at timestamptz,
  new_max_attempts integer, new_timeout_ms bigint, new_lease_ms bigint, new_headers jsonb,
  new_attributes jsonb) returns bigint
language plpgsql volatile security definer set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  its_key constant text := unique_key;
  key_scope constant text := case when unique_scope = 'group'
    then encode(sha256(convert_to(of_group, 'UTF8')), 'hex') else '' end;
  until_end constant boolean := unique_mode = 'until_end';
  key_until constant text := case when until_end then 'end' else 'start' end;
  first_job bigint; had bigint; was record; wakes boolean := false; locked boolean;
begin
  perform check_isolation('a unique key');
  perform check_unique(unique_mode, unique_scope, of_group);
  if (new_data is null) = (new_payload is null) then
    raise exception 'a job has data or a payload' using errcode = '22023', hint = 'Call enqueue.';
  end if;
  insert into unique_key as u (queue, scope, until, key, job_id)
  values (of_queue, key_scope, key_until, its_key, for_job)
  on conflict (queue, scope, until, key) do update set duplicates = u.duplicates + 1
  returning u.job_id, u.duplicates into first_job, had;
  if first_job = for_job then
    return for_job;
  end if;
  -- In new statements: the row of the key was locked before.
  for look in 1..8 loop
    begin
      select j.group_id, j.run_at, least(j.run_at, j.expires_at) as due_at, j.created_at, j.attempts,
          j.expires_at < coalesce(new_expires_at, 'infinity') as expires_sooner,
          job_state(j.status, j.queue, j.group_id, j.id)::text as state,
          exists (select from cancel_request r where r.job_id = j.id) as cancelled
        into was
      from job j where j.id = first_job and j.queue = of_queue and j.unique_key = its_key;
      exit when not found or was.state not in ('queued', 'started');
      if until_end and (
        was.state = 'started' or not (was.cancelled or coalesce(was.expires_sooner, false)))
      then
        return first_job;
      end if;
      exit when was.cancelled;
      -- A job of this transaction is in no claim's way.
      exit when had >= 256 and was.created_at < now() and not until_end;
      locked := lock_unbegun(first_job, of_queue, its_key);
      if locked then
        perform check_unclaimed(array[first_job]);
        if unique_mode in ('replace', 'debounce') then
          was.run_at := case when unique_mode = 'debounce' then new_run_at else was.run_at end;
          wakes := notifies and was.run_at <= clock_timestamp() and was.due_at > clock_timestamp()
            and seems_idle(of_queue, array[was.group_id], was.group_id is null);
          update job j set
            data = new_data, payload = new_payload, content_type = new_content_type, name = new_name,
            reference = new_reference, expires_at = new_expires_at, max_attempts = new_max_attempts,
            timeout_ms = new_timeout_ms, lease_ms = new_lease_ms, headers = new_headers,
            attributes = new_attributes, run_at = l.run_at,
            turn_at = case when l.run_at <= clock_timestamp()
              then l.run_at - j.priority * {priority_aging} else least(l.run_at, new_expires_at) end,
            -- Its group may sleep until the time that it had.
            flagged = j.flagged
              or j.group_id is not null and least(l.run_at, new_expires_at) < least(j.run_at, j.expires_at),
            replaced = j.replaced + 1, replaced_at = clock_timestamp()
          from (
            select case when unique_mode = 'debounce' then new_run_at else l.run_at end as run_at
            from job l where l.id = first_job) l
          where j.id = first_job;
          if wakes then
            perform wake(of_queue);
          end if;
        elsif was.expires_sooner then
          update job j set expires_at = new_expires_at, turn_at = case when j.run_at <= clock_timestamp()
            then j.turn_at else least(j.run_at, new_expires_at) end
          where j.id = first_job;
        end if;
        return first_job;
      elsif until_end then
        -- It has begun: its expiry counts no more.
        return first_job;
      end if;
      exit when was.state = 'started' or was.attempts > 0;
    exception when sqlstate 'SQ001' then
      -- It has begun. Its lock went with this block.
      if until_end then
        return first_job;
      end if;
      exit;
    end;
    perform pg_sleep(0.002);
  end loop;
  update unique_key u set job_id = for_job, duplicates = 0, look_at = default
  where u.queue = of_queue and u.scope = key_scope and u.until = key_until and u.key = its_key;
  return for_job;
end $$;

-- Deletes up to `n` unique keys whose job has ended. One whose job has not is looked at again when
-- that job is twice as old, and due, and in 10 min at the earliest. Returns how many it looked at.
--
-- Locks: the rows FOR UPDATE, skips.
create or replace function forget_unique_keys(n bigint) returns bigint
language plpgsql volatile set search_path from current {pinned} as $$
declare
  looked tid[];
begin
  looked := array(
    select u.ctid from unique_key u where u.look_at <= clock_timestamp()
    order by u.look_at limit n for update skip locked);
  -- By a snapshot younger than the locks.
  delete from unique_key u where u.ctid = any (looked)
    and (select j.id from job j where j.id = u.job_id and j.finished_at is null limit 1) is null;
  update unique_key u set look_at = greatest(j.run_at,
    clock_timestamp() + greatest(interval '10 min', clock_timestamp() - j.created_at))
  from job j where u.ctid = any (looked) and j.id = u.job_id;
  return cardinality(looked);
end $$;
