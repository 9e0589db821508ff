-- A doubt from before the server's start is none. All presences go with a restart, and a process that the server told so
-- keeps the handlers of its leases until it is back. So what was doubted before is doubted anew, and taken over when
-- processes have had the time to come back.

-- Since when no session was lost by the server's own doing: its start, or its last recovery from a crash, which leaves the
-- time of the start as it was and begins the statistics anew. (So does who resets them: then somebody is judged later.)
create function server_since() returns timestamptz
language sql stable
as $$
  select greatest(pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_stat_get_bgwriter_stat_reset_time())
$$;

-- Whether a claim was doubted a grace before `due`, by whoever could judge on this server.
create function is_doubted(suspect uuid, claim uuid, due timestamptz) returns boolean
language plpgsql stable
set search_path from current
as $$
begin
  return suspect is not null and claim is not null and suspect = claim and due - interval '1.75 s' >= server_since();
end $$;

-- When a claim that is doubted now is taken over; `before`: what was doubted so far.
create function doubt_until(before uuid, claim uuid) returns timestamptz
language plpgsql stable
set search_path from current
as $$
begin
  if before = claim then
    return greatest(clock_timestamp() + interval '1.75 s', server_since() + interval '15 s');
  end if;
  return clock_timestamp() + interval '1.75 s';
end $$;

-- The receivers judge in the same way.
do $patch$
declare
  patch text[];
  function text;
begin
  foreach patch slice 1 in array array[
    array['pull_turn', 'turn.suspect is distinct from turn.claim then
    update queue_group g set suspect = g.claim, ready_at = clock_timestamp() + interval ''1.75 s''',
      'not is_doubted(turn.suspect, turn.claim, turn.ready_at) then
    update queue_group g set suspect = g.claim, ready_at = doubt_until(g.suspect, g.claim)'],
    array['pull_loose', 'update job j set suspect = j.claim, lease_until = clock_timestamp() + interval ''1.75 s''',
      'update job j set suspect = j.claim, lease_until = doubt_until(j.suspect, j.claim)'],
    array['pull_loose', 'd.lease_until <= at and d.suspect is distinct from d.claim',
      'd.lease_until <= at and not is_doubted(d.suspect, d.claim, d.lease_until)'],
    array['pull_loose', 'd.lease_until <= at and d.suspect = d.claim',
      'd.lease_until <= at and is_doubted(d.suspect, d.claim, d.lease_until)']]
  loop
    function := pg_get_functiondef(patch[1]::regproc);
    if strpos(function, patch[2]) = 0 then
      raise 'function % is not as migration 4 made it', patch[1];
    end if;
    execute replace(function, patch[2], patch[3]);
  end loop;
end $patch$;
