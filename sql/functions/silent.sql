-- Ends a run that no timeout ends, because its process is silent: it is frozen, and its sessions
-- live. `among`: the processes that were silent at the last look too. A run is ended as `abort`
-- ends one, 30 s after its timeout, and so recorded, by the actor `maintenance`. A run without a
-- timeout continues, and so does one of a receiver. Returns whether it ended one.
--
-- A run that cannot be ended, as its session may not be terminated, keeps no other from its end.
--
-- Locks: as `abort`.
create or replace function abort_silent_run(among bigint[]) returns boolean
language plpgsql volatile set search_path from current as $$
declare
  late record;
begin
  for late in
    with silent as materialized (
      select p.id, p.node, p.seen_at from processors() p where p.silent and p.id = any (among)),
    run as (
      -- A turn of several jobs runs the first that is unfinished.
      select s.node, s.seen_at, g.queue, (select min(u.id) from unfinished(g.job_id, g.batch) u) as id,
        g.started_at, s.id as processor
      from silent s join queue_group g on g.claimed_by = s.id and g.job_id is not null
        and g.suspect is distinct from g.claim
      union all
      select s.node, s.seen_at, j.queue, j.id, j.last_started_at, s.id
      from silent s join job j on j.claimed_by = s.id and j.status = 'started' and j.group_id is null
        and j.suspect is distinct from j.claim)
    select r.id, r.node, r.seen_at,
      r.started_at + make_interval(
        secs => coalesce(j.timeout_ms, queue_timeout_ms(r.queue, r.processor)) / 1000.0) as timeout_at
    from run r join job j on j.id = r.id
  loop
    continue when late.timeout_at is null or late.timeout_at > clock_timestamp() - interval '30 s';
    if (select a.done from abort(late.id, format(
      'its timeout ended at %s, and its process on node %s was last seen at %s',
      to_char(late.timeout_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS UTC'), to_json(late.node),
      to_char(late.seen_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS UTC')), 'maintenance') a)
    then
      return true;
    end if;
  end loop;
  return false;
end $$;
