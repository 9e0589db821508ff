-- Enqueue, receive, ack, nack and extend for any language: functions that follow the same rules as the library's workers
-- and run beside them on the same queues.
--
-- A receive is a claim. Its token is in every receipt, and its visibility is its lease: `ready_at` of the group, or
-- `lease_until` of a job without one. Several jobs of a group may be received together: one claim, from `job_id` to
-- `batch_end`, of which `batch_size` are still started. `claimed_by` is null: no presence vouches for a receiver.
--
-- Lock first, then look in a new statement: every statement of these functions has a snapshot of its own, under READ
-- COMMITTED. Lock order: the adopter's advisory lock, the queue's row, group rows, job rows; all but enqueue skip what is
-- locked. Meant to be called in a transaction of their own, or (ack, nack) at the end of the caller's: what they lock, they
-- lock until the commit, and for a receive that is also the adoption of the queue.

-- A temporary table of the caller's must not stand in for one of these.
select set_config('search_path', current_setting('search_path') || ', pg_temp', true);
alter function looks_idle(text, text) set search_path from current;

create type received as (
  receipt text,                                -- shown to ack, nack and extend
  id bigint,                                   -- the order of a group is the order of its ids
  group_id text,
  attempt integer,                             -- from 1
  data jsonb,
  payload bytea,
  content_type text,
  name text,
  reference text,
  enqueued_at timestamptz,
  visible_until timestamptz                    -- from then on it may be received again, unless extended
);

-- What is wrong with what a caller gave.

create function check_name(field text, given text, most integer) returns void
language plpgsql immutable
as $$
begin
  if given = '' then
    raise exception 'the % is empty', field using errcode = '22023', hint = 'Give it at least one character.';
  elsif char_length(given) > most then
    raise exception 'the % has % characters, at most % are allowed', field, char_length(given), most
      using errcode = '22023', hint = 'Shorten it, or use a hash of it.';
  elsif given ~ '[\u0001-\u001f\u007f-\u009f]' then
    raise exception 'the % has a control character', field using errcode = '22023', hint = 'Remove or escape it.';
  end if;
end $$;

create function check_queue(given text) returns void
language plpgsql immutable
as $$
begin
  if given is null then
    raise exception 'the queue is null' using errcode = '22023', hint = 'Name the queue.';
  end if;
  perform check_name('queue', given, 200);
end $$;

create function check_isolation(what text) returns void
language plpgsql stable
as $$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception '% needs READ COMMITTED, this transaction is %', what, upper(current_setting('transaction_isolation'))
      using errcode = '0A000', hint = 'Begin it with BEGIN ISOLATION LEVEL READ COMMITTED.';
  end if;
end $$;

create function check_visibility(given interval) returns void
language plpgsql immutable
as $$
begin
  if given is null or given < interval '0' or given > interval '12 hours' then
    raise exception 'the visibility is %, it must be from 0 to 12 hours', coalesce(given::text, 'null')
      using errcode = '22023', hint = 'Choose a shorter one, and extend it while the work goes on.';
  end if;
end $$;

create function parse_receipt(receipt text, out job bigint, out token uuid)
language plpgsql immutable
as $$
begin
  if receipt is null or receipt !~ '^[0-9]{1,18}\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
    raise exception 'this is not a receipt: %', coalesce(quote_literal(left(receipt, 80)), 'null')
      using errcode = '22023', hint = 'Pass the receipt as receive() returned it.';
  end if;
  job := split_part(receipt, '.', 1);
  token := split_part(receipt, '.', 2);
end $$;

-- The history of attempts with one more, cut to the last 20.
create function history_with(so_far jsonb, attempt integer, started_at timestamptz, kind text, message text) returns jsonb
language sql volatile
as $$
  select case when jsonb_array_length(so_far) >= 20 then so_far - 0 else so_far end
    || jsonb_build_array(jsonb_build_object('attempt', attempt, 'started_at', started_at,
      'finished_at', clock_timestamp(), 'kind', kind, 'message', message))
$$;

