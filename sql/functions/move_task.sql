-- Move tasks: what waits in a queue, or in one group of it, is moved to another queue, or back to
-- where it came from, so many jobs a second. Jobs keep their ids, and so their order in a group.

-- Queues jobs again that receivers have had for longer than a strict visibility, at most 100 of
-- each kind: a task moves them, as a receive would take them over. So it does with dead letters
-- whose visibility has been over for a grace, strict or not, if the server has not just started.
-- The receive counts, and is forgiven.
--
-- Locks: the groups' rows, and jobs, NO KEY UPDATE, skips.
create or replace function return_lapsed(of_queue text) returns void
language plpgsql volatile set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  turn record;
begin
  for turn in
    select g.claim, g.job_id, g.batch from queue_group g
    where g.queue = of_queue and g.job_id is not null
      and ({over_g} or g.claimed_by is null and g.ready_at <= clock_timestamp() - {grace}
        and case when (select j.moved_from from job j where j.id = g.job_id) is not null
          then server_since() <= clock_timestamp() - {restart_grace} end)
    limit 100 for no key update skip locked
  loop
    perform end_attempt(u.id, 'released', 'released', null) from unfinished(turn.job_id, turn.batch) u;
    perform pass_turns(array[turn.claim], array[null::bigint]);
  end loop;
  update job j set status = 'queued', attempts_forgiven = j.attempts_forgiven + 1,
    run_at = clock_timestamp(), turn_at = clock_timestamp(), {free_job}
  where j.id in (
    select l.id from (
      select j.id from job j
      where j.queue = of_queue and j.group_id is null and j.status = 'started'
        and ({over_j} or j.claimed_by is null and j.lease_until <= clock_timestamp() - {grace}
          and case when j.moved_from is not null
            then server_since() <= clock_timestamp() - {restart_grace} end)
      limit 100 for no key update skip locked) l)
    and j.finished_at is null;
end $$;

-- Returns up to `n` queued jobs of a queue, or of one group of it: group by group, the lowest ids
-- of each first, then jobs without a group. So a limit never takes a job before an earlier one of
-- its group. Only groups behind `after` count, and jobs without one.
create or replace function waiting_jobs(of_queue text, of_group text, n integer, after text default null)
returns setof bigint
language sql stable set search_path from current set enable_seqscan = off set enable_bitmapscan = off as $$
  select w.id from (
    (select j.id from job j
      where j.queue = of_queue and j.group_id is not null and j.status in ('queued', 'started')
        and j.status = 'queued' and (of_group is null or j.group_id = of_group)
        and (after is null or j.group_id > after)
        and (select true from claim_of(j.queue, j.group_id, j.id) c) is null
      order by j.queue, j.group_id, j.id limit n)
    union all
    (select j.id from job j
      where j.queue = of_queue and j.group_id is null and j.status = 'queued' and of_group is null
      order by j.queue, j.turn_at, j.id limit n)) w
  limit n
$$;

-- Returns whether a task has anything left to move. Jobs in flight are left where they are.
create or replace function waits_for_move(from_queue text, to_queue text, of_group text) returns boolean
language sql stable set search_path from current set enable_seqscan = off set enable_bitmapscan = off as $$
  select case when to_queue is null then exists (
      select from job j where j.queue = from_queue and {waits_as_dead_letter}
        and (of_group is null or j.group_id = of_group))
    else exists (select from waiting_jobs(from_queue, of_group, 1)) end
$$;

-- Lets queued jobs of a group leave its queue, which this transaction has locked. The next one
-- behind the first of them that stays is flagged: their flags, which may have stood for it, are
-- gone. The group's row is woken, as it may sleep for one that goes.
--
-- Returns that next job (`stays`), if it is queued. `held`: that job or that row is locked (a
-- handler runs in its transaction, say); nothing was done.
--
-- Locks: the row of the group and the next job NO KEY UPDATE, skips.
create or replace function leave_group(of_queue text, of_group text, ids bigint[],
  out held boolean, out stays bigint)
