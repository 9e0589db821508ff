-- Schedules: jobs that are enqueued at set times, a row each. The process that fires one changes
-- its row and inserts the job in one statement, if the row still is as it was read. So no two
-- processes fire the same due time, and none needs a leader. The caller computes when a schedule is
-- due next.

-- Returns whether the last job of a schedule waits or runs. One that failed for good does not, nor
-- does one that was parked, or moved to another queue.
create or replace function is_pending(of_job bigint, of_queue text) returns boolean
language sql stable set search_path from current set enable_seqscan = off set enable_bitmapscan = off as $$
  select exists (select from job j
    where j.id = of_job and j.queue = of_queue and j.status in ('queued', 'started'))
$$;

-- Records an operator's change of a schedule, as record_operation does.
create or replace function record_schedule_operation(actor text, action text, of_schedule schedule,
  job_id bigint, reason text) returns void
language plpgsql volatile set search_path from current as $$
begin
  perform record_change(actor, action, of_schedule.queue, of_schedule.group_id, job_id, reason, 1, null,
    of_schedule.name);
end $$;

-- Enqueues the job of a schedule for a due time, and returns its id. Its deduplication id is that
-- of the due time, where the queue would take a second job with the same content for a duplicate.
create or replace function enqueue_scheduled(of_schedule schedule, due timestamptz) returns bigint
language plpgsql volatile set search_path from current as $$
begin
  return enqueue_stored(of_schedule.queue, of_schedule.group_id, of_schedule.job,
    jsonb_build_object({scheduled_for}, to_char(due at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')),
    case when (select q.dedup_by_content from queue q where q.name = of_schedule.queue)
      then encode(sha256(convert_to(of_schedule.name || ' ' || extract(epoch from due), 'UTF8')), 'hex') end);
end $$;

-- Fires a schedule for the `due` times, the earliest first, if it still is as it was `seen`: due
-- next at `seen`, counting from `since`, and not paused. `next` is when it is due next; null: never
-- again. If it skips overlaps it makes one job at most, and none while its last one waits or runs.
--
-- Returns how many jobs it made; null: the schedule is not as it was seen, nothing was done.
--
-- Locks: the schedule's row NO KEY UPDATE, skips; then as an enqueue.
create or replace function fire_due(of_schedule text, seen timestamptz, since timestamptz,
  due timestamptz[], next timestamptz) returns bigint
language plpgsql volatile set search_path from current as $$
declare
  fires schedule; due_at timestamptz;
begin
  -- Due times only go forward, also when the clock goes back.
  if next <= seen then
    return null;
  end if;
  select s.* into fires from schedule s
  where s.name = of_schedule and s.next_fire = seen and s.counts_from = since and s.paused_at is null
  for no key update skip locked;
  if not found then
    return null;
  end if;
  if fires.overlap = 'skip' then
    due := case when is_pending(fires.last_job, fires.queue) then '{}' else due[cardinality(due):] end;
  end if;
  foreach due_at in array due loop
    fires.last_job := enqueue_scheduled(fires, due_at);
  end loop;
  update schedule s set last_fire = coalesce(due_at, s.last_fire), next_fire = next,
    last_job = fires.last_job
  where s.name = of_schedule;
  return cardinality(due);
end $$;

-- Refuses times that no process could read. A cron expression and its zone are read by the caller,
-- who computes `next_fire` by them: here they only must look like some.
create or replace function check_timing(kind text, spec text, zone text, next_fire timestamptz)
returns void
language plpgsql stable set search_path from current as $$
declare
  of_kind constant text := coalesce(kind, 'null'); advice text;
begin
  advice := case of_kind
    when 'every' then
      case when spec ~ '^[0-9]{1,8}$' and zone is null
        then case when spec::bigint not between 1 and 366 * 86400 then 'Pass 1 to 31622400 seconds.'
          when next_fire is null then 'Pass when it is due next.' end
        else 'Pass the interval in whole seconds, such as 300, and no zone.' end
    when 'once_at' then
      case when spec !~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9]{2}:[0-9]{2})$' or zone is not null
        then 'Pass the time as 2026-12-01T03:00:00Z, and no zone.' end
    when 'cron' then
      case when spec !~ '^(@[a-z]+|\S+( +\S+){4})$' then 'Pass five fields, such as 0 3 * * *.'
        when zone !~ '^[A-Za-z0-9_+/-]+$' or zone is null
          then 'Name a time zone, such as Europe/Berlin.' end
    else 'Name the kind: cron, every or once_at.' end;
  if advice is not null then
    raise exception 'the times of the schedule cannot be read: % % %', of_kind, quote_nullable(spec),
      quote_nullable(zone) using errcode = '22023', hint = advice;
  end if;
end $$;