-- The producer's side. One insert, which locks and waits for nothing, at any isolation level; with a deduplication id it
-- waits for an open transaction that has the same one. Usable from triggers.
-- Without `run_at` and `delay`, the queue's delay counts. A duplicate inserts nothing and gives the first job's id.
create function enqueue(
  queue text, data jsonb, group_id text default null, delay interval default null, run_at timestamptz default null,
  name text default null, reference text default null, priority integer default 0, expires_at timestamptz default null,
  max_attempts integer default null, dedup_id text default null, payload bytea default null,
  content_type text default null
) returns table (id bigint, duplicate boolean)
language plpgsql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
  of_queue constant text := queue;
  of_group constant text := group_id;
  its_data constant jsonb := data;
  its_payload constant bytea := payload;
  expiry constant timestamptz := expires_at;
  its_priority constant integer := coalesce(priority, 0);
  due_at timestamptz := run_at;
  once text := dedup_id;
  first_job bigint;
  setting queue;
begin
  perform check_queue(of_queue);
  perform check_name('group', of_group, 400);
  perform check_name('name', enqueue.name, 200);
  perform check_name('reference', enqueue.reference, 400);
  perform check_name('deduplication id', once, 128);
  perform check_name('content type', enqueue.content_type, 200);
  if (its_data is null) = (its_payload is null) or (enqueue.content_type is not null and its_payload is null) then
    raise exception 'a job has data or a payload, and a content type only with a payload'
      using errcode = '22023', hint = 'Pass data as JSON, or null and the payload as bytes.';
  elsif its_priority not between 0 and 9 then
    raise exception 'the priority is %, it must be from 0 to 9', its_priority
      using errcode = '22023', hint = 'Higher is sooner.';
  elsif enqueue.max_attempts < 1 then
    raise exception 'max_attempts is %, it must be 1 or more', enqueue.max_attempts
      using errcode = '22023', hint = 'Leave it out for the default of the queue.';
  elsif delay < interval '0' or delay > interval '100 years' then
    raise exception 'the delay is %, it must be from 0 to 100 years', delay
      using errcode = '22023', hint = 'Pass null for the delay of the queue.';
  elsif delay is not null and due_at is not null then
    raise exception 'both delay and run_at are given' using errcode = '22023', hint = 'Pass one of them.';
  elsif not isfinite(due_at) or extract(year from due_at) not between 1 and 9999 then
    raise exception 'run_at is %, it must be in the years 1 to 9999', due_at
      using errcode = '22023', hint = 'Pass null for at once.';
  end if;

  select s.* into setting from queue s where s.name = of_queue;
  due_at := coalesce(due_at, clock_timestamp() + coalesce(delay, make_interval(secs => setting.delay_ms / 1000.0)), now());
  id := nextval('job_id_seq');
  duplicate := false;
  if once is null and setting.dedup_by_content then
    once := encode(sha256(coalesce(its_payload, convert_to(its_data::text, 'UTF8'))), 'hex');
  end if;
  if once is not null then
    insert into dedup as d (queue, scope, dedup_id, job_id, expires_at)
    values (of_queue, case when setting.dedup_scope = 'group' then coalesce(of_group, '') else '' end, once,
      enqueue.id, clock_timestamp() + make_interval(secs => coalesce(setting.dedup_window_ms, 300000) / 1000.0))
    on conflict (queue, scope, dedup_id) do update set
      job_id = case when d.expires_at <= clock_timestamp() then excluded.job_id else d.job_id end,
      expires_at = case when d.expires_at <= clock_timestamp() then excluded.expires_at else d.expires_at end
    returning d.job_id into first_job;
    if first_job <> enqueue.id then
      id := first_job;
      duplicate := true;
      return next;
      return;
    end if;
  end if;

  insert into job (id, queue, group_id, flagged, data, payload, content_type, name, reference, priority, expires_at,
    max_attempts, dedup_id, run_at, turn_at)
  values (enqueue.id, of_queue, of_group, of_group is not null, its_data, its_payload, enqueue.content_type, enqueue.name,
    enqueue.reference, its_priority, expiry, enqueue.max_attempts, once, due_at,
    case when due_at <= clock_timestamp() then due_at - its_priority * interval '10 s' else least(due_at, expiry) end);
  if due_at <= clock_timestamp() and looks_idle(of_queue, of_group) then
    perform pg_notify(current_schema() || '.wake', of_queue);
  end if;
  return next;
