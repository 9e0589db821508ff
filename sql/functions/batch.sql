-- Batches: opened, sealed, ended, abandoned, listed, forgotten. Any process may end one at any
-- time; its row is locked, so its follow-up is enqueued once.

-- Opens a batch, and returns its id. `name` is for people. The follow-up is a stored job (see
-- stored_job.sql) of a queue and a group; it is enqueued when all jobs of the batch have ended
-- (`all_ended`), or when all have succeeded (`all_succeeded`). Jobs join by `enqueue(batch => …)`
-- until it is sealed.
create or replace function open_batch(name text, queue text, group_id text, job jsonb,
  starts_when text default 'all_succeeded') returns bigint
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  opened bigint;
begin
  if open_batch.name is null then
    raise exception 'the batch is null' using errcode = '22023', hint = 'Name the batch.';
  end if;
  perform check_name('batch', open_batch.name, {batch_limit});
  perform check_stored_job(open_batch.queue, open_batch.group_id, open_batch.job);
  if open_batch.starts_when is null or open_batch.starts_when not in ('all_ended', 'all_succeeded') then
    raise exception 'starts_when is %', coalesce(quote_literal(open_batch.starts_when), 'null')
      using errcode = '22023', hint = 'Pass all_ended or all_succeeded.';
  end if;
  insert into batch as b (name, starts_when, queue, group_id, job)
  select open_batch.name, open_batch.starts_when, open_batch.queue, open_batch.group_id, open_batch.job
  returning b.id into opened;
  return opened;
end $$;

-- Seals a batch: no job joins any more, and it ends when its jobs have. One without jobs ends at
-- once. Returns whether it was open; null: there is no such batch.
--
-- Locks: the batch's row, as an update of no key: waits for another seal, and for no join. A
-- transaction that has joined and is still open keeps the batch from its end, not from the seal.
create or replace function seal_batch(batch bigint) returns boolean
language plpgsql volatile set search_path from current as $$
declare
  sealed boolean;
begin
  update batch b set sealed_at = clock_timestamp() where b.id = seal_batch.batch and b.sealed_at is null;
  if found then
    insert into batch_due (batch_id) select seal_batch.batch;
    perform wake('');
    return true;
  end if;
  select false into sealed from batch b where b.id = seal_batch.batch;
  return sealed;
end $$;

-- Whether a job of a batch is unfinished. Unfinished jobs are the last ones, as a rule.
create or replace function batch_runs(of_batch bigint) returns boolean
language plpgsql volatile set search_path from current {pinned} as $$
begin
  return (select j.id from job j
    where j.batch_id = of_batch and j.finished_at is null and j.moved_from is null
    order by j.batch_id desc, j.id desc limit 1) is not null;
end $$;

-- Ends a batch if its jobs have ended as they must, and enqueues its follow-up. Returns what has
-- changed: ended, or failed (all jobs have ended, and not all as they must); null: nothing. The
-- follow-up has the batch in a header. It is no duplicate of any job.
--
-- The batch is sealed, and this transaction has locked its row in a statement before. So all jobs
-- that joined have committed, and a snapshot that is younger than the lock has them.
create or replace function end_batch(of_batch bigint) returns text
language plpgsql volatile set search_path from current {pinned} as $$
declare
  ends batch; new_job bigint;
begin
  select b.* into ends from batch b where b.id = of_batch;
  if batch_runs(of_batch) then
    -- A job of it runs again.
    update batch b set failed_at = null where b.id = of_batch and b.failed_at is not null;
    return null;
  end if;
  if ends.starts_when = 'all_succeeded' and (
      select e.job_id from batch_end e
      where e.batch_id = of_batch and e.status <> 'succeeded' limit 1) is not null
  then
    update batch b set failed_at = clock_timestamp() where b.id = of_batch and b.failed_at is null;
    return case when found then 'failed' end;
  end if;
  new_job := enqueue_stored(ends.queue, ends.group_id, ends.job,
    jsonb_build_object({ended_batch}, of_batch::text),
    case when (select q.dedup_by_content from queue q where q.name = ends.queue)
      then encode(sha256(convert_to('batch ' || of_batch, 'UTF8')), 'hex') end);
  update batch b set ended_at = clock_timestamp(), follow_up = new_job, failed_at = null, refused = null
  where b.id = of_batch;
  return 'ended';
