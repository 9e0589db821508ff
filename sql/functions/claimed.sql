-- Who has a job. A job without a group says so itself. A job with a group is queued until something
-- about it has ended; its group's row names it while it is claimed. Whatever shows or changes a job
-- asks here.

-- Returns the jobs of a claim that have not ended.
create or replace function {schema}.unfinished(job_id bigint, batch bigint[]) returns table (id bigint)
language sql stable as $$
  select c.id from unnest(coalesce(batch, array[job_id])) c(id)
  where (select j.id from {schema}.job j
    where j.id = any (array[c.id]) and j.finished_at is null limit 1) is not null
$$;

-- Returns the claim that names a job of a group; no row: none does. `started_at` is null if the
-- claim began no attempt.
create or replace function {schema}.claim_of(of_queue text, of_group text, of_job bigint)
returns table (claim uuid, claimed_by bigint, started_at timestamptz, ready_at timestamptz)
language sql stable as $$
  select g.claim, g.claimed_by, g.started_at, g.ready_at from {schema}.queue_group g
  where g.queue = of_queue and g.group_id between of_group and of_group and of_job = any ({claimed_jobs_g})
  limit 1
$$;

-- Returns the jobs that no claim names, in the order given. This transaction has locked them in an
-- earlier statement, so a snapshot that is as old as the transaction would hide a claim.
create or replace function {schema}.unclaimed(ids bigint[]) returns bigint[]
language plpgsql stable as $$
begin
  perform {schema}.check_isolation('a change of jobs that wait');
  return array(
    select j.id from unnest(ids) with ordinality chosen(id, place)
    join {schema}.job j on j.id = any (array[chosen.id])
    where j.group_id is null
      or (select true from {schema}.claim_of(j.queue, j.group_id, j.id) c) is null
    order by chosen.place);
end $$;

-- Returns what a job is: started while a claim names it. Producers ask it, who may not read claims.
create or replace function {schema}.job_state(status {schema}.job_status, of_queue text, of_group text,
  of_job bigint) returns {schema}.job_status
language sql stable as $$
  select case when status = 'queued' and of_group is not null and (
      select true from {schema}.queue_group g
      where g.queue = of_queue and g.group_id between of_group and of_group
        and of_job = any ({claimed_jobs_g}) limit 1) then 'started' else status end
$$;

-- Raises SQ001 if a claim names one of the jobs. This transaction has locked them, in a statement
-- before: a claim locks a job before it names it, and writes nothing to it. So the lock alone says
-- nothing about a claim that was committed just before.
--
-- The caller locks in a block that catches this, and so gives the locks back: in a transaction that
-- stays open, a worker's settle would wait for them.
create or replace function {schema}.check_unclaimed(ids bigint[]) returns void
language plpgsql stable as $$
begin
  if cardinality({schema}.unclaimed(ids)) < cardinality(ids) then
    raise sqlstate 'SQ001';
  end if;
end $$;

-- Returns the key of the advisory lock of an abort that ends a session. The session's process would
-- record the error of its query as a failure, and waits for the abort's commit before that.
create or replace function {schema}.session_end_key(of_session integer) returns bigint
language sql immutable parallel safe as $$
  select hashtextextended('seriatim ends session ' || of_session, 0)
$$;

-- Returns the session whose transaction has locked a row, by the row's `xmax`: it must have a lock
-- on the row's table as well, as the number may also be that of a set of transactions. In a set
-- those count that keep others from writing the row.
create or replace function locker(of_xmax text, of_table text) returns integer
language plpgsql stable set search_path from current as $$
declare
  xids text[] := array[of_xmax]; of_session integer;
begin
  for round in 1..2 loop
    select l.pid into of_session from pg_catalog.pg_locks l
    where l.locktype = 'transactionid' and l.granted and l.mode = 'ExclusiveLock'
      and l.transactionid::text = any (xids)
      and exists (select from pg_catalog.pg_locks r
        where r.pid = l.pid and r.locktype = 'relation' and r.granted and r.relation = of_table::regclass)
    limit 1;
    if found or round = 2 then
      return of_session;
    end if;
    begin
      xids := array(
        select m.xid::text from pg_catalog.pg_get_multixact_members(of_xmax::xid) m
        where m.mode not in ('keysh', 'sh'));
    exception when others then
      -- No such set: the row was last locked by a single transaction, which has ended.
      return null;
    end;
  end loop;
end $$;