end $$;

-- What follows is called by receive, ack, nack and extend, with their settings.

-- Adopts as the workers do (src/store/adopt.rs says why each flag may go). With `of_group`, only that group's flags.
create function pull_adopt(of_queue text, of_group text) returns void
language plpgsql volatile
as $$
declare
  after_at timestamptz := '-infinity';
  after_id bigint := 0;
  ids bigint[]; groups text[]; ats timestamptz[];
  flags jsonb;
  safe jsonb; more jsonb;
  skipped text[] := '{}';
  kept text[];
begin
  -- One adopter per queue: another's uncommitted insert of the same row would be waited for.
  if (select j.run_at from job j where j.queue = of_queue and j.flagged order by j.run_at limit 1) is null
    or not pg_try_advisory_xact_lock(hashtextextended('seriatim adopt ' || current_schema() || ' ' || of_queue, 0))
  then
    return;
  end if;
  for page in 1..16 loop
    if of_group is null then
      select array_agg(f.id order by f.run_at, f.id), array_agg(f.group_id order by f.run_at, f.id),
        array_agg(f.run_at order by f.run_at, f.id) into ids, groups, ats
      from (select j.id, j.group_id, j.run_at from job j
        where j.queue = of_queue and j.flagged and (j.run_at, j.id) > (after_at, after_id) and j.group_id <> all (skipped)
        order by j.run_at, j.id limit 256 for no key update skip locked) f;
    else
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.run_at) into ids, groups, ats
      from (select j.id, j.group_id, j.run_at from job j
        where j.queue = of_queue and j.group_id = of_group and j.flagged
        order by j.id limit 256 for no key update skip locked) f;
    end if;
    exit when ids is null;
    after_at := ats[cardinality(ats)];
    after_id := ids[cardinality(ids)];
    select jsonb_object_agg(f.name, f.first) into flags
    from (select f.name, min(f.id) as first from unnest(groups, ids) f(name, id) group by f.name) f;

    -- Free rows: locked, and woken unless halted. Every flag may go.
    with flag as materialized (
      select of_queue as queue, f.key as group_id, f.value::text::bigint as first_id from jsonb_each(flags) f),
    free as materialized (
      select g.queue, g.group_id, flag.first_id from flag join lateral (
        select g.queue, g.group_id from queue_group g
        where g.queue = flag.queue and g.group_id = flag.group_id and g.claim is null
        limit 1 for no key update skip locked) g on true),
    woken as (
      update queue_group g set
        ready_at = case when g.halted_at is null then least(g.ready_at, clock_timestamp() - interval '10 s' * coalesce((
          select h.priority from job h where h.queue = free.queue and h.group_id = free.group_id
            and h.status in ('queued', 'started') and h.id >= least(g.head_id, free.first_id)
          order by h.id limit 1), 0)) else g.ready_at end,
        head_id = least(g.head_id, free.first_id), boost = 0
      from free where g.queue = free.queue and g.group_id = free.group_id
        and (g.halted_at is null and g.ready_at > clock_timestamp() or g.head_id > free.first_id))
    select coalesce(jsonb_object_agg(free.group_id, 0), '{}') into safe from free;

    -- Claimed rows: shared with whoever has the group. An id below head_id keeps its flag: nothing else brings it in.
    with flag as materialized (select of_queue as queue, f.key as group_id from jsonb_each(flags) f)
    select coalesce(jsonb_object_agg(g.group_id, g.head_id), '{}') into more from flag join lateral (
      select g.group_id, g.head_id from queue_group g
      where g.queue = flag.queue and g.group_id = flag.group_id and g.claim is not null
      limit 1 for key share skip locked) g on true;
    safe := more || safe;

    -- No rows. Only what was inserted counts: a conflict is no proof that the row stays.
    with flag as materialized (
      select of_queue as queue, f.key as group_id, f.value::text::bigint as first_id from jsonb_each(flags) f
      where not safe ? f.key),
    inserted as (
      insert into queue_group (queue, group_id, ready_at, head_id)
      select flag.queue, flag.group_id,
        clock_timestamp() - interval '10 s' * coalesce((select j.priority from job j where j.id = flag.first_id), 0),
        flag.first_id
      from flag
      where (select g.group_id from queue_group g where g.queue = flag.queue and g.group_id = flag.group_id limit 1) is null
      on conflict do nothing returning queue_group.group_id)
    select coalesce(jsonb_object_agg(inserted.group_id, 0), '{}') into more from inserted;
    safe := safe || more;

    update job j set flagged = false
    where j.flagged and j.id = any (array(
      select f.id from unnest(groups, ids) f(name, id) where f.id >= (safe ->> f.name)::bigint));
    kept := array(select distinct f.name from unnest(groups, ids) f(name, id)
      where not coalesce(f.id >= (safe ->> f.name)::bigint, false));
    exit when of_group is not null or cardinality(ids) < 256 or kept = '{}';
    skipped := skipped || kept;
  end loop;
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

