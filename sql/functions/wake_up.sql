-- Wakes workers of a queue; without a name, maintenance. All notifications are sent here.
--
-- A wake-up is a hint, and no transaction may fail for it (P5): when the server's NOTIFY queue is
-- full, each commit that has notified fails. A session that listens and stays in a transaction, in
-- any database, fills it. So none is sent while it is half full: idle workers poll.
create or replace function {schema}.wake(of_queue text) returns void
language sql volatile as $$
  select case when pg_notification_queue_usage() < 0.5
    then pg_notify({schema_text} || '.wake', of_queue) end
$$;

-- Whether an enqueue should wake a worker: a hint, from reads that lock nothing. A group with a row
-- is in line already, and its worker will come to the job. One function for all groups of an
-- enqueue, and for its jobs without a group.
--
-- A session that saw a burst of other jobs, for which a worker comes, relies on it for the rest of
-- these 10 ms. A setting says which 10 ms, and of which queue; it is forgotten with what is rolled
-- back. A worker that takes many jobs rechecks 30 ms later. Both functions are asked often, so they
-- are such that they become part of their caller's statement.

create or replace function {schema}.this_burst(of_queue text) returns text
language sql volatile as $$
  select floor(date_part('epoch', clock_timestamp()) * 100)::bigint
    || ' ' || {job_table}::regclass::oid || ' ' || of_queue
$$;

-- Not if the transaction has taken a while: when it commits, the worker may not recheck any more.
create or replace function {schema}.saw_burst(of_queue text) returns boolean
language sql volatile as $$
  select current_setting('seriatim.burst', true) = {schema}.this_burst(of_queue)
    and clock_timestamp() < now() + interval '5 ms'
    and current_setting('transaction_isolation') <> 'serializable'
$$;

create or replace function seems_idle(of_queue text, of_groups text[], and_plain boolean) returns boolean
language plpgsql stable set search_path from current
-- In a producer's session, a plan made while the tables were nearly empty would go on scanning
-- them, and most queries would be planned anew each time.
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  of_group text;
  at constant timestamptz := clock_timestamp();
  young constant boolean := at < now() + interval '5 ms';
begin
  -- Under SERIALIZABLE a read would be a dependency, by which producers abort each other (40001).
  if current_setting('transaction_isolation') = 'serializable' then
    return true;
  end if;
  if and_plain and not exists (
    select from job j
    where j.queue = of_queue and j.group_id is null and j.status = 'queued' and j.turn_at <= now())
  then
    return true;
  end if;
  if saw_burst(of_queue) then
    return false;
  end if;
  foreach of_group in array coalesce(of_groups, '{}') loop
    -- Null is a job without a group, which was asked for above.
    if of_group is not null
      -- From the end, where the live version of its row is. Before it there may be many dead ones
      -- that vacuum is kept from.
      and (select g.group_id from queue_group g
        where g.queue = of_queue and g.group_id between of_group and of_group
        order by g.group_id desc limit 1) is null
    then
      -- Unless sixteen others, into groups that were idle too and due at once, have just woken a
      -- worker that rechecks: all notifying transactions wait for each other. Not if the
      -- transaction has taken a while: when it commits, the worker may not recheck any more.
      if not young or not exists (
        select from (
          select j.group_id, j.run_at, j.created_at from job j
          where j.queue = of_queue and j.flagged and {flag_at} between at - interval '20 ms' and at
          order by {flag_at} desc limit 32) fresh
        where fresh.run_at <= fresh.created_at
          and (select g.group_id from queue_group g
            where g.queue = of_queue and g.group_id between fresh.group_id and fresh.group_id
            order by g.group_id desc limit 1) is null
        offset 15 limit 1)
      then
        return true;
      end if;
      perform set_config('seriatim.burst', this_burst(of_queue), false);
      return false;
    end if;
  end loop;
  return false;
end $$;
