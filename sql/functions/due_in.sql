-- Returns in how many seconds a claim of the queue may find something, also if another transaction
-- has locked what is due; null if nothing will be due, as far as is known. Of a paused queue
-- nothing is due before the pause ends. The caller has plans pinned.
create or replace function {schema}.due_in(of_queue text) returns float8
language plpgsql volatile
as $$
declare
  resumes_at timestamptz;
begin
  select q.paused_until into resumes_at from {schema}.queue q where q.name = of_queue and {paused_q};
  if found then
    return extract(epoch from resumes_at - clock_timestamp());
  end if;
  return extract(epoch from nullif(least(
      (select g.ready_at from {schema}.queue_group g
        where g.queue = of_queue and g.ready_at < 'infinity'
        order by g.ready_at limit 1),
      -- The flag of a job that runs goes with its end, or with the next claim that comes by it.
      (select min(f.flag_at) from (
          select j.group_id, {flag_at} as flag_at from {schema}.job j
          where j.queue = of_queue and j.flagged
          order by {flag_at} limit 8) f
        where (select g.job_id from {schema}.queue_group g
          where g.queue = of_queue and g.group_id between f.group_id and f.group_id
          order by g.group_id desc limit 1) is null),
      (select j.turn_at from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued'
        order by j.turn_at limit 1),
      (select j.lease_until from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'started'
          -- Behind that are the leases of the living, and those that many ended jobs had. The grace
          -- of a suspicion is shorter.
          and j.lease_until <= now() + interval '2 s'
        order by j.lease_until limit 1)),
    'infinity') - clock_timestamp());
end $$;

-- Returns which of these queues a receive may find something in now.
create or replace function due_queues(queues text[]) returns setof text
language sql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
  select q.name from unnest(queues) q(name) where due_in(q.name) <= 0
$$;
