-- Queues dead letters again, those of one group in their original order and before its other jobs.
-- Their attempts begin anew, an expiry that is over is cleared, and halts by them end. Left out are
-- jobs that others are parked with, jobs that are no dead letters, and locked ones.
--
-- `overtaken`: as `begun_behind` says.
--
-- Locks: the jobs NO KEY UPDATE, skips; then the rows of groups that they halted.
create or replace function redrive_jobs(ids bigint[], reason text default null, actor text default session_user,
  out jobs bigint, out groups bigint, out overtaken bigint)
language plpgsql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  locked bigint[]; one record;
begin
  select array_agg(t.id order by t.id) into locked from (
    select j.id from unnest(ids) wanted(id) join job j on j.id = any (array[wanted.id])
    where j.status::text in ('failed') and not has_parked(j.queue, j.group_id, j.id)
    for no key update of j skip locked) t;
  locked := coalesce(locked, '{}');
  update job j set {requeued},
    -- The first of a group is enough.
    flagged = j.flagged or j.id in (
      select min(f.id) from job f where f.id = any (locked) and f.group_id is not null group by f.queue, f.group_id)
  where j.id = any (locked);
  jobs := cardinality(locked);
  groups := 0;
  overtaken := begun_behind(locked);
  for one in
    select j.queue, j.group_id, array_agg(j.id) as ids from job j
    where j.id = any (locked) group by j.queue, j.group_id order by 1, 2
  loop
    if one.group_id is not null then
      groups := groups + 1;
      update queue_group g set {unhalted}
      where g.queue = one.queue and g.group_id = one.group_id
        and g.halt_job_id = any (one.ids) and g.halted_at is not null and g.park_to is null;
    end if;
  end loop;
  perform record_operations(actor, 'redrive', locked, reason);
end $$;

-- The same for up to `n` dead letters of a queue, or of one group of it, the lowest ids first.
create or replace function redrive(queue text, group_id text default null, n integer default 1000, reason text default null,
  actor text default session_user, out jobs bigint, out groups bigint, out overtaken bigint)
language plpgsql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
  perform check_count(redrive.n);
  select r.jobs, r.groups, r.overtaken into jobs, groups, overtaken from redrive_jobs(array(
    select j.id from job j
    where j.queue = redrive.queue and j.status = 'failed'
      and (redrive.group_id is null or j.group_id = redrive.group_id)
      and not has_parked(j.queue, j.group_id, j.id)
    order by j.queue, j.id limit redrive.n), reason, actor) r;
end $$;

-- Gives dead letters up: they end as cancelled, and halts by them end. A retry brings one back.
-- Left out are jobs that others are parked with, jobs that are no dead letters, and locked ones.
-- Returns how many.
create or replace function discard_jobs(ids bigint[], reason text default null, actor text default session_user) returns bigint
language plpgsql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  discarded bigint[] := '{}'; one record;
begin
  for one in
    select j.id, j.queue, j.group_id from unnest(ids) wanted(id) join job j on j.id = any (array[wanted.id])
    where j.status::text in ('failed') and not has_parked(j.queue, j.group_id, j.id)
    order by j.id for no key update of j skip locked
  loop
    update job j set {cancelled}, flagged = j.group_id is not null where j.id = one.id;
    perform unhalt_by(one.queue, one.group_id, one.id);
    discarded := discarded || one.id;
  end loop;
  perform record_operations(actor, 'discard', discarded, reason);
  return cardinality(discarded);
end $$;
