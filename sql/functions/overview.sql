-- Returns how many jobs of a queue are due, delayed, and in flight. Each count stops at one more
-- than `up_to`. Jobs that are due and those that are not come from one read: if it ends before all
-- are counted, due jobs of groups that are ready count as well.
create or replace function queue_depth(of_queue text, up_to bigint default 10000)
returns table (queued bigint, delayed bigint, started bigint)
language sql stable set search_path from current as $$
  with claimed as materialized (
    select j.run_at <= now() as due
    from (
      select g.job_id, g.batch from queue_group g
      where g.queue = of_queue and g.job_id is not null limit up_to + 1) g
    cross join lateral unfinished(g.job_id, g.batch) u join job j on j.id = any (array[u.id])),
  waiting as (
    (select true as grouped, j.run_at <= now() as due from job j
      where j.queue = of_queue and j.group_id is not null and j.status in ('queued', 'started')
      limit up_to + 1 + (select count(*) from claimed))
    union all
    (select false, j.run_at <= now() from job j
      where j.queue = of_queue and j.group_id is null and j.status = 'queued' limit up_to + 1)),
  counted as materialized (
    select count(*) filter (where w.grouped) as grouped,
      count(*) filter (where w.due) - (select count(*) from claimed c where c.due) as due,
      count(*) filter (where not w.due) - (select count(*) from claimed c where not c.due) as delayed
    from waiting w)
  select
    greatest(n.due, case when n.grouped > up_to and n.due <= up_to then (
      select count(*) from (
        select from (
          select r.group_id from groups_in_line(of_queue, up_to + 1) r
          union
          select f.group_id from new_groups(of_queue, up_to + 1) f where f.due_at <= now()) r
        cross join lateral (
          select from (
            select j.run_at from job j
            where j.queue = of_queue and j.group_id = r.group_id and j.status in ('queued', 'started')
            order by j.group_id, j.id limit {looked_at}) j
          where j.run_at <= now() limit up_to + 1) j
        limit up_to + 1) d) end, 0),
    greatest(n.delayed, 0),
    (select count(*) from claimed)
      + (select count(*) from (
        select from job j
        where j.queue = of_queue and j.group_id is null and j.status = 'started' limit up_to + 1) c)
  from counted n
$$;

-- Returns the next queue by name that has a group with a row, or a job that is unfinished or
-- parked. Null: there is none. It has no settings of its own, so that a query takes it in.
create or replace function {schema}.busy_queue_after(after text) returns table (name text)
language sql stable as $$
  select least(
    (select g.queue from {schema}.queue_group g where g.queue > after order by g.queue limit 1),
    (select j.queue from {schema}.job j
      where j.queue > after and j.group_id is not null and j.status in ('queued', 'started')
      order by j.queue limit 1),
    (select j.queue from {schema}.job j
      where j.queue > after and j.group_id is null and j.status = 'queued'
      order by j.queue limit 1),
    (select j.queue from {schema}.job j
      where j.queue > after and j.group_id is null and j.status = 'started'
      order by j.queue limit 1),
    (select j.queue from {schema}.job j
      where j.queue > after and j.parked_with is not null order by j.queue limit 1))
$$;

-- The same for a queue that has any job, a group or settings.
create or replace function {schema}.queue_after(after text) returns table (name text)
language sql stable as $$
  select least(
    (select q.name from {schema}.queue q where q.name > after order by q.name limit 1),
    (select b.name from {schema}.busy_queue_after(after) b),
    (select j.queue from {schema}.job j
      where j.queue > after and j.status in ('succeeded', 'failed', 'cancelled')
      order by j.queue limit 1))
$$;

-- Returns the queues that have a job, a group or settings, `up_to` at most: those with something
-- unfinished or parked before those that have only ended jobs or settings (`idle`).
--
-- `jit`: by the planner's estimate of the recursion each call would be compiled, for 0.6 s.
create or replace function known_queues(up_to bigint) returns table (name text, idle boolean)
language sql stable set search_path from current set jit = off as $$
  with recursive busy(name, step) as (
    select b.name, 1 from busy_queue_after('') b
    union all
    select n.name, b.step + 1 from busy b cross join lateral busy_queue_after(b.name) n
    where b.name is not null and b.step < up_to),
  every(name, step) as (
    select n.name, 1 from queue_after('') n
    union all
    select n.name, e.step + 1 from every e cross join lateral queue_after(e.name) n
    where e.name is not null and e.step < up_to)
  select k.name, k.idle
  from (
    select b.name, false as idle from busy b
    union all
    select e.name, true from every e
    where e.name not in (select b.name from busy b where b.name is not null)) k
  where k.name is not null order by k.idle, k.name limit up_to
$$;

