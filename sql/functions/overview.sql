-- Returns how many jobs of a queue are due, delayed, and in flight. Each count stops at one more
-- than `up_to`.
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
    (select j.run_at <= now() as due from job j
      where j.queue = of_queue and j.group_id is not null and j.status in ('queued', 'started')
      limit up_to + 1)
    union all
    (select j.run_at <= now() from job j
      where j.queue = of_queue and j.group_id is null and j.status = 'queued' limit up_to + 1))
  select
    greatest((select count(*) from waiting w where w.due) - (select count(*) from claimed c where c.due), 0),
    greatest(
      (select count(*) from waiting w where not w.due) - (select count(*) from claimed c where not c.due), 0),
    (select count(*) from claimed)
      + (select count(*) from (
        select from job j
        where j.queue = of_queue and j.group_id is null and j.status = 'started' limit up_to + 1) c)
$$;

-- Returns the next queue by name that has a job, a group or settings. Null: there is none. It has
-- no settings of its own, so that a query takes it in.
create or replace function {schema}.queue_after(after text) returns table (name text)
language sql stable as $$
  select least(
    (select q.name from {schema}.queue q where q.name > after order by q.name limit 1),
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
      where j.queue > after and j.parked_with is not null order by j.queue limit 1),
    (select j.queue from {schema}.job j
      where j.queue > after and j.status in ('succeeded', 'failed', 'cancelled')
      order by j.queue limit 1))
$$;

-- The queues that have a job, a group or settings, by name, 1,000 at most, and what they have. Each
-- count stops at one more than `up_to`, so that none costs more than that many rows. Names are
-- found by skipping through indexes: `distinct` would read every job.
--
-- `lapsed`: claims, of groups and of jobs without one, whose lease or visibility is over, and that
-- nobody has taken over; 1,000 of each at most. Groups of these are none of the running ones.
--
-- `served`: a living processor serves the queue, or is of a version that does not name its queues;
-- or receivers do. `dead_letters_of`: the queues whose dead letters wait in it, 5 at most, if no
-- other job of it is due; the first 1,000 jobs with a group are looked at, and 1,000 without.
--
-- `jit`: by the planner's estimate of the recursion each call would be compiled, for 0.6 s.
create or replace function queue_overview(up_to bigint default 10000) returns table (
  queue text, paused_at timestamptz, paused_s float8, pause_reason text, in_flight_limit integer,
  oldest_due timestamptz, queued bigint, delayed bigint, started bigint, parked bigint, failed bigint,
  ready_groups bigint, running_groups bigint, delayed_groups bigint, halted_groups bigint,
  paused_groups bigint, parked_groups bigint, served boolean, paused_until timestamptz,
  dead_letter_queue text, dead_letters_of text[], lapsed_groups bigint, lapsed bigint,
  lapsed_since timestamptz, rate integer, rate_per_ms bigint, rested_by bigint, limit_per_key integer,
  gated_groups bigint)