end $$;

-- Looks at batches that something happened to: up to `n` rows of `batch_due`. Ends those whose jobs
-- have ended. Returns a row for each that has ended, has failed, or whose follow-up was refused.
--
-- A row of `batch_due` is read, then the batch's row is locked, then its jobs are read, each in a
-- statement of its own. So the look that takes the row of the last end sees all ends. A batch
-- whose row another transaction has (one that joined, one that looks) keeps one row, for the next
-- look. One that is not sealed keeps none: its seal leaves one.
--
-- Locks: rows of `batch_due` and of batches FOR UPDATE, skips; then as an enqueue.
create or replace function end_batches(n integer default 1000)
returns table (batch bigint, name text, state text, follow_up bigint, error text)
language plpgsql volatile set search_path from current {pinned} as $$
#variable_conflict use_column
declare
  due tid[]; wanted bigint[]; locked bigint[]; of_batch bigint;
begin
  perform check_count(n);
  perform check_isolation('the end of batches');
  select array_agg(d.ctid), array_agg(distinct d.batch_id) into due, wanted from (
    select d.ctid, d.batch_id from batch_due d limit n for update skip locked) d;
  if due is null then
    return;
  end if;
  locked := array(
    select b.id from batch b
    where b.id = any (wanted) and b.sealed_at is not null and b.ended_at is null
    order by b.id for update skip locked);
  delete from batch_due d where d.ctid = any (due);
  insert into batch_due (batch_id)
  select b.id from batch b
  where b.id = any (wanted) and b.id <> all (locked) and b.sealed_at is not null and b.ended_at is null;
  foreach of_batch in array locked loop
    error := null;
    begin
      state := end_batch(of_batch);
    exception
      when lock_not_available or transaction_rollback or insufficient_resources or operator_intervention then
        raise;
      when others then
        -- The others are not held up. Maintenance tries again in its next round.
        state := 'refused';
        error := sqlerrm;
        update batch b set refused = sqlerrm where b.id = of_batch;
    end;
    if state is not null then
      select b.id, b.name, b.follow_up into batch, name, follow_up from batch b where b.id = of_batch;
      return next;
    end if;
  end loop;
end $$;

-- Lets up to `n` sealed batches behind `after` be looked at, whatever their jobs have left. Returns
-- the last of them, if there may be more.
create or replace function note_batches(after bigint, n integer) returns bigint
language plpgsql volatile set search_path from current {pinned} as $$
declare
  noted bigint[];
begin
  noted := array(
    select b.id from batch b where b.ended_at is null and b.id > after and b.sealed_at is not null
    order by b.id limit n);
  insert into batch_due (batch_id) select u.id from unnest(noted) u(id);
  return case when cardinality(noted) >= n then noted[n] end;
end $$;

-- Forgets up to `n` batches behind `after`, and how their jobs have ended: those whose follow-up's
-- job is gone, and those that were abandoned a day ago. Up to 10,000 ends of each go at once.
-- Returns the last that it looked at, if there may be more.
--
-- Locks: rows of batches FOR UPDATE, skips.
create or replace function forget_batches(after bigint, n integer) returns bigint
language plpgsql volatile set search_path from current {pinned} as $$
declare
  looked bigint[]; of_batch bigint; deleted bigint;
begin
  looked := array(
    select b.id from batch b where b.ended_at is not null and b.id > after order by b.id limit n);
  for of_batch in
    select b.id from unnest(looked) l(id) join batch b on b.id = any (array[l.id])
    where case when b.follow_up is null then b.ended_at < clock_timestamp() - interval '1 day'
      else (select j.id from job j where j.id = b.follow_up) is null end
    for update of b skip locked
  loop
    delete from batch_end e where e.ctid = any (array(
      select e.ctid from batch_end e where e.batch_id = of_batch limit 10000));
    get diagnostics deleted = row_count;
    if deleted < 10000 then
      delete from batch b where b.id = of_batch;
    end if;
  end loop;
  return case when cardinality(looked) >= n then looked[n] end;
end $$;