-- Queues the started jobs of a batch again from `first` to `last`: they were not begun, so nothing is held against them.
create function pull_return(of_queue text, of_group text, first bigint, last bigint) returns void
language sql volatile
as $$
  update job j set status = 'queued', attempts_forgiven = j.attempts_forgiven + 1,
    history = history_with(j.history, j.attempts, j.last_started_at, 'released', null)
  from (select b.id from job b where b.queue = of_queue and b.group_id = of_group
      and b.status in ('queued', 'started') and b.status = 'started' and b.id between first and last
    for no key update skip locked) behind
  where j.id = behind.id and j.status = 'started'
$$;

-- The lowest unfinished job of a free, locked group: from head_id on, or from its lowest flag on.
create function pull_head(of_queue text, of_group text, from_id bigint) returns bigint
language sql volatile
as $$
  select least(
    (select j.id from job j where j.queue = of_queue and j.group_id = of_group and j.status in ('queued', 'started')
      and j.id >= from_id order by j.id limit 1),
    (select j.id from job j where j.queue = of_queue and j.group_id = of_group and j.status in ('queued', 'started')
      and j.id >= (select min(f.id) from job f where f.queue = of_queue and f.group_id = of_group and f.flagged)
      order by j.id limit 1))
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
    turn.job_id := coalesce((select j.id from job j where j.queue = turn.queue and j.group_id = turn.group_id
      and j.status in ('queued', 'started') and j.status = 'started' and j.id between turn.job_id and turn.batch_end
      order by j.id limit 1), turn.job_id);
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
-- A job that was tried before is received alone: it may be what killed its receiver, and the next death must be counted to
-- the right job.
create function pull_batch(of_queue text, of_group text, first bigint, most integer, most_attempts integer) returns bigint[]
language plpgsql volatile
as $$
declare
  next_id bigint;
  next job;
  batch bigint[] := '{}';
begin
  if (select j.attempts - j.attempts_forgiven from job j where j.id = first) > 1 then
    return batch;
  end if;
  for next_id in
    select j.id from job j where j.queue = of_queue and j.group_id = of_group and j.status in ('queued', 'started')
      and j.id > first order by j.id limit most
  loop
    select j.* into next from job j where j.id = next_id and j.status = 'queued' for no key update skip locked;
    exit when not found or next.run_at > clock_timestamp() or pull_refusal(next, most_attempts) is not null;
    exit when next.attempts > next.attempts_forgiven;
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
  where j.id = due.id;
  -- Those with a priority get their head start when they become due.
  update job j set turn_at = j.run_at - j.priority * interval '10 s'
  from (select d.id from job d where d.queue = of_queue and d.group_id is null and d.status = 'queued'
      and d.priority > 0 and d.turn_at = d.run_at and d.turn_at <= at
    order by d.turn_at limit 256 for no key update skip locked) due
  where j.id = due.id;
  lapsed := array(select d.id from job d where d.queue = of_queue and d.group_id is null and d.status = 'started'
      and d.lease_until <= at and d.suspect = d.claim
    order by d.lease_until limit most for no key update skip locked);
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

