-- Jobs that are parked with a failed one, redriven or given up as a unit.

-- Locks the jobs that are parked with one, or with any of their group, and those that failed.
-- `busy`: another transaction has one of them, or jobs are still stepping aside: those that follow
-- would stay behind. All in one statement, so in one snapshot.
--
-- Locks: the jobs NO KEY UPDATE, skips.
create or replace function lock_parked(of_queue text, of_group text, of_job bigint,
  out ids bigint[], out busy boolean)
language plpgsql volatile set search_path from current as $$
begin
  with unit as (
    select j.id from job j
    where j.queue = of_queue and j.group_id = of_group and j.parked_with is not null
      and (of_job is null or j.parked_with = of_job) and j.status in ('failed', 'parked')),
  locked as (
    select j.id from job j
    where j.id in (select unit.id from unit) and j.parked_with is not null
      and j.status in ('failed', 'parked')
    for no key update skip locked)
  select array(select locked.id from locked order by 1),
      (select count(*) from unit) <> (select count(*) from locked)
        or exists (select from queue_group g
          where g.queue = of_queue and g.group_id = of_group and g.park_to is not null
            and (of_job is null or g.halt_job_id = of_job))
    into ids, busy;
end $$;

-- Queues the jobs again that are parked with `job`, and that job, in their original order; without
-- `job`, all parked jobs of the group. The attempts of the failed one begin anew. `busy`: nothing
-- was done, another transaction has a row of theirs, or they are still being parked.
--
-- `overtaken`: as `begun_behind` says.
--
-- Locks: the jobs NO KEY UPDATE, skips.
create or replace function redrive_parked(queue text, group_id text, job bigint default null,
  reason text default null, actor text default session_user,
  out jobs bigint, out groups bigint, out overtaken bigint, out busy boolean)
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  ids bigint[];
begin
  jobs := 0;
  groups := 0;
  overtaken := 0;
  select l.* into ids, busy from lock_parked(queue, group_id, job) l;
  if busy or ids = '{}' then
    return;
  end if;
  -- The lowest id, the failed one, is flagged and so goes first (P1).
  update job j set
    run_at = case when j.status = 'failed' then now() else j.run_at end,
    turn_at = case when j.status = 'failed' then now() else j.turn_at end,
    attempts_forgiven = case when j.status = 'failed' then j.attempts else j.attempts_forgiven end,
    status = 'queued', finished_at = null, parked_with = null, expires_at = null,
    flagged = j.flagged or j.id = ids[1]
  where j.id = any (ids);
  jobs := cardinality(ids);
  groups := 1;
  overtaken := begun_behind(ids);
  perform record_operation(actor, 'redrive_parked', queue, group_id, job, reason, jobs);
end $$;

-- Gives the parked jobs up: they end as cancelled, and the failed one stays a dead letter of its
-- own. Returns how many; null: nothing was done, as `busy` of `redrive_parked`.
--
-- Locks: the jobs NO KEY UPDATE, skips.
create or replace function discard_parked(queue text, group_id text, job bigint default null,
  reason text default null, actor text default session_user) returns bigint
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  unit record; discarded bigint;
begin
  unit := lock_parked(queue, group_id, job);
  if unit.busy then
    return null;
  end if;
  update job j set {cancelled} where j.id = any (unit.ids) and j.status = 'parked';
  get diagnostics discarded = row_count;
  perform mark_ends(unit.ids);
  update job j set parked_with = null where j.id = any (unit.ids) and j.status = 'failed';
  perform record_operation(actor, 'discard_parked', queue, group_id, job, reason, discarded);
  return discarded;
end $$;
