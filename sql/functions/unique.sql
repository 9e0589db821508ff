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

-- Locks a job that has never begun, and returns whether it could. A claim skips a locked job, so
-- the job begins after this transaction at the earliest. A claim that was committed before is seen,
-- as the lock comes first and the look in a new statement.
--
-- Whoever has locked a job that no claim names gives it back within milliseconds. After 8 looks, 2
-- ms apart, the job counts as begun.
--
-- Locks: the job NO KEY UPDATE, skips.
create or replace function lock_unbegun(of_job bigint, of_queue text) returns boolean
language plpgsql volatile set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
  for look in 1..8 loop
    begin
      perform from job j
      where j.id = of_job and j.queue = of_queue and j.status = 'queued' and j.attempts = 0
      for no key update skip locked;
      if found then
        perform check_unclaimed(array[of_job]);
        return true;
      end if;
    exception when sqlstate 'SQ001' then
      return false;
    end;
    if not exists (
      select from job j
      where j.id = of_job and j.queue = of_queue and j.status = 'queued' and j.attempts = 0
        and (select true from claim_of(j.queue, j.group_id, j.id) c) is null)
    then
      return false;
    end if;
    perform pg_sleep(0.002);
  end loop;
  return false;
end $$;

-- Returns the job that has a unique key: `for_job`, which is about to be inserted, or an earlier
-- one. With `replace` and `debounce` an earlier one gets what the new one would have had, and keeps
-- its place: its group, its priority, its limit key, its batch and, with `replace`, its time.
--
-- Waits for another open transaction that enqueues with the same key, and for nothing else (P5). It
-- runs with the rights of the schema's owner: a producer may not lock or change other jobs.
--
-- Locks: the row of the key; then a job that waits NO KEY UPDATE, skips.
create or replace function claim_unique_key(of_queue text, of_group text, unique_key text, unique_mode text,
  unique_scope text, for_job bigint, new_run_at timestamptz, new_data jsonb, new_payload bytea,
  new_content_type text, new_name text, new_reference text, new_expires_at timestamptz,
  new_max_attempts integer, new_timeout_ms bigint, new_lease_ms bigint, new_headers jsonb,
  new_attributes jsonb) returns bigint
language plpgsql volatile security definer set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  key_scope constant text := case when unique_scope = 'group'
    then encode(sha256(convert_to(of_group, 'UTF8')), 'hex') else '' end;
  key_until constant text := case when unique_mode = 'until_end' then 'end' else 'start' end;
  first_job bigint; has_key boolean; was record;
begin
  perform check_isolation('a unique key');
  insert into unique_key as u (queue, scope, until, key, job_id)
  values (of_queue, key_scope, key_until, unique_key, for_job)
  on conflict (queue, scope, until, key) do update set job_id = u.job_id
  returning u.job_id into first_job;
  if first_job = for_job then
    return for_job;
  end if;
  -- In new statements: the key's row was locked before.
  has_key := case when key_until = 'start' then lock_unbegun(first_job, of_queue)
    else exists (
      select from job j
      where j.id = first_job and j.queue = of_queue and j.status in ('queued', 'started')) end;
  if has_key then
    if unique_mode in ('replace', 'debounce') then
      select j.run_at, least(j.run_at, j.expires_at) as due_at,
          case when unique_mode = 'debounce' then new_run_at else j.run_at end as new_run_at
        into was
      from job j where j.id = first_job;
      update job j set
        data = new_data, payload = new_payload, content_type = new_content_type, name = new_name,
        reference = new_reference, expires_at = new_expires_at, max_attempts = new_max_attempts,
        timeout_ms = new_timeout_ms, lease_ms = new_lease_ms, headers = new_headers,
        attributes = new_attributes, run_at = was.new_run_at,
        turn_at = case when was.new_run_at <= clock_timestamp()
          then was.new_run_at - j.priority * {priority_aging} else least(was.new_run_at, new_expires_at) end,
        -- Its group may sleep until the time that it had.
        flagged = j.flagged
          or j.group_id is not null and least(was.new_run_at, new_expires_at) < was.due_at,
        replaced = j.replaced + 1, replaced_at = clock_timestamp()
      where j.id = first_job;
      if was.new_run_at <= clock_timestamp() and was.run_at > clock_timestamp() then
        perform wake(of_queue);
      end if;
    end if;
    return first_job;
  end if;
  update unique_key u set job_id = for_job, look_at = default
  where u.queue = of_queue and u.scope = key_scope and u.until = key_until
    and u.key = claim_unique_key.unique_key;
  return for_job;
end $$;

-- Deletes up to `n` unique keys whose job has ended. One whose job has not is looked at again 10
-- min later. Returns how many it looked at.
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
  update unique_key u set look_at = default where u.ctid = any (looked);
  return cardinality(looked);
end $$;
