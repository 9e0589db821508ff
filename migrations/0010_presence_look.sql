-- What a presence's tick looks at in one round trip: whether this session still holds the lock that shows its process alive,
-- which of the process's claims somebody doubts, and whether another process may be dead, so that a judge is to look. All of
-- it is looked at again, under locks, by who acts on it.
create function presence_look(of_processor bigint, with_key bigint, long_here boolean, server timestamptz, judge text,
  out held boolean, out doubted uuid[], out maybe_dead boolean)
language plpgsql volatile
set search_path from current
as $$
begin
  perform pin_plans();
  held := exists (select from pg_catalog.pg_locks l
    where l.locktype = 'advisory' and l.pid = pg_backend_pid() and l.granted
      and l.objsubid = 1 and ((l.classid::bigint << 32) | l.objid::bigint) = with_key);
  doubted := array(select g.claim from queue_group g
      where g.claimed_by = of_processor and g.suspect is not null and coalesce(g.suspect = g.claim, false))
    || array(select j.claim from job j
      where j.claimed_by = of_processor and j.suspect is not null and j.suspect = j.claim);
  -- One judge at a time: who tries a lock that another one tries would take its owner for alive.
  maybe_dead := held
    and exists (select from processor p
      where p.id <> of_processor and p.presence_key is not null and (long_here or p.server_started_at = server))
    and pg_try_advisory_xact_lock(hashtextextended(judge, 0))
    and exists (select from (select p.presence_key from processor p
        where p.id <> of_processor and p.presence_key is not null and (long_here or p.server_started_at = server)
        offset 0) other
      where pg_try_advisory_xact_lock(other.presence_key));
end $$;
