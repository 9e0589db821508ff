-- Returns the time until which this server has what was written: now, or on a standby the time of
-- the last transaction that it has replayed (1970: none), unless nothing is left to replay.
create or replace function {schema}.written_until() returns timestamptz
language sql stable as $$
  select case when not pg_catalog.pg_is_in_recovery()
      or pg_catalog.pg_last_wal_receive_lsn() = pg_catalog.pg_last_wal_replay_lsn()
        and exists (select from pg_catalog.pg_stat_wal_receiver)
    then clock_timestamp() else coalesce(pg_catalog.pg_last_xact_replay_timestamp(), 'epoch') end
$$;

-- The processors, and whether each lives: its presence lock is held, or, of one that shows none, it
-- was seen in the last 30 s. A standby sees no locks of the primary. One that lives and was not
-- seen for 30 s is `silent`: it is frozen, or cannot write. `queues` is null of a version that
-- does not say.
create or replace function processors() returns table (id bigint, node text, host text, pid integer,
  queues text[], started_at timestamptz, seen_at timestamptz, alive boolean, silent boolean)
language sql stable set search_path from current as $$
  with held as materialized (
    select (l.classid::bigint << 32) | l.objid::bigint as key from pg_catalog.pg_locks l
    where l.locktype = 'advisory' and l.granted and l.objsubid = 1
      and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database()))
  select o.id, o.node, o.host, o.pid, o.queues, o.started_at, o.seen_at, o.alive,
    o.alive and o.seen_at <= written_until() - interval '30 s'
  from (
    select p.*,
      case when p.presence_key is null or pg_catalog.pg_is_in_recovery()
          then p.seen_at > written_until() - interval '30 s'
        else p.presence_key in (select h.key from held h) end as alive
    from processor p) o
  order by o.id
$$;

-- Returns the timeout of a queue's handlers in a processor, in milliseconds; null: it has none. If
-- that one does not serve the queue, or is gone, the longest of the others counts.
create or replace function {schema}.queue_timeout_ms(of_queue text, of_processor bigint) returns bigint
language sql stable as $$
  select case
    when exists (
      select from {schema}.processor p where p.id = of_processor and of_queue = any (p.queues))
    then (select p.timeouts_ms[array_position(p.queues, of_queue)] from {schema}.processor p
      where p.id = of_processor)
    else (select max(o.timeouts_ms[array_position(o.queues, of_queue)]) from {schema}.processor o
      where of_queue = any (o.queues)) end
$$;
