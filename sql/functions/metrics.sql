-- Counts the minutes of the last hour that nobody has counted, the newest first: how many jobs of
-- each queue ended in them, and how long those had waited. A minute is counted 5 s after its end:
-- ends that commit a little later count too. One call counts five minutes at most, and begins none
-- after half a second: what is left is the next call's. `collect_metrics` calls it, under its lock,
-- and names the queues.
--
-- Jobs that are deleted as they end, and those that were queued again since, are not counted. Jobs
-- that failed and are in a dead-letter queue are counted where they failed: up to {looked_at} jobs
-- in it that came from other queues are looked at. Ends count up to 100,001, and waits are those of
-- the last 200 successes.
--
-- It locks nothing. No end of a job writes for it: it reads them by `job_finished`. Its plans are
-- kept, and may be made while the table is empty: by its settings they read no more than they must.
create or replace function collect_minutes() returns integer
language plpgsql volatile set search_path from current
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
  began constant timestamptz := clock_timestamp();
  latest constant timestamptz := date_trunc('minute', began - interval '5 s') - interval '1 min';
  of_minute timestamptz;
  counted integer := 0;
begin
  for of_minute in
    select s.at from generate_series(latest, latest - interval '59 min', - interval '1 min') s(at)
    where not exists (select from queue_minute m where m.queue = '' and m.minute = s.at)
    order by s.at desc limit 5
  loop
    insert into queue_minute (queue, minute, ended, failed, wait_median_ms, wait_p95_ms)
    select q.queue, of_minute, done.jobs + dead.jobs + letters.jobs, dead.jobs + letters.jobs,
      waits.median, waits.p95
    from queue_metrics q
    cross join lateral (
      select count(*) as jobs from (
        select from job j where j.queue = q.queue and j.status = 'succeeded'
          and j.finished_at >= of_minute and j.finished_at < of_minute + interval '1 min'
        limit 100001) c) done
    cross join lateral (
      select count(*) as jobs from (
        select from job j where j.queue = q.queue and j.status = 'failed'
          and j.finished_at >= of_minute and j.finished_at < of_minute + interval '1 min'
        limit 100001) c) dead
    cross join lateral (
      select count(*) as jobs
      from (
        select j.moved_from, j.run_at from job j
        where j.queue = (select s.dead_letter_queue from queue s where s.name = q.queue)
          and j.moved_from is not null
        limit {looked_at}) w
      where w.moved_from = q.queue
        and w.run_at >= of_minute and w.run_at < of_minute + interval '1 min') letters
    cross join lateral (
      select round(percentile_cont(0.5) within group (order by w.ms))::bigint as median,
        round(percentile_cont(0.95) within group (order by w.ms))::bigint as p95
      from (
        select greatest(extract(epoch from j.last_started_at - j.run_at) * 1000, 0)::float8 as ms from job j
        where j.queue = q.queue and j.status = 'succeeded' and j.last_started_at is not null
          and j.finished_at >= of_minute and j.finished_at < of_minute + interval '1 min'
        order by j.finished_at desc limit 200) w) waits
    where q.queue <> '' and done.jobs + dead.jobs + letters.jobs > 0
    union all
    select '', of_minute, 0, 0, null, null
    on conflict (queue, minute) do nothing;
    counted := counted + 1;
    exit when clock_timestamp() > began + interval '500 ms';
  end loop;
  if counted > 0 then
    delete from queue_minute m where m.minute < latest - interval '59 min';
  end if;
  return counted;
end $$;

-- Counts what `metrics` shows, unless this was done less than `every` ago, or another session is at
-- it. Returns whether it did. Each count stops at 10,001, and no read grows with the backlog.
-- Then it counts the minutes that are over.
--
-- The oldest job is that of the lowest id, which `oldest_job` looks for. The deepest group is that
-- of `deep_groups`: of the first 100 groups of each state, those of the newest 5,000 jobs of all
-- queues, and those of 100 jobs spread evenly over the backlog.
create or replace function collect_metrics(every interval default '15 s') returns boolean
language plpgsql volatile set search_path from current set jit = off as $$
#variable_conflict use_column
declare
  began constant timestamptz := clock_timestamp();
