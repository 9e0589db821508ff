-- Locks those of `ids` that are dead letters: jobs that have failed, unless others are parked with
-- them, and jobs that wait in a dead-letter queue. Jobs that a receiver has received there, and
-- whose visibility is over, are queued again first: if nobody receives, no receive would take them
-- over.
--
-- Locks: the jobs NO KEY UPDATE, skips.
create or replace function lock_dead_letters(ids bigint[]) returns bigint[]
language plpgsql volatile set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  locked bigint[];
begin
  perform return_lapsed(l.queue) from (
    select distinct j.queue from unnest(ids) wanted(id) join job j on j.id = any (array[wanted.id])
    where j.moved_from is not null and job_state(j.status, j.queue, j.group_id, j.id) = 'started') l;
  loop
    begin
      locked := array(
        select j.id from unnest(ids) wanted(id) join job j on j.id = any (array[wanted.id])
        where j.status::text in ('failed') and not has_parked(j.queue, j.group_id, j.id)
          or j.status::text in ('queued') and j.moved_from is not null
            and (select true from claim_of(j.queue, j.group_id, j.id) c) is null
        order by j.id for no key update of j skip locked);
      perform check_unclaimed(locked);
      return locked;
    exception when sqlstate 'SQ001' then
      -- The next look sees the claim.
    end;
  end loop;
end $$;

-- Queues dead letters again. The dead letters of one group keep their original order, before its
-- other jobs. Their attempts begin anew, an expiry that is over is cleared, and halts by them end.
-- Dead letters that wait in a dead-letter queue are moved back to the queue that they came from
-- (`moved_back`). Jobs that others are parked with, jobs that are no dead letters, and locked jobs
-- are left out; so are jobs in a dead-letter queue if their group is held (see leave_group).
--
-- `overtaken`: as `begun_behind` says.
--
-- Locks: the jobs NO KEY UPDATE, skips; then rows of groups in dead-letter queues, as leave_group,
-- and the rows of groups that they halted.
create or replace function redrive_jobs(ids bigint[], reason text default null,
  actor text default session_user,
  out jobs bigint, out groups bigint, out overtaken bigint, out moved_back bigint)
language plpgsql volatile set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  locked bigint[]; failed bigint[]; back bigint[] := '{}'; redriven bigint[]; waiting record;
begin
  locked := lock_dead_letters(ids);
  failed := array(select j.id from job j where j.id = any (locked) and j.status::text in ('failed'));
  update job j set {requeued},
    -- The first of a group is enough.
    flagged = j.flagged or j.id in (
      select min(f.id) from job f where f.id = any (failed) and f.group_id is not null
      group by f.queue, f.group_id)
  where j.id = any (failed);
  for waiting in
    select j.queue, j.group_id, array_agg(j.id) as ids from job j
    where j.id = any (locked) and j.id <> all (failed) group by j.queue, j.group_id order by 1, 2
  loop
    if waiting.group_id is null
      or not (select l.held from leave_group(waiting.queue, waiting.group_id, waiting.ids) l)
    then
      back := back || waiting.ids;
    end if;
  end loop;
  perform move_locked(back, null, null);
  redriven := failed || back;
  jobs := cardinality(redriven);
  overtaken := begun_behind(redriven);
  moved_back := cardinality(back);
  groups := (
    select count(end_halt(r.queue, r.group_id, r.ids)) from (
      select j.queue, j.group_id, array_agg(j.id) as ids from job j
      where j.id = any (redriven) and j.group_id is not null
      group by j.queue, j.group_id order by 1, 2) r);
  perform record_operations(actor, 'redrive', redriven, reason, null);
end $$;

-- The same for up to `n` dead letters of a queue, or of one group of it, the lowest ids first:
-- those that failed in it, wherever they wait.
create or replace function redrive(queue text, group_id text default null, n integer default 1000,
  reason text default null, actor text default session_user,
  out jobs bigint, out groups bigint, out overtaken bigint, out moved_back bigint)
language plpgsql volatile set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
  perform check_count(redrive.n);
  perform return_lapsed(q.dead_letter_queue) from queue q
  where q.name = redrive.queue and q.dead_letter_queue is not null;
  select r.* into jobs, groups, overtaken, moved_back from redrive_jobs(array(
    select dead.id from (
      (select j.id from job j
        where j.queue = redrive.queue and j.status = 'failed' and not has_parked(j.queue, j.group_id, j.id)
          and (redrive.group_id is null or j.group_id = redrive.group_id)
        order by j.queue, j.id limit redrive.n)
      union all
      -- All that wait in dead-letter queues are read.
      (select j.id from job j
        where j.moved_from = redrive.queue and {waits_as_dead_letter}
          and (redrive.group_id is null or j.group_id = redrive.group_id)
        order by j.id + 0 limit redrive.n)) dead
    order by dead.id limit redrive.n), reason, actor) r;
end $$;

-- Gives dead letters up, also those that wait in a dead-letter queue: they end as cancelled, and
-- halts by them end. A retry brings one back; where it waited, it waits again. Left out are jobs
-- that others are parked with, jobs that are no dead letters, and locked ones. Returns how many.
create or replace function discard_jobs(ids bigint[], reason text default null,
  actor text default session_user) returns bigint
language plpgsql volatile set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  discarded bigint[]; dead record;
begin
  discarded := lock_dead_letters(ids);
  for dead in
    update job j set {cancelled}, flagged = j.group_id is not null where j.id = any (discarded)
    returning j.id, j.queue, j.group_id
  loop
    perform end_halt(dead.queue, dead.group_id, array[dead.id]);
  end loop;
  perform mark_ends(discarded);
  perform record_operations(actor, 'discard', discarded, reason, null);
  return cardinality(discarded);
end $$;