language plpgsql volatile set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  next record; line tid[];
begin
  held := true;
  -- A claim that has the row may be letting it sleep for a job that goes.
  line := array(select g.ctid from queue_group g
    where g.queue = any (array[of_queue]) and g.group_id between of_group and of_group
    for no key update skip locked);
  if line = '{}' and exists (select from queue_group g
    where g.queue = any (array[of_queue]) and g.group_id between of_group and of_group)
  then
    return;
  end if;
  -- By a snapshot younger than the locks.
  select j.id, j.status into next from job j
  where j.queue = of_queue and (j.group_id, j.id) > (of_group, (select min(i) from unnest(ids) i))
    and j.group_id <= of_group and j.group_id is not null and j.status in ('queued', 'started')
    and j.id <> all (ids)
  order by j.group_id, j.id limit 1;
  if next.status = 'queued' and (select true from claim_of(of_queue, of_group, next.id) c) is null then
    begin
      perform from job j
      where j.id = next.id and j.queue = any (array[of_queue]) and j.status::text in ('queued')
      for no key update skip locked;
      if not found then
        return;
      end if;
      perform check_unclaimed(array[next.id]);
      update job j set flagged = true where j.id = next.id;
      stays := next.id;
    exception when sqlstate 'SQ001' then
      -- A claim has it since. Its end reads the group's heads.
    end;
  end if;
  held := false;
  update queue_group g set ready_at = least(g.ready_at, clock_timestamp())
  where g.ctid = any (line) and g.claim is null and g.halted_at is null;
end $$;

-- Moves up to `n` queued jobs of a queue, or of one group of it. Without `to_queue`, jobs that came
-- from another queue go back there. The jobs of a group are moved up to the first one that stays. A
-- group that is held (see leave_group) is left to the next call.
--
-- Returns how many it moved.
--
-- Locks: the jobs, then as leave_group.
create or replace function move_waiting(from_queue text, to_queue text, n integer, of_group text default null)
returns bigint
language plpgsql volatile set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  wanted bigint[]; part record; ids bigint[]; all_ids bigint[] := '{}'; held boolean; stays bigint;
  after text;
begin
  -- Groups that are held must not hide the others: each round begins behind those of the last one.
  for round in 1..100 loop
    if to_queue is null then
      wanted := array(
        select j.id from job j where j.queue = from_queue and {waits_as_dead_letter}
          and (of_group is null or j.group_id = of_group)
          and (after is null or j.group_id is null or j.group_id > after)
        order by j.queue, j.group_id, j.id limit n);
    else
      wanted := array(select w.id from waiting_jobs(from_queue, of_group, n, after) w(id));
    end if;
    for part in
      select l.group_id, array_agg(l.id) as ids from (
        select j.id, j.group_id from unnest(wanted) w(id) join job j on j.id = any (array[w.id])
        where j.queue = any (array[from_queue]) and j.status::text in ('queued')
          and (to_queue is not null or j.moved_from is not null)
        for no key update of j skip locked) l
      group by l.group_id
    loop
      ids := unclaimed(part.ids);
      if part.group_id is not null and ids <> '{}' then
        select l.held, l.stays into held, stays from leave_group(from_queue, part.group_id, ids) l;
        continue when held;
        ids := array(select i from unnest(ids) i where stays is null or i < stays);
      end if;
      all_ids := all_ids || ids;
    end loop;
    exit when all_ids <> '{}';
    after := (select max(j.group_id) from unnest(wanted) w(id) join job j on j.id = any (array[w.id]));
    exit when after is null;
  end loop;
  perform move_locked(all_ids, to_queue, null);
  return cardinality(all_ids);
end $$;

