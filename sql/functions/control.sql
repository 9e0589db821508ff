-- Requests of operators about one job or one halted group. Each returns what it found and did, and
-- waits for no handler.

-- Whether jobs are parked with a failed job, or are being parked.
create or replace function has_parked(of_queue text, of_group text, of_job bigint) returns boolean
language sql stable set search_path from current as $$
  select exists (
      select from job u
      where u.queue = of_queue and u.group_id = of_group and u.parked_with = of_job and u.status = 'parked')
    or exists (
      select from queue_group g
      where g.queue = of_queue and g.group_id = of_group and g.halt_job_id = of_job
        and g.park_to is not null)
$$;

-- Ends the halt of a group by one of these jobs; null: by whatever job. Returns whether it did. Not
-- while jobs of the group are being parked. No handler holds a halted group's row.
create or replace function end_halt(of_queue text, of_group text, by_jobs bigint[]) returns boolean
language plpgsql volatile set search_path from current as $$
begin
  update queue_group g set {unhalted}
  where g.queue = of_queue and g.group_id = of_group and (by_jobs is null or g.halt_job_id = any (by_jobs))
    and g.halted_at is not null and g.park_to is null;
  return found;
end $$;

-- Returns what a job is, and where. No row: there is no such job.
create or replace function job_place(of_job bigint) returns table (status text, queue text, group_id text)
language sql stable set search_path from current as $$
  select job_state(j.status, j.queue, j.group_id, j.id), j.queue, j.group_id from job j where j.id = of_job
$$;

-- Locks a job that is in one of these states, and that no claim names. Returns its state; null: it
-- is not so, or another transaction has its row.
--
-- Locks: the job NO KEY UPDATE, skips.
create or replace function lock_unclaimed(of_job bigint, states text[]) returns text
language plpgsql volatile set search_path from current as $$
declare
  state text;
begin
  select j.status into state from job j
  where j.id = of_job and j.status::text = any (states) for no key update skip locked;
  perform check_unclaimed(array[of_job]);
  return state;
exception when sqlstate 'SQ001' then
  return null;
end $$;

-- Cancels a job that waits, and flags it, so that its group's heads are read. A job that runs, or
-- whose row is locked for a moment, gets a request instead: its worker or maintenance carries it
-- out (`requested`). So does a transaction above READ COMMITTED, which cannot see whether it runs.
--
-- `status` is what the job was; null: there is no such job.
create or replace function cancel(job bigint, reason text default null, actor text default session_user,
  out status text, out done boolean, out requested boolean)
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  was record;
begin
  done := false;
  requested := false;
  select p.* into was from job_place(cancel.job) p;
  if not found then
    return;
  end if;
  status := was.status;
  done := (status = 'parked' or is_read_committed())
    and lock_unclaimed(cancel.job, '{queued,parked}') is not null;
  if done then
    update job j set {cancelled}, flagged = j.group_id is not null where j.id = cancel.job;
    perform mark_ends(array[cancel.job]);
  elsif status in ('queued', 'started') then
    insert into cancel_request (job_id) select cancel.job;
    requested := true;
  end if;
  perform record_operation(actor, 'cancel', was.queue, was.group_id, job, reason,
    (done or requested)::integer);
end $$;

-- Returns how many later jobs of the groups of `ids` have begun, and are none of them. No index has
-- finished jobs by group, so only the 200,000 jobs behind the lowest id are looked at, at once, and
-- joined by hashes: a nested loop would compare each of them with all ids. `jit`: by the cost of
-- what is switched off each call would be compiled, for 0.2 s.
create or replace function begun_behind(ids bigint[]) returns bigint
language sql stable set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_nestloop = off
set jit = off as $$
  with first as materialized (
    select j.queue, j.group_id, min(j.id) as id
    from unnest(ids) chosen(id) join job j on j.id = any (array[chosen.id])
    where j.group_id is not null group by j.queue, j.group_id)
  select count(*) from (
      select l.id, l.queue, l.group_id, l.attempts from job l
      where l.id > (select min(f.id) from first f) order by l.id limit 200000) l
    join first f on f.queue = l.queue and f.group_id = l.group_id and f.id < l.id
  where (l.attempts > 0 or (select c.started_at from claim_of(l.queue, l.group_id, l.id) c) is not null)
    and not exists (select from unnest(ids) chosen(id) where chosen.id = l.id)
$$;