language sql stable set search_path from current set jit = off as $$
  with recursive known(name, step) as (
    select n.name, 1 from queue_after('') n
    union all
    select n.name, k.step + 1 from known k cross join lateral queue_after(k.name) n
    where k.name is not null and k.step < 1000),
  alive as materialized (select p.queues from processors() p where p.alive)
  select k.name, p.paused_at, extract(epoch from clock_timestamp() - p.paused_at)::float8, p.pause_reason,
    q.in_flight_limit,
    least(
      -- The row of a group that is drained stays until a claim comes by.
      (select g.ready_at from (
          select g.group_id, g.ready_at from queue_group g
          where g.queue = k.name and g.ready_at <= now() and g.ready_at < 'infinity' and g.job_id is null
          order by g.ready_at limit least(up_to, 1000)) g
        where exists (select from job j
          where j.queue = k.name and j.group_id = g.group_id and j.status in ('queued', 'started'))
        order by g.ready_at limit 1),
      blocked.since,
      (select j.turn_at from (
          select j.group_id, j.turn_at from job j
          where j.queue = k.name and j.flagged and j.finished_at is null and {flag_at} <= now()
          order by {flag_at}, j.id limit least(up_to, 1000)) j
        where not exists (select from queue_group g where g.queue = k.name and g.group_id = j.group_id)
        order by j.turn_at limit 1),
      (select j.turn_at from job j where j.queue = k.name and j.group_id is null and j.status = 'queued'
        and j.turn_at <= now() order by j.turn_at limit 1)),
    depth.queued, depth.delayed, depth.started,
    (select count(*) from (
      select from job j
      where j.queue = k.name and j.parked_with is not null and j.status = 'parked' limit up_to + 1) c),
    (select count(*) from (
      select from job j where j.queue = k.name and j.status = 'failed' limit up_to + 1) c),
    (select count(*) from (
        select from queue_group g
        where g.queue = k.name and g.ready_at <= now() + interval '2 s' and g.ready_at < 'infinity'
          and g.job_id is null and (g.ready_at <= now() or g.rechecks > 0) limit up_to + 1) c)
      + flagged.due,
    (select count(*) from (
        select from queue_group g where g.queue = k.name and g.job_id is not null limit up_to + 1) c)
      - lost.groups,
    case when delayed.rows > up_to then delayed.rows else delayed.rows - (
        select count(*) from group_setting s
          join queue_group g on g.queue = s.queue and g.group_id = s.group_id
        where s.queue = k.name and s.paused_until is not null and {paused_s}
          and g.ready_at > now() and g.ready_at < 'infinity' and g.job_id is null and g.halted_at is null
          and g.gated_by is null) end
      + flagged.delayed,
    (select count(*) from (
      select from queue_group g where g.queue = k.name and g.halted_at is not null limit up_to + 1) c),
    (select count(*) from (
      select from group_setting s where s.queue = k.name and {paused_s} limit up_to + 1) c),
    (select count(distinct p.group_id) from (
      select j.group_id from job j where j.queue = k.name and j.parked_with is not null limit up_to + 1) p),
    exists (select from alive a where a.queues is null or k.name = any (a.queues)) or receivers_serve(k.name),
    p.paused_until, q.dead_letter_queue,
    case when looked.others then '{}' else coalesce(looked.dead_letters_of[:5], '{}') end,
    lost.groups, lost.groups + lost.jobs, lost.since, q.rate, q.rate_per_ms,
    p.rested_by, nullif(q.limit_per_key, 0),
    (select count(*) from (
      select from queue_group g where g.queue = k.name and g.gated_by is not null limit up_to + 1) c)
  from known k left join queue q on q.name = k.name
  left join lateral (
    select q.paused_at, q.paused_until, q.pause_reason, q.rested_by where {paused_q}) p on true
  left join lateral queue_depth(k.name, up_to) depth on true
  left join lateral (
    select count(l.group_id) as groups, count(*) - count(l.group_id) as jobs, min(l.over_at) as since from (
      (select g.group_id, g.ready_at as over_at from (
          select g.group_id, g.ready_at, g.xmax from queue_group g
          where g.queue = k.name and g.job_id is not null limit up_to + 1) g
        where {lapsed_g} limit least(up_to, 1000))
      union all
      (select null, j.lease_until from (
          select j.lease_until, j.xmax from job j
          where j.queue = k.name and j.group_id is null and j.status = 'started' limit up_to + 1) j
        where {lapsed_j} limit least(up_to, 1000))) l) lost on true
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
    select min(h.run_at) as since from (
      select g.group_id, g.rechecks from queue_group g
      where g.queue = k.name and g.ready_at <= now() + interval '2 s' and g.ready_at < 'infinity'
        and g.job_id is null
      order by g.ready_at desc limit least(up_to, 1000)) g
    join lateral (
      select j.run_at from job j
      where j.queue = k.name and j.group_id = g.group_id and j.status in ('queued', 'started')
      order by j.group_id, j.id limit 1) h on g.rechecks > 0) blocked on true
  -- With those whose pauses end by themselves, which rest until then.
  left join lateral (
    select count(*) as rows from (
      select from queue_group g where g.queue = k.name and g.ready_at > now() and g.ready_at < 'infinity'
        and g.job_id is null and g.halted_at is null and g.rechecks = 0 and g.gated_by is null
      limit up_to + 1) c) delayed on true
  -- Groups that no worker has adopted yet.
  left join lateral (
    select count(distinct f.group_id) filter (where f.flag_at <= now()) as due,
      count(distinct f.group_id) filter (where f.flag_at > now()) as delayed
    from (
      select j.group_id, {flag_at} as flag_at from job j
      where j.queue = k.name and j.flagged and j.finished_at is null limit up_to + 1) f
    where not exists (select from queue_group g where g.queue = k.name and g.group_id = f.group_id)
    ) flagged on true
  where k.name is not null order by k.name
$$;