-- Locks what a receipt speaks of: the group's row by its token, then the job's. Skipped is not lost: only a plain read that
-- shows another token says stale. `state`: held, stale or busy (somebody has had a row for half a second).
create function pull_hold(of_job bigint, token uuid, out state text, out of_queue text, out of_group text)
language plpgsql volatile
as $$
begin
  for tries in 1..100 loop
    select j.queue, j.group_id into of_queue, of_group from job j where j.id = of_job;
    if of_group is null then
      perform from job j where j.id = of_job and j.claim = token and j.status = 'started' for no key update skip locked;
      if found then
        state := 'held';
        return;
      end if;
      perform from job j where j.id = of_job and j.claim = token and j.status = 'started';
    else
      perform from queue_group g where g.queue = of_queue and g.group_id = of_group and g.claim = token
        and of_job between g.job_id and coalesce(g.batch_end, g.job_id) for no key update skip locked;
      if found then
        perform from job j where j.id = of_job and j.status = 'started' for no key update skip locked;
        if found then
          state := 'held';
          return;
        end if;
      end if;
      perform from queue_group g join job j on j.id = of_job and j.status = 'started'
      where g.queue = of_queue and g.group_id = of_group and g.claim = token
        and of_job between g.job_id and coalesce(g.batch_end, g.job_id);
    end if;
    if not found then
      state := 'stale';
      return;
    end if;
    perform pg_sleep(0.005);
  end loop;
  state := 'busy';
exception when lock_not_available then
  state := 'busy';
end $$;

-- What is left of a claim when one of its jobs has ended or went back: fewer jobs, or nothing, and the turn is passed on.
-- The group's row is locked.
create function pull_pass(of_queue text, of_group text) returns void
language plpgsql volatile
as $$
declare
  turn queue_group;
  left_first bigint;
  left_last bigint;
  left_count bigint;
begin
  select g.* into turn from queue_group g where g.queue = of_queue and g.group_id = of_group;
  select min(j.id), max(j.id), count(*) into left_first, left_last, left_count from job j
  where j.queue = of_queue and j.group_id = of_group and j.status in ('queued', 'started') and j.status = 'started'
    and j.id between turn.job_id and coalesce(turn.batch_end, turn.job_id);
  if left_count = 0 then
    perform pull_free(of_queue, of_group, clock_timestamp());
  else
    update queue_group g set job_id = left_first, batch_end = left_last, batch_size = left_count
    where g.queue = of_queue and g.group_id = of_group;
  end if;
end $$;

-- Receives up to `n` jobs (at most 1000; of one named group at most 10): the heads of the groups served least recently,
-- and jobs without a group. If that is fewer than `n`, further jobs of the same groups, in order, up to 10 of a group; a
-- job that was tried before comes alone.
-- Nobody else gets these jobs, nor others of their groups, until each is acked or nacked, or `visibility` (0 to 12 h) is
-- over by 1.75 s. Nothing there: no rows.
-- A call that repeats an `attempt_id` within 5 minutes gets the same jobs with the same receipts, for the whole visibility
-- again, as far as their claims still stand; if none does, it is a new receive.
create function receive(
  queue text, n integer default 1, visibility interval default '30 s', group_id text default null,
  attempt_id text default null
) returns setof received
language plpgsql volatile
set search_path from current
set lock_timeout = '100ms'
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
#variable_conflict use_column
declare
  of_queue constant text := queue;
  of_group constant text := group_id;
  of_attempt constant text := attempt_id;
  most constant integer := case when group_id is null then 1000 else 10 end;
  jobs bigint[] := '{}';
  tokens uuid[];
  earlier receive_attempt;