-- Queues a failed or cancelled job with all its attempts and flags it: it has the lowest id of its
-- group and so runs next. A halt of the group by it ends. `overtaken`: as `begun_behind` says. Not
-- a job that others are parked with (`parked`): they are redriven together. Nor a dead letter that
-- waits in a dead-letter queue: `dead_letter_of` is the queue that it failed in, which a redrive
-- moves it back to. One that was discarded or cancelled there waits there again: it is done, with
-- the same `dead_letter_of`. Nor a job that was moved: it waits in queue `moved_to` as job
-- `moved_as`, and would run twice.
create or replace function retry(job bigint, reason text default null, actor text default session_user,
  out status text, out done boolean, out parked boolean, out overtaken bigint, out dead_letter_of text,
  out moved_to text, out moved_as bigint)
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  was record;
begin
  done := false;
  parked := false;
  overtaken := 0;
  select p.* into was from job_place(retry.job) p;
  if not found then
    return;
  end if;
  status := was.status;
  dead_letter_of := (select j.moved_from from job j where j.id = retry.job and {waits_as_dead_letter});
  if dead_letter_of is not null then
    return;
  end if;
  parked := has_parked(was.queue, was.group_id, job);
  if parked or lock_unclaimed(retry.job, '{failed,cancelled}') is null then
    return;
  end if;
  -- By a snapshot younger than the lock.
  select j.status, j.error->>'moved_to', (j.error->>'moved_as')::bigint into status, moved_to, moved_as
  from job j where j.id = retry.job;
  parked := has_parked(was.queue, was.group_id, job);
  if parked or moved_as is not null then
    return;
  end if;
  update job j set {requeued}, flagged = j.group_id is not null where j.id = retry.job
  returning j.moved_from into dead_letter_of;
  perform end_halt(was.queue, was.group_id, array[retry.job]);
  done := true;
  overtaken := begun_behind(array[retry.job]);
  perform record_operation(actor, 'retry', was.queue, was.group_id, job, reason, 1);
end $$;

-- Gives a job up, so that its group goes on: a queued job ends as failed; a failed job stays
-- failed, and the halt of its group ends. Not a queued job of a group that another job has halted
-- (`halted_by`): the group would stay halted. Nor a dead letter that waits in a dead-letter queue:
-- `dead_letter_of` is the queue that it failed in. It would become a dead letter of the
-- dead-letter queue, which no redrive of its own queue finds; a discard gives it up. `busy`:
-- another transaction has the job's row. Else, not done: a failed job halts nothing, so there is
-- nothing to do.
create or replace function skip(job bigint, reason text default null, actor text default session_user,
  out status text, out done boolean, out halted_by bigint, out busy boolean, out dead_letter_of text)
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  was record; locked text;
begin
  done := false;
  busy := false;
  select p.* into was from job_place(skip.job) p;
  if not found then
    return;
  end if;
  status := was.status;
  if status = 'queued' then
    select g.halt_job_id into halted_by from queue_group g
    where g.queue = was.queue and g.group_id = was.group_id and g.halted_at is not null
      and g.halt_job_id <> skip.job;
    if halted_by is not null then
      return;
    end if;
  end if;
  locked := lock_unclaimed(skip.job, '{queued,failed}');
  if locked is null then
    busy := status in ('queued', 'failed');
    return;
  end if;
  dead_letter_of := (select j.moved_from from job j where j.id = skip.job and {waits_as_dead_letter});
  if dead_letter_of is not null then
    return;
  end if;
  done := end_halt(was.queue, was.group_id, array[skip.job]) or locked = 'queued';
  if not done then
    return;
  end if;
  perform give_up(job, 'given up by request');
  perform record_operation(actor, 'skip', was.queue, was.group_id, job, reason, 1);
end $$;

-- Ends a job as failed, by request, and flags it. A failed one stays as it is. Its row is locked.
create or replace function give_up(of_job bigint, message text) returns void
language sql volatile set search_path from current as $$
  update job j set
    history = case when j.status = 'queued'
      then history_with(j.history, j.attempts, j.last_started_at, 'skipped', null) else j.history end,
    error = case when j.status = 'queued' then jsonb_build_object(
      'kind', 'skipped', 'message', message, 'chain', '[]'::jsonb, 'attempt', j.attempts) else j.error end,
    flagged = j.group_id is not null,
    finished_at = coalesce(j.finished_at, clock_timestamp()),
    status = 'failed'
  where j.id = of_job;
  select mark_ends(array[of_job])
$$;

-- Ends the halt of a group, which goes on with its next job. Returns whether it was halted. Not
-- while jobs of it are being parked.
create or replace function unhalt(queue text, group_id text, reason text default null,
  actor text default session_user) returns boolean
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  done boolean;
begin
  done := end_halt(unhalt.queue, unhalt.group_id, null);
  perform record_operation(actor, 'unhalt', unhalt.queue, unhalt.group_id, null, reason, done::integer);
  return done;
end $$;

-- Makes a job that is delayed, or waits for its retry, due at once. It keeps its place in its
-- group.
create or replace function run_now(job bigint, reason text default null, actor text default session_user,
  out status text, out done boolean)
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  was record;
begin
  done := false;
  select p.* into was from job_place(run_now.job) p;
  if not found then
    return;
  end if;
  status := was.status;
  done := lock_unclaimed(run_now.job, '{queued}') is not null;
  if not done then
    return;
  end if;
  update job j set run_at = now(), turn_at = now(), flagged = j.group_id is not null
  where j.id = run_now.job and j.run_at > now();
  perform record_operation(actor, 'run_now', was.queue, was.group_id, job, reason, 1);
  perform wake(was.queue);
end $$;
