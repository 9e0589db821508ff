-- Purge: cancels queued jobs, or all that a queue has, and waits for no handler.

-- Cancels up to `n` queued jobs of a queue's groups, or of one group, up to the id `up_to` and
-- behind a group and an id. Returns how many it cancelled, and the last one if there may be more.
--
-- Locks: the jobs NO KEY UPDATE, skips.
create or replace function purge_groups(of_queue text, of_group text, up_to bigint, after_group text,
  after_id bigint, n integer, reason text, actor text,
  out cancelled bigint, out last_group text, out last_id bigint)
language plpgsql volatile set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  ids bigint[]; names text[];
begin
  loop
    begin
      select array_agg(q.id), array_agg(q.group_id) into ids, names from (
        select j.id, j.group_id from job j
        where j.queue = of_queue and j.group_id is not null and j.status in ('queued', 'started')
          and (j.group_id, j.id) > (coalesce(of_group, after_group), after_id)
          and j.group_id <= coalesce(of_group, (
            select l.group_id from job l
            where l.queue = of_queue and l.group_id is not null and l.status in ('queued', 'started')
            order by l.queue desc, l.group_id desc limit 1))
          and j.status = 'queued' and j.id <= up_to
          and (select true from claim_of(j.queue, j.group_id, j.id) c) is null
        order by j.group_id, j.id limit n for no key update skip locked) q;
      perform check_unclaimed(ids);
      exit;
    exception when sqlstate 'SQ001' then
      -- The next look sees the claim.
    end;
  end loop;
  cancelled := cancel_jobs(of_queue, of_group, ids, names, reason, actor);
  if cardinality(ids) >= n then
    last_group := names[n];
    last_id := ids[n];
  end if;
end $$;

-- The same for jobs without a group, behind a time and an id.
create or replace function purge_ungrouped(of_queue text, up_to bigint, after_at timestamptz,
  after_id bigint, n integer, reason text, actor text,
  out cancelled bigint, out last_at timestamptz, out last_id bigint)
language plpgsql volatile set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  ids bigint[]; times timestamptz[];
begin
  select array_agg(q.id), array_agg(q.turn_at) into ids, times from (
    select j.id, j.turn_at from job j
    where j.queue = of_queue and j.group_id is null and j.status = 'queued'
      and (j.turn_at, j.id) > (coalesce(after_at, '-infinity'), after_id) and j.id <= up_to
    order by j.turn_at, j.id limit n for no key update skip locked) q;
  cancelled := cancel_jobs(of_queue, null, ids, null, reason, actor);
  if cardinality(ids) >= n then
    last_at := times[n];
    last_id := ids[n];
  end if;
end $$;

-- Cancels queued jobs that this transaction has locked, and flags the first of each group. Returns
-- how many.
create or replace function cancel_jobs(of_queue text, of_group text, ids bigint[], names text[],
  reason text, actor text) returns bigint
language plpgsql volatile set search_path from current as $$
begin
  update job j set {cancelled},
    flagged = j.flagged or j.id in (
      select min(c.id) from unnest(ids, names) c(id, name) where c.name is not null group by c.name)
  where j.id = any (ids);
  perform mark_ends(ids);
  perform record_operation(actor, 'purge', of_queue, of_group, null, reason, cardinality(ids));
  return coalesce(cardinality(ids), 0);
end $$;

-- Ends up to `n` jobs of a queue that are in flight, up to the id `up_to`. Jobs of receivers end as
-- cancelled, and their receipts are stale then. Workers are asked to cancel their jobs. Returns the
-- number of each.
--
-- Locks: rows of receivers' claims NO KEY UPDATE, skips.
create or replace function purge_in_flight(of_queue text, up_to bigint, n integer, reason text, actor text,
  out cancelled bigint, out asked bigint)
