-- Queues dead letters of `ids` again that a receiver has looked at in their dead-letter queue, and
-- whose visibility is over. Where nobody receives, no receive would take them over.
create or replace function return_dead_letters(ids bigint[]) returns void
language plpgsql volatile
set search_path from current
as $$
begin
  perform return_lapsed(l.queue) from (
    select distinct j.queue from unnest(ids) wanted(id) join job j on j.id = any (array[wanted.id])
    where j.moved_from is not null and job_state(j.status, j.queue, j.group_id, j.id) = 'started') l;
end $$;

-- Queues dead letters again, those of one group in their original order and before its other jobs.
-- Their attempts begin anew, an expiry that is over is cleared, and halts by them end. Those that
-- wait in a dead-letter queue are moved back to the queue that they came from (`moved_back`). Left
-- out are jobs that others are parked with, jobs that are no dead letters, and locked ones; in a
-- dead-letter queue also those of a group that is held, as leave_group says.
--
-- `overtaken`: as `begun_behind` says.
--
-- Locks: the jobs NO KEY UPDATE, skips; then rows of groups in dead-letter queues, as leave_group,
-- and the rows of groups that they halted.
create or replace function redrive_jobs(ids bigint[], reason text default null, actor text default session_user,
  out jobs bigint, out groups bigint, out overtaken bigint, out moved_back bigint)
language plpgsql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  failed bigint[]; waiting bigint[]; back bigint[] := '{}'; redriven bigint[]; one record;
begin
  perform return_dead_letters(ids);
  loop
    begin
      select coalesce(array_agg(t.id) filter (where t.status = 'failed'), '{}'),
          coalesce(array_agg(t.id) filter (where t.status = 'queued'), '{}') into failed, waiting
      from (
        select j.id, j.status from unnest(ids) wanted(id) join job j on j.id = any (array[wanted.id])
        where j.status::text in ('failed') and not has_parked(j.queue, j.group_id, j.id)
          or j.status::text in ('queued') and j.moved_from is not null
            and (select true from claim_of(j.queue, j.group_id, j.id) c) is null
        for no key update of j skip locked) t;
      perform check_unclaimed(waiting);
      exit;
    exception when sqlstate 'SQ001' then
      -- The next look sees the claim.
    end;
  end loop;
  update job j set {requeued},
    -- The first of a group is enough.
    flagged = j.flagged or j.id in (
      select min(f.id) from job f where f.id = any (failed) and f.group_id is not null group by f.queue, f.group_id)
  where j.id = any (failed);
  for one in
    select j.queue, j.group_id, array_agg(j.id) as ids from job j
    where j.id = any (waiting) group by j.queue, j.group_id order by 1, 2
  loop
    if one.group_id is null or not (select l.held from leave_group(one.queue, one.group_id, one.ids) l) then
      back := back || one.ids;
    end if;
  end loop;
  for one in
    select j.moved_from, array_agg(j.id) as ids from job j where j.id = any (back) group by j.moved_from
  loop
    perform move_locked(one.ids, one.moved_from, null);
  end loop;
  redriven := failed || back;
  jobs := cardinality(redriven);
  groups := 0;
  overtaken := begun_behind(redriven);
  moved_back := cardinality(back);
  for one in
    select j.queue, j.group_id, array_agg(j.id) as ids from job j
    where j.id = any (redriven) group by j.queue, j.group_id order by 1, 2
  loop
    if one.group_id is not null then
      groups := groups + 1;
      update queue_group g set {unhalted}
      where g.queue = one.queue and g.group_id = one.group_id
        and g.halt_job_id = any (one.ids) and g.halted_at is not null and g.park_to is null;
    end if;
  end loop;
  perform record_operations(actor, 'redrive', redriven, reason);
end $$;

-- The same for up to `n` dead letters of a queue, or of one group of it, the lowest ids first:
-- those that failed in it, wherever they wait.
create or replace function redrive(queue text, group_id text default null, n integer default 1000, reason text default null,
  actor text default session_user, out jobs bigint, out groups bigint, out overtaken bigint, out moved_back bigint)
language plpgsql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
  perform check_count(redrive.n);
  perform return_lapsed(q.dead_letter_queue) from queue q where q.name = redrive.queue and q.dead_letter_queue is not null;
  select r.jobs, r.groups, r.overtaken, r.moved_back into jobs, groups, overtaken, moved_back from redrive_jobs(array(
    select d.id from (
      (select j.id from job j
        where j.queue = redrive.queue and j.status = 'failed' and (redrive.group_id is null or j.group_id = redrive.group_id)
          and not has_parked(j.queue, j.group_id, j.id)
        order by j.queue, j.id limit redrive.n)
      union all
      -- All that wait in dead-letter queues are read.
      (select j.id from job j
        where j.moved_from = redrive.queue and {waits_as_dead_letter} and (redrive.group_id is null or j.group_id = redrive.group_id)
        order by j.id + 0 limit redrive.n)) d
    order by d.id limit redrive.n), reason, actor) r;
end $$;

-- Gives dead letters up, also those that wait in a dead-letter queue: they end as cancelled, and
-- halts by them end. A retry brings one back; where it waited, it waits again. Left out are jobs
-- that others are parked with, jobs that are no dead letters, and locked ones. Returns how many.
create or replace function discard_jobs(ids bigint[], reason text default null, actor text default session_user) returns bigint
language plpgsql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  discarded bigint[]; one record;
begin
  perform return_dead_letters(ids);
  loop
    begin
      discarded := array(
        select j.id from unnest(ids) wanted(id) join job j on j.id = any (array[wanted.id])
        where j.status::text in ('failed') and not has_parked(j.queue, j.group_id, j.id)
          or j.status::text in ('queued') and j.moved_from is not null
            and (select true from claim_of(j.queue, j.group_id, j.id) c) is null
        order by j.id for no key update of j skip locked);
      perform check_unclaimed(discarded);
      exit;
    exception when sqlstate 'SQ001' then
      -- The next look sees the claim.
    end;
  end loop;
  for one in
    update job j set {cancelled}, flagged = j.group_id is not null where j.id = any (discarded)
    returning j.id, j.queue, j.group_id
  loop
    perform unhalt_by(one.queue, one.group_id, one.id);
  end loop;
  perform record_operations(actor, 'discard', discarded, reason);
  return cardinality(discarded);
end $$;
