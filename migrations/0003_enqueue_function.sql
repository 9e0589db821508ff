-- Enqueue for any language: a function that follows the same rules as the library's producers. Usable from triggers.

-- A temporary table of the caller's must not stand in for one of these.
select set_config('search_path', current_setting('search_path') || ', pg_temp', true);

-- Whether an enqueue should wake a worker: a hint, from a look that locks nothing. A group with a row is in line already,
-- and its worker will come to the job. One function for all groups of an enqueue, and for its jobs without a group.
--
-- A session that saw a burst of others, for whom somebody comes, relies on it for the rest of these 10 ms: a setting says which, and of
-- which queue, and is forgotten with what is rolled back. Whoever takes many jobs looks again 30 ms later. Both are asked often, so
-- they are such that they become part of their caller's statement.
do $make$
begin
  execute replace(replace($f$
create function {schema}.this_burst(of_queue text) returns text
language sql volatile
as $$
  select floor(date_part('epoch', clock_timestamp()) * 100)::bigint || ' ' || {job}::regclass::oid || ' ' || of_queue
$$;
-- Not where the transaction has taken a while: nobody may look any more when it commits.
create function {schema}.saw_burst(of_queue text) returns boolean
language sql volatile
as $$
  select current_setting('seriatim.burst', true) = {schema}.this_burst(of_queue)
    and clock_timestamp() < now() + interval '5 ms' and current_setting('transaction_isolation') <> 'serializable'
$$
$f$, '{schema}', quote_ident(current_schema())), '{job}', quote_literal(quote_ident(current_schema()) || '.job'));
end $make$;
create function looks_idle(of_queue text, of_groups text[], and_plain boolean) returns boolean
language plpgsql stable
set search_path from current
-- In a producer's session, a plan made while the tables were as good as empty would go on scanning them, and most queries would be
-- planned anew each time.
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  of_group text;
  at constant timestamptz := clock_timestamp();
  young constant boolean := at < now() + interval '5 ms';
begin
  -- There a look would be a dependency, by which producers abort each other (40001).
  if current_setting('transaction_isolation') = 'serializable' then
    return true;
  end if;
  if and_plain and not exists (
    select from job j
    where j.queue = of_queue and j.group_id is null and j.status = 'queued' and j.turn_at <= now())
  then
    return true;
  end if;
  if saw_burst(of_queue) then
    return false;
  end if;
  foreach of_group in array coalesce(of_groups, '{}') loop
    -- Null: a job without a group, which was looked for above.
    if of_group is not null
      -- From the end, where the live version of its row is; of those before it there may be many that vacuum is kept from.
      and (select g.group_id from queue_group g
        where g.queue = of_queue and g.group_id between of_group and of_group order by g.group_id desc limit 1) is null
    then
      -- Unless so many others, into groups that were idle too and due at once, have just woken somebody, who looks now, and again:
      -- whoever notifies waits for each other who does. Not where the transaction has taken a while: nobody may look any more
      -- when it commits.
      if not young or not exists (
        select from (
          select j.group_id, j.run_at, j.created_at from job j
          where j.queue = of_queue and j.flagged
            and case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end
              between at - interval '20 ms' and at
          order by case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end desc limit 32) fresh
        where fresh.run_at <= fresh.created_at
          and (select g.group_id from queue_group g
            where g.queue = of_queue and g.group_id between fresh.group_id and fresh.group_id
            order by g.group_id desc limit 1) is null
        offset 15 limit 1)
      then
        return true;
      end if;
      perform set_config('seriatim.burst', this_burst(of_queue), false);
      return false;
    end if;
  end loop;
  return false;
end $$;

-- Gives a deduplication id that is new, or whose window is over, to a job; whose it is. Waits for another open transaction with
-- the same id, and for nobody else.
create function claim_dedup_id(of_queue text, of_group text, once text, for_job bigint) returns bigint
language plpgsql volatile
set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  -- The window is judged by one instant, or a row could keep its job and get a new window.
  judged_at constant timestamptz := clock_timestamp();
  setting queue;
  first_job bigint;
begin
  select s.* into setting from queue s where s.name = of_queue;
  -- Hashed: with the longest queue and id, the longest group would not fit an index entry.
  insert into dedup as d (queue, scope, dedup_id, job_id, expires_at)
  values (of_queue, case when setting.dedup_scope = 'group' and of_group is not null
    then encode(sha256(convert_to(of_group, 'UTF8')), 'hex') else '' end, once,
    for_job, judged_at + make_interval(secs => coalesce(setting.dedup_window_ms, 300000) / 1000.0))
  on conflict (queue, scope, dedup_id) do update set
    job_id = case when d.expires_at <= judged_at then excluded.job_id else d.job_id end,
    expires_at = case when d.expires_at <= judged_at then excluded.expires_at else d.expires_at end
  returning d.job_id into first_job;
  return first_job;
end $$;

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
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
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
  wakes boolean;
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
  elsif not isfinite(expiry) or extract(year from expiry) not between 1 and 9999 then
    raise exception 'expires_at is %, it must be in the years 1 to 9999', expiry
      using errcode = '22023', hint = 'Pass null for never.';
  end if;

  select s.* into setting from queue s where s.name = of_queue;
  due_at := coalesce(due_at, clock_timestamp() + coalesce(delay, make_interval(secs => setting.delay_ms / 1000.0)), now());
  id := nextval('job_id_seq');
  duplicate := false;
  if once is null and setting.dedup_by_content then
    once := encode(sha256(coalesce(its_payload, convert_to(its_data::text, 'UTF8'))), 'hex');
  end if;
  if once is not null then
    first_job := claim_dedup_id(of_queue, of_group, once, enqueue.id);
    if first_job <> enqueue.id then
      id := first_job;
      duplicate := true;
      return next;
      return;
    end if;
  end if;

  -- Before the insert: behind it, a job without a group would be taken for others that wait.
  wakes := due_at <= clock_timestamp() and looks_idle(of_queue, array[of_group], of_group is null);
  insert into job (id, queue, group_id, flagged, data, payload, content_type, name, reference, priority, expires_at,
    max_attempts, dedup_id, run_at, turn_at)
  values (enqueue.id, of_queue, of_group, of_group is not null, its_data, its_payload, enqueue.content_type, enqueue.name,
    enqueue.reference, its_priority, expiry, enqueue.max_attempts, once, due_at,
    case when due_at <= clock_timestamp() then due_at - its_priority * interval '10 s' else least(due_at, expiry) end);
  if wakes then
    perform pg_notify(current_schema() || '.wake', of_queue);
  end if;
  return next;
end $$;

select set_config('search_path', regexp_replace(current_setting('search_path'), ', pg_temp$', ''), true);
