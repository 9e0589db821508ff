-- What the functions receive, ack, nack and extend are made of. They follow the same rules as the library's workers, run
-- beside them on the same queues, and call these with their own settings (search_path, lock_timeout, plans).
--
-- A receive is a claim. Its token is in every receipt, and its visibility is its lease: `ready_at` of the group, or
-- `lease_until` of a job without one. Several jobs of a group may be received together: one claim, from `job_id` to
-- `batch_end`, of which `batch_size` are still started. `claimed_by` is null: no presence vouches for a receiver.
--
-- Lock first, then look in a new statement: every statement of these functions has a snapshot of its own, under READ
-- COMMITTED. Lock order: the adopter's advisory lock, the queue's row, group rows, job rows; all skip what is locked.

-- A temporary table of the caller's must not stand in for one of these.
select set_config('search_path', current_setting('search_path') || ', pg_temp', true);

-- The history of attempts with one more, cut to the last 20.
create function history_with(so_far jsonb, attempt integer, started_at timestamptz, kind text, message text) returns jsonb
language sql volatile
as $$
  select case when jsonb_array_length(so_far) >= 20 then so_far - 0 else so_far end
    || jsonb_build_array(jsonb_build_object('attempt', attempt, 'started_at', started_at,
      'finished_at', clock_timestamp(), 'kind', kind, 'message', message))
$$;

-- Adopts as the workers do, all that is due or one group's flags.
create function pull_adopt(of_queue text, of_group text) returns void
language plpgsql volatile
as $$
begin
  -- One adopter per queue: two would give a group two rows.
  if (select j.id from job j
      where j.queue = of_queue and j.flagged and case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end <= now()
      order by case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end limit 1) is not null
    and pg_try_advisory_xact_lock(hashtextextended('seriatim adopt ' || current_schema() || ' ' || of_queue, 0))
  then
    perform adopt(of_queue, of_group, 256, '-infinity');
  end if;
end $$;

-- Ends a job without success; its row is locked.
create function pull_end(of_job bigint, with_status job_status, kind text, message text) returns void
language sql volatile
as $$
  update job set
    status = with_status, finished_at = clock_timestamp(), flagged = false,
    claim = null, lease_until = null, suspect = null, claimed_by = null,
    error = case when with_status = 'failed' then jsonb_build_object(
      'kind', kind, 'message', message, 'chain', '[]'::jsonb, 'attempt', attempts) else error end,
    history = history_with(history, attempts, last_started_at, kind, message)
  where id = of_job
$$;

-- Lets go of a locked group row. `at`: when it is looked at next.
create function pull_free(of_queue text, of_group text, at timestamptz) returns void
language sql volatile
as $$
  update queue_group set claim = null, job_id = null, suspect = null, claimed_by = null, batch_end = null, batch_size = 1,
    ready_at = at
  where queue = of_queue and group_id = of_group
$$;

-- What the group does about a job that has failed for good; its row is locked. True: it is halted, and so not claimed.
-- To park is decided by whoever decides halts whose time has come.
create function pull_dead_letter(of_queue text, of_group text, of_job bigint, reason text) returns boolean
language plpgsql volatile
as $$
declare
  setting group_setting;
begin
  select s.* into setting from group_setting s where s.queue = of_queue and s.group_id = of_group;
  if coalesce(setting.out_of_attempts, 'continue') = 'continue' then
    return false;
  end if;
  perform pull_free(of_queue, of_group, 'infinity');
  update queue_group g set halted_at = clock_timestamp(), halt_reason = reason, halt_job_id = of_job,
    halt_until = case when setting.out_of_attempts = 'park' then clock_timestamp()
      else clock_timestamp() + make_interval(secs => setting.halt_for_ms / 1000.0) end,
    halt_then = case when setting.out_of_attempts = 'park' then 'park' else setting.halt_then end
  where g.queue = of_queue and g.group_id = of_group;
  return true;
end $$;

