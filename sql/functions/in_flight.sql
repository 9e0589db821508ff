-- Returns how many jobs of a queue with a limit may still begin: null for any number, `busy` if
-- another claim or a change of settings has had the queue's row for a tenth of a second.
--
-- A claim that may add to them has the queue's row locked, and counts in a new statement. A settle
-- meanwhile only makes it less. So the limit holds exactly, and after crashes too: a claim
-- counts until its job is settled. A take-over does not add to the count, and is allowed beyond it:
-- or a fleet that crashed would never go on.
--
-- Locks: the queue's row NO KEY UPDATE, skips.
create or replace function {schema}.in_flight_room(of_queue text,
  out room bigint, out paused boolean, out busy boolean)
language plpgsql volatile as $$
declare
  flight_limit integer;
begin
  for tries in 1..20 loop
    select q.in_flight_limit, {paused_q} into flight_limit, paused from {schema}.queue q
    where q.name = of_queue for no key update skip locked;
    busy := not found;
    exit when found;
    perform pg_sleep(0.005);
  end loop;
  if flight_limit is not null and not paused then
    room := greatest(flight_limit
      - (select coalesce(sum(c.jobs), 0) from (
          select {claimed_count_g} as jobs from {schema}.queue_group g
          where g.queue = of_queue and g.job_id is not null order by g.claimed_by) c)
      - (select count(*) from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'started'), 0);
  end if;
end $$;
