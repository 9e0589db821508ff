-- Adopts as the workers do: all flags that are due, or those of one group.
create or replace function receive_adopt(of_queue text, of_group text) returns void
language plpgsql volatile
as $$
begin
  -- One adopter per queue: two would give a group two rows.
  if (select j.id from job j
      where j.queue = of_queue and j.flagged and {flag_due_at} <= now()
      order by {flag_due_at} limit 1) is not null
    and pg_try_advisory_xact_lock(hashtextextended('seriatim adopt ' || current_schema() || ' ' || of_queue, 0))
  then
    perform adopt(of_queue, of_group, 256, '-infinity');
  end if;
end $$;

-- Claims for a receive. Returns the ids in the order of the answer.
--
-- A receive is a claim. Its token is in every receipt, and its visibility is its lease: `ready_at`
-- of the group, or `lease_until` of a job without one. Several jobs of a group that are received
-- together have one claim, from `job_id` to `batch_end`; `batch_size` of them are still started.
-- `claimed_by` is null: no presence vouches for a receiver.
--
-- Lock first, then read in a new statement: each statement has a snapshot of its own, under READ
-- COMMITTED. Lock order: the queue's row, the adopter's advisory lock, group rows, job rows. All
-- skip what is locked.
create or replace function receive_claim(of_queue text, n integer, visibility interval, of_group text) returns bigint[]
language plpgsql volatile
as $$
declare
  setting queue;
  room bigint := n;                            -- how many jobs may be in flight that are not yet
  attempt_limit integer;
  clock_at timestamptz;
  until timestamptz;
  at timestamptz;
  turns queue_group[];
  turn queue_group;
  done record;
  heads bigint[] := '{}';                      -- of groups
  groups text[] := '{}';
  taken_over boolean[] := '{}';
  batch bigint[];
  jobs bigint[] := '{}';
  ungrouped_first constant boolean := random() < 0.5;
  more_due boolean;
begin
  select s.* into setting from queue s where s.name = of_queue;
  if setting.in_flight_limit is not null then
    -- The count below stays true for the transaction that has this row, until its commit.
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
  attempt_limit := coalesce(setting.max_attempts, {receiver_attempts});
  perform receive_adopt(of_queue, of_group);
  clock_at := clock_timestamp();
  until := clock_at + visibility;
  if of_group is null and ungrouped_first then
    jobs := receive_ungrouped(of_queue, n, room, until, attempt_limit);
    room := room - cardinality(jobs);
  end if;

  -- Groups that slept get the head start of their priority when they become due.
  update queue_group g set ready_at = g.ready_at - g.aging_priority * {priority_aging}, aging_priority = 0
  from (select d.queue, d.group_id from queue_group d
    where d.queue = of_queue and d.aging_priority > 0 and d.ready_at <= clock_at
    order by d.ready_at limit 64 for no key update skip locked) due
  where g.queue = any (array[due.queue]) and g.group_id between due.group_id and due.group_id;

  -- Turns that start nothing (sleepers, suspicions) are made up for, within bounds.
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
    more_due := false;
    foreach turn in array turns loop
      select * into done from receive_turn(turn, until, attempt_limit);
      more_due := more_due or done.more_due;
      if done.job is not null then
        heads := heads || done.job;
        groups := groups || turn.group_id;
        taken_over := taken_over || (turn.claim is not null);
        -- A job that is taken over was in flight before; those behind it went back.
        room := room - 1 + case when turn.claim is null then 0 else turn.batch_size end;
      elsif turn.claim is not null and done.more_due then
        room := room + turn.batch_size;
      end if;
    end loop;
    exit when of_group is not null and not more_due;
  end loop;

  if of_group is null and not ungrouped_first then
    jobs := receive_ungrouped(of_queue, n - cardinality(heads), room, until, attempt_limit);
    room := room - cardinality(jobs);
  end if;
  for i in 1..cardinality(heads) loop
    jobs := jobs || heads[i];
    if not taken_over[i] and least(n - cardinality(jobs) - (cardinality(heads) - i), room) > 0 then
      batch := receive_batch(of_queue, groups[i], heads[i],
        least(n - cardinality(jobs) - (cardinality(heads) - i), room, 9)::integer, attempt_limit);
      jobs := jobs || batch;
      room := room - cardinality(batch);
    end if;
  end loop;
  return jobs;