-- Why a locked job must not begin another attempt, as the kind of its end; null: it may.
create function pull_refusal(j job, most_attempts integer) returns text
language plpgsql volatile
as $$
begin
  return case
    when exists (select from cancel_request r where r.job_id = j.id) then 'cancelled'
    when j.expires_at <= clock_timestamp() then 'expired'
    when j.attempts - j.attempts_forgiven >= coalesce(j.max_attempts, most_attempts) then 'worker_lost'
  end;
end $$;

-- Ends a job for that reason; its group goes on unless this returns true.
create function pull_refuse(j job, refusal text) returns boolean
language plpgsql volatile
as $$
declare
  message text;
begin
  if refusal = 'cancelled' then
    perform pull_end(j.id, 'cancelled', refusal, null);
    delete from cancel_request r where r.ctid in (
      select r.ctid from cancel_request r where r.job_id = j.id for update skip locked);
    return false;
  end if;
  message := case refusal when 'expired' then 'the job expired before an attempt could begin' else
    'attempt ' || j.attempts || ' ended without a trace (its worker died), and no attempt is left' end;
  perform pull_end(j.id, 'failed', refusal, message);
  return refusal = 'worker_lost' and j.group_id is not null and pull_dead_letter(j.queue, j.group_id, j.id, message);
end $$;

-- Begins an attempt; the row is locked. The attempt is committed before any receiver sees the job.
create function pull_start(of_job bigint) returns void
language sql volatile
as $$
  update job set
    status = 'started', flagged = false, attempts = attempts + 1, last_started_at = clock_timestamp(),
    history = case when status = 'started' then history_with(history, attempts, last_started_at, 'worker_lost',
      'the worker was lost before the attempt ended') else history end
  where id = of_job
$$;

-- The started jobs of a group in a range of ids, in order. By a loop: where a range of an index that begins with the group has an
-- end within the group, PostgreSQL reads on to the group's last job. Without an end, or a beginning, none: those would be read as well.
create function batch_jobs(of_queue text, of_group text, first bigint, last bigint) returns setof bigint
language plpgsql stable strict
set search_path from current
as $$
declare
  one record;
begin
  for one in select j.id, j.status from job j
    where j.queue = of_queue and (j.group_id, j.id) >= (of_group, first) and j.group_id <= of_group
      and j.status in ('queued', 'started')
    order by j.group_id, j.id
  loop
    exit when one.id > last;
    if one.status = 'started' then
      return next one.id;
    end if;
  end loop;
end $$;

-- Queues the started jobs of a batch again from `first` to `last`: they were not begun, so nothing is held against them.
create function pull_return(of_queue text, of_group text, first bigint, last bigint) returns void
language sql volatile
as $$
  update job j set status = 'queued', attempts_forgiven = j.attempts_forgiven + 1,
    history = history_with(j.history, j.attempts, j.last_started_at, 'released', null)
  from (select b.id from job b where b.id = any (array(select batch_jobs(of_queue, of_group, first, last)))
      and b.finished_at is null and b.status = 'started'
    for no key update skip locked) behind
  where j.id = any (array[behind.id]) and j.finished_at is null and j.status <> 'queued'
$$;

-- The lowest flagged job of a group; above all ids if there is none.
create function first_flag(of_queue text, of_group text) returns bigint
language sql stable
as $$
  select coalesce((select f.id from job f
    where f.queue = of_queue and f.group_id between of_group and of_group and f.flagged
    order by f.group_id, f.id limit 1), 9223372036854775807)
$$;

-- The lowest unfinished job of a free, locked group: from head_id on, or from its lowest flag on.
create function pull_head(of_queue text, of_group text, from_id bigint) returns bigint
language sql volatile
as $$
  select least(
    (select j.id from job j
      where j.queue = of_queue and (j.group_id, j.id) >= (of_group, from_id) and j.group_id <= of_group
        and j.status in ('queued', 'started')
      order by j.group_id, j.id limit 1),
    (select j.id from job j
      where j.queue = of_queue and (j.group_id, j.id) >= (of_group, first_flag(of_queue, of_group)) and j.group_id <= of_group
        and j.status in ('queued', 'started')
      order by j.group_id, j.id limit 1))
