-- Returns which server this is: a promotion begins another timeline. Null on a standby, which holds
-- nothing. 0 and 0 on a server that does not tell: a promotion is not seen there.
create or replace function this_server(out system_identifier bigint, out timeline bigint)
language plpgsql stable as $$
begin
  if pg_catalog.pg_is_in_recovery() then
    return;
  end if;
  select s.system_identifier, {timeline}
  into system_identifier, timeline from pg_catalog.pg_control_system() s;
exception when others then
  system_identifier := 0;
  timeline := 0;
end $$;

-- Writes down which server this is, once it is another one. Waits for nothing, and locks nothing
-- that others wait for: until a transaction that wrote it is committed, others write it as well.
create or replace function note_server() returns void
language plpgsql volatile set search_path from current as $$
begin
  insert into server (system_identifier, timeline, since)
  select t.system_identifier, t.timeline, clock_timestamp() from this_server() t
  where t.timeline is not null and not exists (
    select from server s where s.system_identifier = t.system_identifier and s.timeline = t.timeline);
end $$;

-- Returns since when the server itself has ended no session: its start, its last recovery from a
-- crash, or its promotion. A recovery leaves the time of the start as it was, and begins all
-- statistics anew. A reset by hand begins some: only a reset of all three delays the next
-- take-over. A server that is not noted yet is one since now: no claim that is due was suspected on
-- it.
create or replace function server_since() returns timestamptz
language plpgsql stable set search_path from current as $$
begin
  return greatest(
    pg_catalog.pg_postmaster_start_time(),
    least(pg_catalog.pg_stat_get_bgwriter_stat_reset_time(),
      (select a.stats_reset from pg_catalog.pg_stat_get_archiver() a),
      (select w.stats_reset from pg_catalog.pg_stat_get_wal() w)),
    coalesce(
      (select min(s.since) from server s join this_server() t
        on s.system_identifier = t.system_identifier and s.timeline = t.timeline),
      clock_timestamp()));
end $$;

-- Whether a claim was suspected a grace before `due`, on this server. A suspicion from before the
-- server's start or promotion is none: all presences go with it, and a process keeps the handlers
-- of its leases until it is back. For claims that are due.
create or replace function is_suspected(suspect uuid, claim uuid, due timestamptz) returns boolean
language plpgsql stable set search_path from current as $$
begin
  return suspect is not null and claim is not null and suspect = claim and due - {grace} >= server_since();
end $$;

-- Returns when a claim that is suspected now may be taken over; `before` is the suspicion so far.
-- After a restart or promotion the claim is suspected anew, and processes get the time to come
-- back.
create or replace function suspect_until(before uuid, claim uuid) returns timestamptz
language plpgsql volatile set search_path from current as $$
begin
  -- Receivers may be all that there is on a new server.
  perform note_server();
  if before = claim then
    return greatest(clock_timestamp() + {grace}, server_since() + {restart_grace});
  end if;
  return clock_timestamp() + {grace};
end $$;