begin
  perform check_isolation('receive');
  perform check_queue(of_queue);
  perform check_name('group', of_group, 400);
  perform check_name('receive attempt id', of_attempt, 128);
  perform check_visibility(visibility);
  if n is null or n < 1 or n > most then
    raise exception 'n is %, it must be from 1 to %', coalesce(n::text, 'null'), most
      using errcode = '22023', hint = 'Receive again for more.';
  end if;
  -- An attempt must not be forgotten by a crash of the server.
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;

  if of_attempt is not null then
    -- The same call at the same time: that one answers.
    if not pg_try_advisory_xact_lock(hashtextextended(
      'seriatim receive ' || current_schema() || ' ' || of_queue || ' ' || of_attempt, 0))
    then
      return;
    end if;
    delete from receive_attempt a where a.ctid in (
      select a.ctid from receive_attempt a where a.expires_at <= clock_timestamp() order by a.expires_at limit 20
      for update skip locked);
    select a.* into earlier from receive_attempt a
    where a.queue = of_queue and a.attempt_id = of_attempt and a.expires_at > clock_timestamp();
    for i in 1..coalesce(cardinality(earlier.jobs), 0) loop
      if extend(earlier.jobs[i] || '.' || earlier.tokens[i], visibility) = 'done' then
        jobs := jobs || earlier.jobs[i];
      end if;
    end loop;
  end if;

  if jobs = '{}' then
    begin
      jobs := pull_claim(of_queue, n, visibility, of_group);
    exception when lock_not_available then
      -- A statement was about to wait for somebody's transaction. What it had locked is free for others.
      return;
    end;
  end if;
  tokens := array(
    select coalesce(j.claim, g.claim) from unnest(jobs) with ordinality r(id, place) join job j on j.id = r.id
      left join queue_group g on g.queue = j.queue and g.group_id = j.group_id
    order by r.place);
  if of_attempt is not null and earlier.jobs is distinct from jobs then
    insert into receive_attempt as a (queue, attempt_id, jobs, tokens, expires_at)
    select of_queue, of_attempt, jobs, tokens, clock_timestamp() + interval '5 min' where jobs <> '{}'
    on conflict (queue, attempt_id) do update
    set jobs = excluded.jobs, tokens = excluded.tokens, expires_at = excluded.expires_at;
  end if;
  return query
    select r.id || '.' || r.token, j.id, j.group_id, j.attempts, j.data, j.payload, j.content_type, j.name, j.reference,
      j.created_at, coalesce(j.lease_until, g.ready_at)
    from unnest(jobs, tokens) with ordinality r(id, token, place) join job j on j.id = r.id
      left join queue_group g on g.queue = j.queue and g.group_id = j.group_id
    order by r.place;
end $$;

-- Claims for a receive; the ids in the order of the answer.
create function pull_claim(of_queue text, n integer, visibility interval, of_group text) returns bigint[]
language plpgsql volatile
as $$
declare
  setting queue;
  room bigint := n;                            -- how many jobs may be in flight that are not yet
  most_attempts integer;
  clock_at timestamptz;
  until timestamptz;
  at timestamptz;
  turns queue_group[];
  turn queue_group;
  done record;
  heads bigint[] := '{}';                      -- of groups
  groups text[] := '{}';
  batch bigint[];
  jobs bigint[] := '{}';
  loose_first constant boolean := random() < 0.5;
  again boolean;
