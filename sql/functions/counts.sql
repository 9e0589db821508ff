-- Returns the numbers of a queue's jobs by state. Unfinished jobs are counted exactly, in their
-- partial indexes; finished and parked ones up to `up_to`, so that a long history costs nothing.
create or replace function counts(of_queue text, up_to bigint default {finished_limit})
returns table (queued bigint, delayed bigint, started bigint, succeeded bigint, failed bigint, cancelled bigint, parked bigint)
language sql stable
set search_path from current
as $$
  select check_count(up_to);
  select
    (select count(*) from job j where j.queue = of_queue and j.group_id is not null and j.status in ('queued', 'started')
        and j.status = 'queued' and j.run_at <= now())
      + (select count(*) from job j where j.queue = of_queue and j.group_id is null and j.status = 'queued'
        and j.run_at <= now()),
    (select count(*) from job j where j.queue = of_queue and j.group_id is not null and j.status in ('queued', 'started')
        and j.status = 'queued' and j.run_at > now())
      + (select count(*) from job j where j.queue = of_queue and j.group_id is null and j.status = 'queued'
        and j.run_at > now()),
    (select count(*) from job j where j.queue = of_queue and j.group_id is not null and j.status in ('queued', 'started')
        and j.status = 'started')
      + (select count(*) from job j where j.queue = of_queue and j.group_id is null and j.status = 'started'),
    (select count(*) from (select from job j where j.queue = of_queue and j.status = 'succeeded' limit up_to) c),
    (select count(*) from (select from job j where j.queue = of_queue and j.status = 'failed' limit up_to) c),
    (select count(*) from (select from job j where j.queue = of_queue and j.status = 'cancelled' limit up_to) c),
    (select count(*) from (select from job j
      where j.queue = of_queue and j.parked_with is not null and j.status = 'parked' limit up_to) c)
$$;
