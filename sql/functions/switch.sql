-- Makes a database ready that logical replication has filled from another server: rows come by
-- replication, and the state of sequences does not (up to PostgreSQL 18). Sets each sequence of the
-- schema `room` above the highest number, unless it is above that already: ids that were given and
-- not replicated are not given again. Returns the id that the next job has at least.
--
-- Refuses while a subscription still changes this database, and while a process is here. Call it
-- between the end of the replication and the first enqueue. A second call changes nothing.
create or replace function after_switch(room bigint default 1000000) returns bigint
language plpgsql volatile set search_path from current as $$
declare
  replicated text; present text; owned record; highest bigint; given bigint; next_job bigint;
begin
  if room is null or room < 0 then
    raise exception 'room is %', coalesce(room::text, 'null')
      using errcode = '22023', hint = 'Pass how many ids to leave out, 0 or more.';
  end if;
  select s.subname into replicated from pg_catalog.pg_subscription s
  join pg_catalog.pg_database d on d.oid = s.subdbid
  where d.datname = current_database() and s.subenabled limit 1;
  if replicated is not null then
    raise exception 'subscription % still changes this database', quote_ident(replicated)
      using errcode = '55000',
      hint = 'Stop all that works on the old server, wait until all is here, then drop the subscription.';
  end if;
  select p.node into present from processor p
  join pg_catalog.pg_locks l on l.locktype = 'advisory' and l.objsubid = 1 and l.granted
    and ((l.classid::bigint << 32) | l.objid::bigint) = p.presence_key
  join pg_catalog.pg_database d on d.oid = l.database and d.datname = current_database()
  limit 1;
  if present is not null then
    raise exception 'node % runs here already', quote_literal(present)
      using errcode = '55000', hint = 'Stop it, and start it after this call.';
  end if;
  for owned in
    select c.relname as name, a.attname as id,
      pg_catalog.pg_get_serial_sequence(
        quote_ident(current_schema()) || '.' || quote_ident(c.relname), a.attname) as ids
    from pg_catalog.pg_class c
    join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attidentity <> '' and not a.attisdropped
    where c.relnamespace = quote_ident(current_schema())::regnamespace and c.relkind in ('r', 'p')
  loop
    execute format('select coalesce(max(%I), 0) from %I', owned.id, owned.name) into highest;
    given := coalesce(pg_catalog.pg_sequence_last_value(owned.ids::regclass), 0);
    if given < highest then
      given := pg_catalog.setval(owned.ids::regclass, highest + room);
    end if;
    if owned.name = 'job' then
      -- The ids of a numbered schema begin at its own first one.
      select greatest(given + 1, s.seqmin) into next_job
      from pg_catalog.pg_sequence s where s.seqrelid = owned.ids::regclass;
    end if;
  end loop;
  return next_job;
end $$;
