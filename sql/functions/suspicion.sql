-- Returns since when the server itself has ended no session: its start, or its last recovery from a
-- crash. A recovery leaves the time of the start as it was, and begins the statistics anew. A reset
-- of the statistics by hand does so too, and only delays the next take-over.
create or replace function server_since() returns timestamptz
language sql stable
as $$
  select greatest(pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_stat_get_bgwriter_stat_reset_time())
$$;

-- Whether a claim was suspected a grace before `due`, on this server. A suspicion from before the
-- server's start is none: all presences go with a restart, and a process keeps the handlers of its
-- leases until it is back.
create or replace function is_suspected(suspect uuid, claim uuid, due timestamptz) returns boolean
language plpgsql stable
set search_path from current
as $$
begin
  return suspect is not null and claim is not null and suspect = claim and due - {grace} >= server_since();
end $$;

-- Returns when a claim that is suspected now may be taken over; `before` is the suspicion so far.
-- After a restart the claim is suspected anew, and processes get the time to come back.
create or replace function suspect_until(before uuid, claim uuid) returns timestamptz
language plpgsql stable
set search_path from current
as $$
begin
  if before = claim then
    return greatest(clock_timestamp() + {grace}, server_since() + {restart_grace});
  end if;
  return clock_timestamp() + {grace};
end $$;