$$;

-- What a receive does with a group whose row it has just locked. `job`: it was claimed for this one, until `until`.
-- `again`: something ended, and more may be due at once.
create function pull_turn(turn queue_group, until timestamptz, most_attempts integer, out job bigint, out again boolean)
language plpgsql volatile
as $$
declare
  head job;
  head_at bigint := turn.head_id;
  refusal text;
  wait interval;
begin
  again := false;
  -- Two looks, whoever has the claim: the first doubts it, the second takes it over a grace later.
  if turn.claim is not null and turn.suspect is distinct from turn.claim then
    update queue_group g set suspect = g.claim, ready_at = clock_timestamp() + interval '1.75 s'
    where g.queue = turn.queue and g.group_id = turn.group_id;
    return;
  end if;
  -- What was claimed before goes on.
  if turn.claim is null and exists (
    select from group_setting s where s.queue = turn.queue and s.group_id = turn.group_id and s.paused_at is not null)
  then
    -- It rests until a resume flags its head. That waits for this lock, so that the flag comes after the rest is written.
    perform from group_setting s where s.queue = turn.queue and s.group_id = turn.group_id and s.paused_at is not null
    for share skip locked;
    update queue_group g set ready_at = case when found then 'infinity' else clock_timestamp() + interval '20 ms' end
    where g.queue = turn.queue and g.group_id = turn.group_id;
    return;
  end if;
  if turn.batch_end is not null then
    -- The first that has not ended is taken over, the others go back.
    turn.job_id := coalesce((select min(b.id)
      from batch_jobs(turn.queue, turn.group_id, turn.job_id, turn.batch_end) b(id)), turn.job_id);
    perform pull_return(turn.queue, turn.group_id, turn.job_id + 1, turn.batch_end);
  end if;

  for looks in 1..100 loop
    if turn.claim is null then
      head.id := pull_head(turn.queue, turn.group_id, head_at);
    else
      head.id := turn.job_id;
    end if;
    if head.id is null then
      -- The stronger lock fails while an adopter shares the row. Nothing has written the row before it.
      perform from queue_group g where g.queue = turn.queue and g.group_id = turn.group_id
        and g.claim is null and g.halted_at is null for update skip locked;
      if found then
        delete from queue_group g where g.queue = turn.queue and g.group_id = turn.group_id and not exists (
          select from job j where j.queue = turn.queue and j.group_id = turn.group_id
            and j.status in ('queued', 'started'));
        if found then
          return;
        end if;
      end if;
      wait := '20 ms';
      exit;
    end if;
    select j.* into head from job j where j.id = head.id and j.finished_at is null for no key update skip locked;
    if not found then
      -- A take-over never retires: a job enqueued beside it would be lost.
      if turn.claim is not null and not exists (select from job j where j.id = turn.job_id and j.finished_at is null) then
        perform pull_free(turn.queue, turn.group_id, clock_timestamp());
        again := true;
        return;
      end if;
      wait := '20 ms';
      exit;
    end if;
    head_at := head.id;
    refusal := pull_refusal(head, most_attempts);
    if turn.claim is null and refusal is distinct from 'expired' and head.run_at > clock_timestamp() then
      update queue_group g set ready_at = least(head.run_at, head.expires_at), head_id = head.id, boost = head.priority
      where g.queue = turn.queue and g.group_id = turn.group_id;
      return;
    end if;
    if refusal is null then
      perform pull_start(head.id);
      update queue_group g set
        claim = gen_random_uuid(), job_id = head.id, suspect = null, claimed_by = null, batch_end = null, batch_size = 1,
        head_id = case when g.claim is null then head.id else g.head_id end, boost = 0, ready_at = until
      where g.queue = turn.queue and g.group_id = turn.group_id;
      job := head.id;
      return;
    end if;
    if pull_refuse(head, refusal) then
      update queue_group g set head_id = least(g.head_id, head_at)
      where g.queue = turn.queue and g.group_id = turn.group_id;
      return;
    end if;
    if turn.claim is not null then
      perform pull_free(turn.queue, turn.group_id, clock_timestamp());
      again := true;
      return;
    end if;
    wait := '0';
    again := true;
  end loop;
  update queue_group g set ready_at = clock_timestamp() + wait,
    head_id = case when g.claim is null then head_at else g.head_id end
  where g.queue = turn.queue and g.group_id = turn.group_id;