begin
  if every is null or every < interval '1 s' then
    raise exception 'every is %, it must be a second at least', coalesce(every::text, 'null')
      using errcode = '22023', hint = 'Name an interval such as 15 s.';
  end if;
  if (select m.collected_at from queue_metrics m where m.queue = '') > began - every
    or not pg_try_advisory_xact_lock(hashtextextended('seriatim metrics ' || current_schema(), 0))
  then
    return false;
  end if;
  insert into queue_metrics as m (queue, collected_at, numbers)
  select o.queue, began, jsonb_build_object(
    'jobs', jsonb_build_object('queued', o.queued, 'delayed', o.delayed, 'started', o.started,
      'parked', o.parked, 'failed', o.failed),
    'groups', jsonb_build_object('ready', o.ready_groups, 'running', o.running_groups,
      'lapsed', o.lapsed_groups, 'delayed', o.delayed_groups, 'gated', o.gated_groups,
      'halted', o.halted_groups, 'paused', o.paused_groups, 'parked', o.parked_groups),
    'paused', o.paused_at is not null, 'in_flight_limit', o.in_flight_limit,
    'rate_per_second', o.rate * 1000.0 / o.rate_per_ms,
    'oldest_due_s', extract(epoch from began - o.oldest_due),
    'oldest_job_s', extract(epoch from began - oldest.created_at),
    'oldest_halt_s', extract(epoch from began - (select g.halted_at from queue_group g
      where g.queue = o.queue and g.halted_at is not null order by g.halted_at limit 1)),
    'longest_running_s', extract(epoch from began - running.since),
    'deepest_group', deepest.jobs)
  from queue_overview(10000) o
  left join lateral (
    select j.created_at from job j
    where j.id = oldest_job(o.queue) and j.status in ('queued', 'started')) oldest on true
  left join lateral (
    select least(
      (select min(g.started_at) from (select g.started_at from queue_group g
        where g.queue = o.queue and g.job_id is not null limit 10001) g),
      (select min(s.last_started_at) from (select j.last_started_at from job j
        where j.queue = o.queue and j.group_id is null and j.status = 'started' limit 10001) s)) as since
    ) running on true
  left join lateral (select d.depth as jobs from deep_groups(o.queue, 100, 10001, 1) d) deepest on true
  on conflict (queue) do update set collected_at = excluded.collected_at, numbers = excluded.numbers;
  insert into queue_metrics as m (queue, collected_at, numbers)
  select '', began, jsonb_build_object(
    'live_processors', (select count(*) from processor p where p.seen_at > began - interval '30 s'),
    'silent_processors', (select count(*) from processors() p where p.silent),
    -- Null where the sessions of other roles cannot be seen.
    'vacuum_horizon_s', (
      select extract(epoch from began - min(a.xact_start)) from pg_catalog.pg_stat_activity a
      where a.backend_xmin is not null),
    'job_ids', pg_catalog.pg_sequence_last_value((current_schema() || '.job_id_seq')::regclass),
    'schedule_lag_s', (select extract(epoch from began - s.next_fire) from schedule s
      where s.paused_at is null and s.next_fire <= began order by s.next_fire, s.name limit 1),
    'pending_batches', batches.pending, 'failed_batches', batches.failed,
    'collect_s', extract(epoch from clock_timestamp() - began))
  from (
    select count(*) as pending, count(b.failed_at) as failed from (
      select b.failed_at from batch b where b.ended_at is null limit 10001) b) batches
  on conflict (queue) do update set collected_at = excluded.collected_at, numbers = excluded.numbers;
  delete from queue_metrics m where m.collected_at < began;
  perform collect_minutes();
  return true;
end $$;