end $$;

-- Receives up to `n` jobs (at most 1000; of one named group at most 10): the heads of the groups
-- served least recently, and jobs without a group. If that is fewer than `n`, further jobs of the
-- same groups follow, in order, up to 10 of a group. A job that is taken over comes alone, so that
-- the next death is charged to the right one. No rows if nothing is there.
--
-- No other receiver or worker gets these jobs, nor others of their groups, until each is acked or
-- nacked, or its `visibility` (0 to 12 h) has been over for a grace.
--
-- A call that repeats an `attempt_id` within 5 minutes gets the same jobs with the same receipts,
-- for the whole visibility again, as far as their claims still stand. If none does, it is a new
-- receive.
--
-- Call it in a transaction of its own: what it locks, the adoption of the queue too, it locks until
-- the commit.
create or replace function receive(
  queue text, n integer default 1, visibility interval default '30 s', group_id text default null,
  attempt_id text default null
) returns setof received
language plpgsql volatile
set search_path from current
set lock_timeout = {lock_timeout}
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
#variable_conflict use_column
declare
  of_queue constant text := queue;
  of_group constant text := group_id;
  of_attempt constant text := attempt_id;
  job_limit constant integer := case when group_id is null then 1000 else 10 end;
  jobs bigint[] := '{}';
  tokens uuid[];
  earlier receive_attempt;
begin
  perform check_isolation('receive');
  perform check_queue(of_queue);
  perform check_name('group', of_group, {group_limit});
  perform check_name('receive attempt id', of_attempt, {dedup_limit});
  perform check_visibility(visibility);
  if n is null or n < 1 or n > job_limit then
    raise exception 'n is %, it must be from 1 to %', coalesce(n::text, 'null'), job_limit
      using errcode = '22023', hint = 'Receive again for more.';
  end if;
  -- A crash of the server must not lose an attempt (P9).
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;

  if of_attempt is not null then
    -- If the same call runs at this moment, that one answers.
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
      jobs := receive_claim(of_queue, n, visibility, of_group);
    exception when lock_not_available then
      -- A statement was about to wait for another transaction. What it had locked is free again.
      return;
    end;
  end if;
  tokens := array(
    select coalesce(j.claim, g.claim) from unnest(jobs) with ordinality r(id, place)
      join job j on j.id = any (array[r.id])
      left join queue_group g on g.queue = any (array[j.queue]) and g.group_id between j.group_id and j.group_id
    order by r.place);
  if of_attempt is not null and earlier.jobs is distinct from jobs then
    insert into receive_attempt as a (queue, attempt_id, jobs, tokens, expires_at)
    select of_queue, of_attempt, jobs, tokens, clock_timestamp() + interval '5 min' where jobs <> '{}'
    on conflict (queue, attempt_id) do update
    set jobs = excluded.jobs, tokens = excluded.tokens, expires_at = excluded.expires_at;
  end if;
  return query
    select r.id || '.' || r.token, j.id, j.group_id, j.attempts, j.data, j.payload, j.content_type, j.name, j.reference,
      j.created_at, coalesce(j.lease_until, g.ready_at),
      -- As ActiveJob::key.
      j.id || '-' || (extract(epoch from j.created_at) * 1000000)::bigint
    from unnest(jobs, tokens) with ordinality r(id, token, place) join job j on j.id = any (array[r.id])
      left join queue_group g on g.queue = any (array[j.queue]) and g.group_id between j.group_id and j.group_id
    order by r.place;
end $$;
