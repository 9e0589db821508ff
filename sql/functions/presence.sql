-- Whether there are requests, groups to park, groups whose halt is over, tasks that move jobs,
-- schedules that are due in 2 s, batches to look at, or flags to tidy.
create or replace function awaits_maintenance() returns boolean
language plpgsql volatile set search_path from current as $$
begin
  return (select r.job_id from cancel_request r limit 1) is not null
    or (select g.queue from queue_group g where g.halt_until <= now() limit 1) is not null
    or (select g.queue from queue_group g where g.halt_until is null and g.park_to is not null limit 1)
      is not null
    or (select t.id from move_task t where t.ended_at is null limit 1) is not null
    or (select s.name from schedule s where s.paused_at is null and s.next_fire <= now() + interval '2 s'
      limit 1) is not null
    or (select d.batch_id from batch_due d limit 1) is not null
    or (select s.queue from flag_scan s limit 1) is not null;
end $$;

-- Reads in one round trip what a presence needs at each heartbeat. `held`: this session still holds
-- the lock that shows its process alive. `suspected`: the process's claims that are suspected.
-- `maybe_dead`: another process may be dead, and the failure detector is to run. It decides under
-- locks of its own.
--
-- `due_in`: in how many seconds there may be something to do in each of the `queues`, from the
-- first on. `awaits_maintenance`: whether there is maintenance to do, if `maintenance` asks for it.
-- These must not cost the presence. The reads end after 20 ms: later queues have no answer. A queue
-- whose read takes long, as it passes many dead rows, polls for itself: the answer is 0.
create or replace function heartbeat(of_processor bigint, with_key bigint, long_here boolean,
  server timestamptz, detector_lock text, queues text[], maintenance boolean,
  out held boolean, out suspected uuid[], out maybe_dead boolean, out due_in float8[],
  out awaits_maintenance boolean)
language plpgsql volatile set search_path from current as $$
declare
  name text; next float8; waits boolean; began timestamptz; at timestamptz;
begin
  perform pin_plans();
  held := exists (select from pg_catalog.pg_locks l
    where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted
      and l.objsubid = 1 and ((l.classid::bigint << 32) | l.objid::bigint) = with_key);
  suspected := array(select g.claim from queue_group g
      where g.claimed_by = of_processor and g.suspect is not null and coalesce(g.suspect = g.claim, false))
    || array(select j.claim from job j
      where j.claimed_by = of_processor and j.suspect is not null and j.suspect = j.claim);
  due_in := '{}';
  begin
    perform set_config('lock_timeout', '50ms', true);
    began := clock_timestamp();
    if maintenance then
      waits := awaits_maintenance();
      awaits_maintenance := waits or clock_timestamp() - began > interval '20 ms';
    end if;
    foreach name in array queues loop
      at := clock_timestamp();
      next := due_in(name);
      due_in := due_in || case when clock_timestamp() - at > interval '20 ms' then 0 else next end;
      exit when clock_timestamp() - began > interval '20 ms';
    end loop;
    -- As pin_plans sets it.
    perform set_config('lock_timeout', {lock_timeout}, true);
  exception when query_canceled or others then
    -- The statement's time was over, or another transaction has locked a table.
    if cardinality(due_in) < cardinality(queues) then
      due_in := due_in || 0::float8;
    end if;
  end;
  -- One failure detector at a time: two that try the same lock would take its owner for alive.
  -- Last, as other processes wait for it.
  maybe_dead := held
    and exists (select from processor p
      where p.id <> of_processor and p.presence_key is not null
        and (long_here or p.server_started_at = server))
    and pg_try_advisory_xact_lock(hashtextextended(detector_lock, 0))
    and exists (select from (select p.presence_key from processor p
        where p.id <> of_processor and p.presence_key is not null
          and (long_here or p.server_started_at = server) offset 0) other
      where pg_try_advisory_xact_lock(other.presence_key));
end $$;