-- The queues that have a job, a group or settings, by name, 1,000 at most (`known_queues`), and
-- what they have. Each count stops at one more than `up_to`. Names are found by skipping through
-- indexes: `distinct` would read every job. Groups are counted as lists find them (waiting.sql):
-- rows and flags that their jobs have left behind count nothing.
--
-- `lapsed`: claims, of groups and of jobs without one, whose lease or visibility is over, and that
-- nobody has taken over. Groups of these are none of the running ones.
--
-- `served`: a living processor serves the queue, or is of a version that does not name its queues;
-- or receivers do. `dead_letters_of`: the queues whose dead letters wait in it, 5 at most, if no
-- other job of it is due; among the first 1,000 jobs with a group, and 1,000 without.
--
-- `jit`: by the planner's estimate each call would be compiled, for 0.6 s.
create or replace function queue_overview(up_to bigint default 10000) returns table (
  queue text, paused_at timestamptz, paused_s float8, pause_reason text, in_flight_limit integer,
  oldest_due timestamptz, queued bigint, delayed bigint, started bigint, parked bigint, failed bigint,
  ready_groups bigint, running_groups bigint, delayed_groups bigint, halted_groups bigint,
  paused_groups bigint, parked_groups bigint, served boolean, paused_until timestamptz,
  dead_letter_queue text, dead_letters_of text[], lapsed_groups bigint, lapsed bigint,
  lapsed_since timestamptz, rate integer, rate_per_ms bigint, rested_by bigint, limit_per_key integer,
  gated_groups bigint)
language sql stable set search_path from current set jit = off as $$
  with known as materialized (select q.name, q.idle from known_queues(1000) q),
  alive as materialized (select p.queues from processors() p where p.alive)
  select k.name, p.paused_at, extract(epoch from clock_timestamp() - p.paused_at)::float8, p.pause_reason,
    q.in_flight_limit,
    least(
      line.since,
      blocked.since,
      flagged.since,
      (select j.turn_at from job j where j.queue = k.name and j.group_id is null and j.status = 'queued'
        and j.turn_at <= now() order by j.turn_at limit 1)),
    coalesce(depth.queued, 0), coalesce(depth.delayed, 0), coalesce(depth.started, 0),
    (select count(*) from (
      select from job j
      where j.queue = k.name and j.parked_with is not null and j.status = 'parked' limit up_to + 1) c),
    (select count(*) from (
      select from job j where j.queue = k.name and j.status = 'failed' limit up_to + 1) c),
    line.groups + flagged.due,
    (select count(*) from claimed_groups(k.name, false, up_to + 1) g where not k.idle),
    (select count(*) from sleeping_groups(k.name, up_to + 1) g where not k.idle) + flagged.delayed,
    (select count(*) from (
      select from queue_group g where g.queue = k.name and g.halted_at is not null limit up_to + 1) c),
    (select count(*) from (
      select from group_setting s where s.queue = k.name and {paused_s} limit up_to + 1) c),
    (select count(*) from groups_with_parked(k.name, up_to + 1) g where not k.idle),
    exists (select from alive a where a.queues is null or k.name = any (a.queues)) or receivers_serve(k.name),
    p.paused_until, q.dead_letter_queue,
    case when looked.dead_letters_of is null or looked.others or has_own_work(k.name) then '{}'
      else looked.dead_letters_of[:5] end,
    lost.groups, lost.groups + lost.jobs, lost.since, q.rate, q.rate_per_ms,
    p.rested_by, nullif(q.limit_per_key, 0),
    (select count(*) from groups_at_key_limit(k.name, up_to + 1) g where not k.idle)
  from known k left join queue q on q.name = k.name
  left join lateral (
    select q.paused_at, q.paused_until, q.pause_reason, q.rested_by where {paused_q}) p on true
  left join lateral queue_depth(k.name, up_to) depth on not k.idle
  left join lateral (
    select count(l.group_id) as groups, count(*) - count(l.group_id) as jobs, min(l.over_at) as since from (
      (select g.group_id, g.ready_at as over_at from claimed_groups(k.name, true, up_to + 1) g
        where not k.idle)
      union all
      (select null, j.lease_until from (
          select j.lease_until, j.xmax from job j
          where j.queue = k.name and j.group_id is null and j.status = 'started' and j.lease_until <= now()
          order by j.lease_until limit {looked_at}) j
        where {lapsed_j} limit up_to + 1)) l) lost on true
  left join lateral (
    select array_agg(distinct j.moved_from order by j.moved_from)
        filter (where {waits_as_dead_letter}) as dead_letters_of,
      bool_or(j.moved_from is null and j.status = 'queued' and j.run_at <= now()
        and (select true from claim_of(j.queue, j.group_id, j.id) c) is null) as others
    from (
      (select j.id, j.queue, j.group_id, j.moved_from, j.status, j.run_at from job j
        where j.queue = k.name and j.group_id is not null and j.status in ('queued', 'started') limit 1000)
      union all
      (select j.id, j.queue, j.group_id, j.moved_from, j.status, j.run_at from job j
        where j.queue = k.name and j.group_id is null and j.status = 'queued' limit 1000)) j) looked on true
  -- A group whose head another transaction has locked is looked at again soon, and each look moves
  -- its place in the line: it waits since its head is due.
  left join lateral (
    select min(h.run_at) as since from rechecked_groups(k.name, 1000) g
    join lateral (
      select j.run_at from job j
      where j.queue = k.name and j.group_id = g.group_id and j.status in ('queued', 'started')
      order by j.group_id, j.id limit 1) h on true
    where not k.idle) blocked on true
  left join lateral (
    select count(*) as groups, min(r.ready_at) filter (where r.ready_at <= now()) as since
    from groups_in_line(k.name, up_to + 1) r where not k.idle) line on true
  left join lateral (
    select count(*) filter (where f.due_at <= now()) as due,
      count(*) filter (where f.due_at > now()) as delayed,
      min(f.turn_at) filter (where f.due_at <= now()) as since
    from new_groups(k.name, greatest(up_to + 1, 1000)) f where not k.idle) flagged on true
  order by k.name
$$;