-- Makes a schedule, or changes it. Its due times stay as they are if its `kind`, `spec` and `zone`
-- do; else it is due next at `next_fire`, and begins from now: nothing is made up for. A pause
-- stays.
--
-- `kind` is `cron` (five fields, in a time zone), `every` (seconds) or `once_at` (a time). `job` is
-- a stored job (see stored_job.sql).
--
-- Returns when it is due next.
create or replace function set_schedule(name text, queue text, group_id text, job jsonb, kind text,
  spec text, zone text, next_fire timestamptz, missed text default 'last',
  missed_at_most integer default null, overlap text default 'queue', reason text default null,
  actor text default session_user) returns timestamptz
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  changed schedule;
begin
  if set_schedule.name is null then
    raise exception 'the schedule is null' using errcode = '22023', hint = 'Name the schedule.';
  end if;
  perform check_name('schedule', set_schedule.name, {schedule_limit});
  perform check_timing(set_schedule.kind, set_schedule.spec, set_schedule.zone, set_schedule.next_fire);
  perform check_stored_job(set_schedule.queue, set_schedule.group_id, set_schedule.job);
  insert into schedule as s (name, queue, group_id, job, kind, spec, zone, missed, missed_at_most, overlap,
    next_fire)
  select set_schedule.name, set_schedule.queue, set_schedule.group_id, set_schedule.job, set_schedule.kind,
    set_schedule.spec, set_schedule.zone, coalesce(set_schedule.missed, 'last'),
    set_schedule.missed_at_most, coalesce(set_schedule.overlap, 'queue'), set_schedule.next_fire
  on conflict (name) do update set queue = excluded.queue, group_id = excluded.group_id,
    job = excluded.job, kind = excluded.kind, spec = excluded.spec, zone = excluded.zone,
    missed = excluded.missed, missed_at_most = excluded.missed_at_most, overlap = excluded.overlap,
    counts_from = case when (s.kind, s.spec, s.zone) is not distinct from
      (excluded.kind, excluded.spec, excluded.zone) then s.counts_from else clock_timestamp() end,
    next_fire = case when (s.kind, s.spec, s.zone) is not distinct from
      (excluded.kind, excluded.spec, excluded.zone) then s.next_fire else excluded.next_fire end
  returning s.* into changed;
  perform record_schedule_operation(actor, 'set_schedule', changed, null, reason);
  return changed.next_fire;
end $$;

-- Pauses a schedule: it makes no job until resume_schedule. One that is paused stays so, with the
-- new reason. Returns false if there is no such schedule.
--
-- Locks: the schedule's row; waits for a process that fires it.
create or replace function pause_schedule(name text, reason text default null,
  actor text default session_user) returns boolean
language plpgsql volatile set search_path from current as $$
declare
  paused schedule;
begin
  update schedule s set paused_at = coalesce(s.paused_at, clock_timestamp()), paused_by = actor,
    pause_reason = reason
  where s.name = pause_schedule.name returning s.* into paused;
  if not found then
    return false;
  end if;
  perform record_schedule_operation(actor, 'pause_schedule', paused, null, reason);
  return true;
end $$;

-- Ends the pause of a schedule. Due times that passed meanwhile make no job. Returns false if there
-- is no such schedule, or it is not paused.
--
-- Locks: the schedule's row.
create or replace function resume_schedule(name text, reason text default null,
  actor text default session_user) returns boolean
language plpgsql volatile set search_path from current as $$
declare
  resumed schedule;
begin
  update schedule s set paused_at = null, paused_by = null, pause_reason = null,
    counts_from = clock_timestamp()
  where s.name = resume_schedule.name and s.paused_at is not null returning s.* into resumed;
  if not found then
    return false;
  end if;
  perform record_schedule_operation(actor, 'resume_schedule', resumed, null, reason);
  return true;
end $$;

-- Fires a schedule once, now, also if it is paused or its last job still runs. Its due times stay
-- as they are. Returns the job; null if there is no such schedule.
--
-- Locks: the schedule's row; waits for a process that fires it; then as an enqueue.
create or replace function fire_schedule(name text, reason text default null,
  actor text default session_user) returns bigint
language plpgsql volatile set search_path from current as $$
declare
  fires schedule; new_job bigint;
begin
  select s.* into fires from schedule s where s.name = fire_schedule.name for no key update;
  if not found then
    return null;
  end if;
  new_job := enqueue_scheduled(fires, clock_timestamp());
  update schedule s set last_job = new_job where s.name = fires.name;
  perform record_schedule_operation(actor, 'fire_schedule', fires, new_job, reason);
  return new_job;
end $$;

-- Removes a schedule. Its jobs stay. Returns false if there is no such schedule.
--
-- Locks: the schedule's row; waits for a process that fires it.
create or replace function remove_schedule(name text, reason text default null,
  actor text default session_user) returns boolean
language plpgsql volatile set search_path from current as $$
declare
  removed schedule;
begin
  delete from schedule s where s.name = remove_schedule.name returning s.* into removed;
  if not found then
    return false;
  end if;
  perform record_schedule_operation(actor, 'remove_schedule', removed, null, reason);
  return true;
end $$;
