-- Ends up to `n` runs that no timeout ends, because their process is silent: it is frozen, and its
-- sessions live. A run is ended as `abort` ends one, 30 s after its timeout, and so recorded, by
-- the actor `maintenance`. A run without a timeout continues, and so does one of a receiver.
-- Returns how many it ended.
--
-- Locks: as `abort`.
create or replace function abort_silent_runs(n integer) returns integer
language plpgsql volatile set search_path from current as $$
declare
  late record; ended integer := 0;
begin
  for late in
    with silent as materialized (select p.id, p.node, p.seen_at from processors() p where p.silent),
    run as (
      select s.node, s.seen_at, g.queue, g.job_id as id, g.started_at, s.id as processor
      from silent s join queue_group g on g.claimed_by = s.id and g.job_id is not null
        and g.suspect is distinct from g.claim
      union all
      select s.node, s.seen_at, j.queue, j.id, j.last_started_at, s.id
      from silent s join job j on j.claimed_by = s.id and j.claim is not null and j.group_id is null
        and j.suspect is distinct from j.claim)
    select r.id, r.node, r.seen_at,
      r.started_at + make_interval(
        secs => coalesce(j.timeout_ms, queue_timeout_ms(r.queue, r.processor)) / 1000.0) as timeout_at
    from run r join job j on j.id = r.id
  loop
    exit when ended >= n;
    continue when late.timeout_at is null or late.timeout_at > clock_timestamp() - interval '30 s';
    ended := ended + (select a.done::integer from abort(late.id, format(
      'its timeout ended at %s, and its process on node %s was last seen at %s',
      to_char(late.timeout_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS UTC'), to_json(late.node),
      to_char(late.seen_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS UTC')), 'maintenance') a);
  end loop;
  return ended;
end $$;