end $$;

-- Claims up to `most` further jobs of a group behind the one that was just claimed: only such as are next in order, due,
-- and nobody's at the moment. The group's row is locked.
-- If the receiver dies, the first of them is charged with it, and the others go back: none of them may be one that has a
-- single attempt.
create function pull_batch(of_queue text, of_group text, first bigint, most integer, most_attempts integer) returns bigint[]
language plpgsql volatile
as $$
declare
  next_id bigint;
  next job;
  batch bigint[] := '{}';
begin
  for next_id in
    select j.id from job j
    where j.queue = of_queue and (j.group_id, j.id) > (of_group, first) and j.group_id <= of_group
      and j.status in ('queued', 'started')
    order by j.group_id, j.id limit most
  loop
    select j.* into next from job j where j.id = next_id and j.status::text = 'queued' for no key update skip locked;
    exit when not found or next.run_at > clock_timestamp() or pull_refusal(next, most_attempts) is not null;
    exit when coalesce(next.max_attempts, most_attempts) = 1;
    perform pull_start(next_id);
    batch := batch || next_id;
  end loop;
  if batch <> '{}' then
    update queue_group g set batch_end = batch[cardinality(batch)], batch_size = 1 + cardinality(batch)
    where g.queue = of_queue and g.group_id = of_group;
  end if;
  return batch;
end $$;

-- Claims up to `most` jobs without a group; `fresh`: no more than so many that were not claimed before.
create function pull_loose(of_queue text, most integer, fresh bigint, until timestamptz, most_attempts integer)
returns bigint[]
language plpgsql volatile
as $$
declare
  at constant timestamptz := clock_timestamp();
  lapsed bigint[];
  one_id bigint;
  one job;
  refusal text;
  taken bigint[] := '{}';
begin
  update job j set suspect = j.claim, lease_until = clock_timestamp() + interval '1.75 s'
  from (select d.id from job d where d.queue = of_queue and d.group_id is null and d.status = 'started'
      and d.lease_until <= at and d.suspect is distinct from d.claim
    order by d.lease_until for no key update skip locked) due
  where j.id = any (array[due.id]);
  -- Those with a priority get their head start when they become due.
  update job j set turn_at = j.run_at - j.priority * interval '10 s'
  from (select d.id from job d where d.queue = of_queue and d.group_id is null and d.status = 'queued'
      and d.priority > 0 and d.turn_at >= d.run_at and d.run_at <= at
    order by d.run_at limit 256 for no key update skip locked) due
  where j.id = any (array[due.id]);
  lapsed := array(select d.id from job d where d.queue = of_queue and d.group_id is null and d.status = 'started'
      and d.lease_until <= at and d.suspect = d.claim
    order by d.lease_until, d.id limit most for no key update skip locked);
  foreach one_id in array lapsed || array(
    select d.id from job d where d.queue = of_queue and d.group_id is null and d.status = 'queued' and d.turn_at <= at
    order by d.turn_at, d.id limit greatest(least(most - cardinality(lapsed), fresh), 0) for no key update skip locked)
  loop
    select j.* into one from job j where j.id = one_id;
    refusal := pull_refusal(one, most_attempts);
    if refusal is not null then
      perform pull_refuse(one, refusal);
    else
      perform pull_start(one.id);
      update job set claim = gen_random_uuid(), lease_until = until, suspect = null, claimed_by = null where id = one.id;
      taken := taken || one.id;
    end if;
  end loop;
  return taken;
end $$;

select set_config('search_path', regexp_replace(current_setting('search_path'), ', pg_temp$', ''), true);