begin
  select s.* into setting from queue s where s.name = of_queue;
  if setting.in_flight_limit is not null then
    -- The count below is true for whoever has this row until the commit.
    for tries in 1..20 loop
      select s.* into setting from queue s where s.name = of_queue for no key update skip locked;
      exit when found;
      perform pg_sleep(0.005);
    end loop;
    if setting.name is null then
      return jobs;
    end if;
    if setting.in_flight_limit is not null then
      room := setting.in_flight_limit
        - (select coalesce(sum(g.batch_size), 0) from queue_group g where g.queue = of_queue and g.job_id is not null)
        - (select count(*) from job j where j.queue = of_queue and j.group_id is null and j.status = 'started');
    end if;
  end if;
  if setting.paused_at is not null then
    return jobs;
  end if;
  most_attempts := coalesce(setting.max_attempts, 10);
  perform pull_adopt(of_queue, of_group);
  clock_at := clock_timestamp();
  until := clock_at + visibility;
  if of_group is null and loose_first then
    jobs := pull_loose(of_queue, n, room, until, most_attempts);
    room := room - cardinality(jobs);
  end if;

  -- Groups that slept get the head start of their priority when they become due.
  update queue_group g set ready_at = g.ready_at - g.boost * interval '10 s', boost = 0
  from (select d.queue, d.group_id from queue_group d
    where d.queue = of_queue and d.boost > 0 and d.ready_at < 'infinity' and d.ready_at <= clock_at
    order by d.ready_at limit 64 for no key update skip locked) due
  where g.queue = due.queue and g.group_id = due.group_id and g.boost > 0;

  -- Turns that start nothing (sleepers, doubts) are made up for, within bounds.
  for round in 1..20 loop
    exit when cardinality(jobs) + cardinality(heads) >= n;
    at := clock_timestamp();
    if of_group is not null then
      select array_agg(t.turn) into turns from (
        select g as turn from queue_group g
        where g.queue = of_queue and g.group_id = of_group and g.ready_at <= at and g.ready_at < 'infinity'
          and (room > 0 or g.job_id is not null)
        for no key update of g skip locked) t;
    elsif room > 0 then
      select array_agg(t.turn order by t.ready_at) into turns from (
        select g as turn, g.ready_at from queue_group g
        where g.queue = of_queue and g.ready_at <= at and g.ready_at < 'infinity'
        order by g.ready_at limit least(n - cardinality(jobs) - cardinality(heads), room)
        for no key update of g skip locked) t;
    else
      -- At the limit, a claim whose receiver is gone can still be taken over.
      select array_agg(t.turn) into turns from (
        select g as turn from queue_group g
        where g.queue = of_queue and g.job_id is not null and g.ready_at <= at
        order by g.queue, g.claimed_by limit n - cardinality(jobs) - cardinality(heads)
        for no key update of g skip locked) t;
    end if;
    exit when turns is null;
    again := false;
    foreach turn in array turns loop
      select * into done from pull_turn(turn, until, most_attempts);
      again := again or done.again;
      if done.job is not null then
        heads := heads || done.job;
        groups := groups || turn.group_id;
        -- What is taken over was in flight before; those behind it went back.
        room := room - 1 + case when turn.claim is null then 0 else turn.batch_size end;
      elsif turn.claim is not null and done.again then
        room := room + turn.batch_size;
      end if;
    end loop;
    exit when of_group is not null and not again;
  end loop;

  if of_group is null and not loose_first then
    jobs := pull_loose(of_queue, n - cardinality(heads), room, until, most_attempts);
    room := room - cardinality(jobs);
  end if;
  for i in 1..cardinality(heads) loop
    jobs := jobs || heads[i];
    if least(n - cardinality(jobs) - (cardinality(heads) - i), room) > 0 then
      batch := pull_batch(of_queue, groups[i], heads[i],
        least(n - cardinality(jobs) - (cardinality(heads) - i), room, 9)::integer, most_attempts);
      jobs := jobs || batch;
      room := room - cardinality(batch);
    end if;
  end loop;
  return jobs;
end $$;

-- The job is done: it ends as succeeded, with `result`. In the caller's transaction it commits together with what the
-- caller wrote there: exactly once, if the caller rolls back when told 'stale'.
-- 'done'; 'stale': the claim is not the receipt's any more (its visibility was over and somebody else has the job, it was
-- acked or nacked already, or is gone), and nothing was changed; 'busy': somebody has the rows for a moment, try again.
-- The jobs of a group that were received together may be acked in any order.
create function ack(receipt text, result jsonb default null) returns text
language plpgsql volatile
set search_path from current
set lock_timeout = '100ms'
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
#variable_conflict use_column
declare
  shown record;
  held record;
begin
  perform check_isolation('ack');
  select * into shown from parse_receipt(receipt);
  select * into held from pull_hold(shown.job, shown.token);
  if held.state <> 'held' then
    return held.state;
  end if;
  update job j set status = 'succeeded', finished_at = clock_timestamp(), result = ack.result, error = null,
    claim = null, lease_until = null, suspect = null, claimed_by = null
  where j.id = shown.job;
  if held.of_group is not null then
    perform pull_pass(held.of_queue, held.of_group);
  end if;
  return 'done';