-- Starts a task that moves the waiting jobs of `from_queue` to `to_queue`. Without `to_queue`, each
-- job goes back to the queue that it came from as a dead letter, and jobs that came from none are
-- left. With `group_id` it moves the jobs of this group alone; with `n` it ends after so many jobs.
-- The task moves at most `per_second` jobs a second, over all servers; without that, it runs as
-- fast as it can. Maintenance carries it out. Refuses a second task for the same queue. Ten older
-- tasks of the queue are kept. Returns the task's id.
create or replace function start_move_task(from_queue text, to_queue text default null,
  per_second integer default null, reason text default null, actor text default session_user,
  group_id text default null, n integer default null) returns bigint
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  task bigint;
begin
  perform check_queue(from_queue);
  perform check_name('queue', to_queue, {queue_limit});
  perform check_name('group', group_id, {group_limit});
  if to_queue = from_queue then
    raise exception 'queue % cannot be moved to itself', to_json(to_queue)
      using errcode = '22023', hint = 'Name another queue.';
  elsif per_second < 1 then
    raise exception 'per_second is %, it must be at least 1', per_second
      using errcode = '22023', hint = 'Name a whole number, or null for no limit.';
  elsif n < 1 then
    raise exception 'n is %, it must be at least 1', n
      using errcode = '22023', hint = 'Name a whole number, or null for all that waits.';
  end if;
  perform return_lapsed(from_queue);
  delete from move_task t where t.id in (
    select o.id from move_task o where o.from_queue = start_move_task.from_queue and o.ended_at is not null
    order by o.id desc offset 10);
  insert into move_task as t (from_queue, to_queue, group_id, job_limit, per_second, to_move, moved_at)
  select from_queue, to_queue, group_id, n, per_second, least(n, case
      when to_queue is null then (select count(*) from (
        select from job j where j.queue = from_queue and {waits_as_dead_letter}
          and (start_move_task.group_id is null or j.group_id = start_move_task.group_id)
        limit {count_limit}) c)
      when group_id is not null then (
        select count(*) from waiting_jobs(from_queue, start_move_task.group_id, {count_limit}))
      else (select depth.queued + depth.delayed from queue_depth(from_queue) depth) end),
    -- A first second's jobs are moved at once.
    clock_timestamp() - interval '1 s'
  on conflict (from_queue) where ended_at is null do nothing
  returning t.id into task;
  if task is null then
    raise exception 'a task moves what waits in queue % already', to_json(from_queue)
      using errcode = '22023', hint = 'Cancel it by cancel_move_task, or let it end.';
  end if;
  perform record_operation(actor, 'start_move_task', from_queue, group_id, null, reason, 1);
  return task;
end $$;

-- Ends a task. Jobs that it has moved stay moved. Returns their number; null if no such task is
-- running.
--
-- Locks: the task's row; waits for the transaction that moves a batch.
create or replace function cancel_move_task(task bigint, reason text default null,
  actor text default session_user) returns bigint
language plpgsql volatile set search_path from current as $$
declare
  ended move_task;
begin
  update move_task t set status = 'cancelled', ended_at = clock_timestamp()
  where t.id = task and t.ended_at is null returning t.* into ended;
  if not found then
    return null;
  end if;
  perform record_operation(actor, 'cancel_move_task', ended.from_queue, ended.group_id, null, reason, 1);
  return ended.moved;
end $$;

-- Carries running tasks one batch further, at most 1,000 jobs of each, and returns how many jobs it
-- moved. Any number of servers may call it: a task that another one is at is skipped, and what the
-- rate allows is noted with it. At most what two seconds allow is moved at once.
--
-- Locks: tasks that run NO KEY UPDATE, skips; then as move_waiting.
create or replace function run_move_tasks() returns bigint
language plpgsql volatile set search_path from current as $$
declare
  task move_task; at timestamptz; n integer; now_moved bigint; all_moved bigint := 0;
begin
  -- An older snapshot would end a task as completed that has something left to move.
  perform check_isolation('run_move_tasks');
  for task in
    select t.* from move_task t where t.ended_at is null order by t.id for no key update skip locked
  loop
    at := clock_timestamp();
    task.moved_at := greatest(task.moved_at, at - interval '2 s');
    n := least(1000, task.job_limit - task.moved,
      floor(extract(epoch from at - task.moved_at) * task.per_second));
    continue when n < 1;
    perform return_lapsed(task.from_queue);
    now_moved := move_waiting(task.from_queue, task.to_queue, n, task.group_id);
    all_moved := all_moved + now_moved;
    update move_task t set
      moved = t.moved + now_moved,
      moved_at = coalesce(task.moved_at + make_interval(secs => now_moved / task.per_second::float8), at)
    where t.id = task.id;
    if task.moved + now_moved = task.job_limit
      or now_moved < n and not waits_for_move(task.from_queue, task.to_queue, task.group_id)
    then
      update move_task t set status = 'completed', ended_at = clock_timestamp() where t.id = task.id;
    end if;
  end loop;
  return all_moved;
end $$;