-- Abandons a batch that has not ended: its follow-up is never enqueued, and no job joins any more.
-- Its jobs stay, and run. Returns whether it did; null: there is no such batch.
--
-- Locks: the batch's row, as an update of no key: waits for a process that ends it.
create or replace function abandon_batch(batch bigint, reason text default null,
  actor text default session_user) returns boolean
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  abandoned batch;
begin
  update batch b set ended_at = clock_timestamp(), sealed_at = coalesce(b.sealed_at, clock_timestamp()),
    failed_at = null
  where b.id = abandon_batch.batch and b.ended_at is null returning b.* into abandoned;
  if not found then
    return (select false from batch b where b.id = abandon_batch.batch);
  end if;
  perform record_change(actor, 'abandon_batch', abandoned.queue, abandoned.group_id, null, reason, 1,
    format('(batch %s)', abandoned.id), null);
  return true;
end $$;

-- Returns batches, the newest first: the one of an id, or up to `n` (100 at most) below `before`.
-- Numbers are counted up to 10,001, or in a list to 1,001.
--
-- `state` is open (not sealed), running (jobs are unfinished), failed (all have ended, and the
-- follow-up would start if all had succeeded), refused (the follow-up could not be enqueued),
-- ending, ended (the follow-up was enqueued) or abandoned. `unsuccessful` leaves out jobs that run
-- again.
create or replace function batches(batch bigint default null, before bigint default null,
  n integer default 100, pending boolean default false)
returns table (id bigint, name text, starts_when text, queue text, group_id text, opened_at timestamptz,
  sealed_at timestamptz, ended_at timestamptz, failed_at timestamptz, follow_up bigint, state text,
  refused text, unfinished bigint, succeeded bigint, unsuccessful bigint)
language sql volatile set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off
set jit = off as $$
  select check_count(batches.n);
  select b.id, b.name, b.starts_when, b.queue, b.group_id, b.opened_at, b.sealed_at, b.ended_at, b.failed_at,
    b.follow_up, case when b.follow_up is not null then 'ended'
      when b.ended_at is not null then 'abandoned'
      when b.sealed_at is null then 'open'
      when counted.unfinished > 0 then 'running'
      when b.refused is not null then 'refused'
      when b.starts_when = 'all_succeeded' and counted.unsuccessful > 0 then 'failed'
      else 'ending' end,
    b.refused, counted.*
  from batch b
  cross join (select case when batches.batch is null then 1001 else {count_limit} end as bound) of
  cross join lateral (
    select (select count(*) from (
        select from job j where j.batch_id = b.id and j.finished_at is null and j.moved_from is null
        limit bound) c) as unfinished,
      (select count(*) from (
        select from batch_end e where e.batch_id = b.id and e.status = 'succeeded' limit bound) c)
        as succeeded,
      (select count(*) from (
        select from batch_end e
        where e.batch_id = b.id and e.status <> 'succeeded' and (
          select j.id from job j
          where j.id = e.job_id and j.finished_at is null and j.moved_from is null) is null
        limit bound) c) as unsuccessful) counted
  where (batches.batch is null or b.id = batches.batch) and (before is null or b.id < before)
    and (not pending or b.ended_at is null)
  order by b.id desc limit least(batches.n, 100)
$$;

-- Returns how jobs of a batch have ended, in the order of their ids: up to `n` (1000 at most)
-- behind the job `after`. `status` is succeeded, failed or cancelled: that of its last end, also
-- while the job runs again. `result` is that of the job; null as well if it had more than 64 KiB
-- and the job was deleted.
create or replace function batch_jobs(batch bigint, after bigint default null, n integer default 1000)
returns table (job bigint, queue text, group_id text, status text, result jsonb, ended_at timestamptz,
  error text)
language sql volatile set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off
set jit = off as $$
  select check_count(batch_jobs.n);
  select e.job_id, e.queue, e.group_id, e.status::text, coalesce(e.result, j.result), e.ended_at,
    case when e.status <> 'succeeded' then j.error->>'message' end
  from batch_end e left join job j on j.id = e.job_id
  where e.batch_id = batch_jobs.batch and (after is null or e.job_id > after)
  order by e.batch_id, e.job_id limit least(batch_jobs.n, 1000)
$$;