language plpgsql volatile set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  turn record; of_job bigint;
begin
  cancelled := 0;
  for turn in
    select g.claim, g.job_id, g.batch from queue_group g
    where g.queue = of_queue and g.job_id is not null and g.claimed_by is null and g.job_id <= up_to
    limit n for no key update skip locked
  loop
    for of_job in
      select u.id from unfinished(turn.job_id, turn.batch) u where u.id <= up_to
    loop
      perform end_attempt(of_job, 'cancelled', 'cancelled', null);
      cancelled := cancelled + 1;
    end loop;
    perform receive_pass(array[turn.claim], array[null::bigint]);
  end loop;
  for of_job in
    select j.id from job j
    where j.queue = of_queue and j.group_id is null and j.status = 'started' and j.claimed_by is null
      and j.id <= up_to
    limit n for no key update skip locked
  loop
    perform end_attempt(of_job, 'cancelled', 'cancelled', null);
    cancelled := cancelled + 1;
  end loop;
  insert into cancel_request (job_id)
  select w.id from (
    (select u.id from queue_group g cross join lateral unfinished(g.job_id, g.batch) u
      where g.queue = of_queue and g.job_id is not null and g.claimed_by is not null)
    union all
    (select j.id from job j
      where j.queue = of_queue and j.group_id is null and j.status = 'started'
        and j.claimed_by is not null)) w
  where w.id <= up_to and not exists (select from cancel_request r where r.job_id = w.id)
  limit n;
  get diagnostics asked = row_count;
  perform record_operation(actor, 'purge', of_queue, null, null, reason, cancelled + asked);
end $$;

-- Forgets up to `n` deduplication ids of a queue, of jobs up to the id `up_to` that have ended, as
-- far as no open transaction has them. Returns how many.
create or replace function forget_dedup_ids(of_queue text, up_to bigint, n integer) returns bigint
language plpgsql volatile set search_path from current set enable_seqscan = off as $$
declare
  forgotten bigint;
begin
  delete from dedup d where d.ctid in (
    select d.ctid from dedup d
    where d.queue = of_queue and d.job_id <= up_to
      and not exists (select from job j where j.id = d.job_id and j.finished_at is null)
    limit n for update skip locked);
  get diagnostics forgotten = row_count;
  return forgotten;
end $$;

-- Cancels up to `n` queued jobs of a queue, or of one group of it, in this transaction. Returns how
-- many: with fewer than `n` all were cancelled that no other transaction has locked. Running and
-- parked jobs are left alone, and a halted group stays halted.
--
-- With `everything` jobs in flight end too: jobs of receivers are cancelled, and their receipts are
-- stale; workers are asked to cancel theirs. Then the deduplication ids of jobs that have ended are
-- forgotten. `n` and the number count all of these. `everything` is for a whole queue, not for a
-- group.
--
-- Locks: the jobs, and rows of receivers' claims, NO KEY UPDATE, skips.
create or replace function purge(queue text, group_id text default null, n integer default 1000,
  reason text default null, actor text default session_user, everything boolean default false) returns bigint
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  up_to constant bigint := (select coalesce(max(j.id), 0) from job j);
  done bigint;
begin
  perform check_queue(queue);
  perform check_name('group', group_id, {group_limit});
  perform check_count(n);
  if everything then
    perform check_isolation('a purge of everything');
  end if;
  if everything and group_id is not null then
    raise exception 'everything is of a whole queue, and a group is named'
      using errcode = '22023', hint = 'Leave one of them out.';
  end if;
  done := (purge_groups(queue, group_id, up_to, '', 0, n, reason, actor)).cancelled;
  if group_id is null and done < n then
    done := done + (purge_ungrouped(queue, up_to, null, 0, (n - done)::integer, reason, actor)).cancelled;
  end if;
  if everything and done < n then
    done := done + (
      select p.cancelled + p.asked from purge_in_flight(queue, up_to, (n - done)::integer, reason, actor) p);
    done := done + forget_dedup_ids(queue, up_to, greatest(n - done, 0)::integer);
  end if;
  return done;
end $$;
