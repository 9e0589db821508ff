-- Returns the numbers of a queue's jobs by state. Unfinished jobs are counted exactly, in their
-- partial indexes; finished and parked ones up to `up_to`, so that a long history costs nothing.
create or replace function counts(of_queue text, up_to bigint default {finished_limit})
returns table (queued bigint, delayed bigint, started bigint, succeeded bigint, failed bigint,
  cancelled bigint, parked bigint)
language sql stable set search_path from current as $$
  select check_count(up_to);
  with claimed as materialized (
    select j.run_at <= now() as due
    from (select g.job_id, g.batch from queue_group g where g.queue = of_queue and g.job_id is not null) g
    cross join lateral unfinished(g.job_id, g.batch) u join job j on j.id = any (array[u.id])),
  unfinished as (
    select j.run_at <= now() as due from job j
    where j.queue = of_queue and j.group_id is not null and j.status in ('queued', 'started')
    union all
    select j.run_at <= now() from job j
    where j.queue = of_queue and j.group_id is null and j.status = 'queued')
  select
    (select count(*) from unfinished u where u.due) - (select count(*) from claimed c where c.due),
    (select count(*) from unfinished u where not u.due) - (select count(*) from claimed c where not c.due),
    (select count(*) from claimed)
      + (select count(*) from job j where j.queue = of_queue and j.group_id is null and j.status = 'started'),
    (select count(*) from (
      select from job j where j.queue = of_queue and j.status = 'succeeded' limit up_to) c),
    (select count(*) from (select from job j where j.queue = of_queue and j.status = 'failed' limit up_to) c),
    (select count(*) from (
      select from job j where j.queue = of_queue and j.status = 'cancelled' limit up_to) c),
    (select count(*) from (select from job j
      where j.queue = of_queue and j.parked_with is not null and j.status = 'parked' limit up_to) c)
$$;