end $$;

-- The job was not done: it goes back to its place and is due after `delay`; its group waits for it. Those behind it that
-- were received with it go back too, with nothing held against them, and their receipts become stale. Out of attempts, it
-- ends as failed, and the group does what its setting says. Returns as ack does.
create function nack(receipt text, delay interval default '0', error text default null) returns text
language plpgsql volatile
set search_path from current
set lock_timeout = '100ms'
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
#variable_conflict use_column
declare
  wait constant interval := coalesce(delay, interval '0');
  message constant text := coalesce(error, 'given back by its receiver');
  shown record;
  held record;
  j job;
  turn queue_group;
  most_attempts integer;
begin
  perform check_isolation('nack');
  select * into shown from parse_receipt(receipt);
  if wait < interval '0' or wait > interval '100 years' then
    raise exception 'the delay is %, it must be from 0 to 100 years', wait
      using errcode = '22023', hint = 'Leave it out for at once.';
  end if;
  select * into held from pull_hold(shown.job, shown.token);
  if held.state <> 'held' then
    return held.state;
  end if;
  select x.* into j from job x where x.id = shown.job;
  if held.of_group is not null then
    select g.* into turn from queue_group g where g.queue = held.of_queue and g.group_id = held.of_group;
    perform pull_return(held.of_queue, held.of_group, j.id + 1, turn.batch_end);
  end if;
  most_attempts := coalesce(j.max_attempts, (select q.max_attempts from queue q where q.name = j.queue), 10);
  if exists (select from cancel_request r where r.job_id = j.id) then
    perform pull_refuse(j, 'cancelled');
  elsif j.attempts - j.attempts_forgiven < most_attempts then
    update job set status = 'queued', run_at = clock_timestamp() + wait,
      turn_at = case when wait = interval '0' then clock_timestamp() - job.priority * interval '10 s'
        else least(clock_timestamp() + wait, job.expires_at) end,
      claim = null, lease_until = null, suspect = null, claimed_by = null,
      error = jsonb_build_object('kind', 'error', 'message', message, 'chain', '[]'::jsonb, 'attempt', j.attempts),
      history = history_with(job.history, j.attempts, j.last_started_at, 'error', message)
    where job.id = j.id;
  else
    perform pull_end(j.id, 'failed', 'error', message);
    if held.of_group is not null then
      -- A group is halted as a whole: what came before and is not acked yet goes back.
      if (select s.out_of_attempts from group_setting s where s.queue = j.queue and s.group_id = j.group_id) <> 'continue' then
        perform pull_return(held.of_queue, held.of_group, turn.job_id, j.id - 1);
      end if;
      if pull_dead_letter(held.of_queue, held.of_group, j.id, message) then
        return 'done';
      end if;
    end if;
  end if;
  if held.of_group is not null then
    perform pull_pass(held.of_queue, held.of_group);
  end if;
  return 'done';
end $$;

-- Gives the claim `visibility` (0 to 12 h) from now on, instead of what is left of it. Jobs of a group that were received
-- together have one claim: it is extended for all of them. Returns as ack does.
create function extend(receipt text, visibility interval) returns text
language plpgsql volatile
set search_path from current
set lock_timeout = '100ms'
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
declare
  shown record;
  held record;
begin
  perform check_isolation('extend');
  select * into shown from parse_receipt(receipt);
  perform check_visibility(visibility);
  select * into held from pull_hold(shown.job, shown.token);
  if held.state <> 'held' then
    return held.state;
  end if;
  if held.of_group is null then
    update job j set lease_until = clock_timestamp() + visibility, suspect = null where j.id = shown.job;
  else
    update queue_group g set ready_at = clock_timestamp() + visibility, suspect = null
    where g.queue = held.of_queue and g.group_id = held.of_group;
  end if;
  return 'done';
end $$;

select set_config('search_path', regexp_replace(current_setting('search_path'), ', pg_temp$', ''), true);
