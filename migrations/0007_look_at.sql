-- Flags are adopted when their groups are to be looked at, not before: a hundred thousand groups that wait for their time
-- are no work, and keep none of it from those that are due. Until then a flag is a place in this index.

drop index job_flagged;
-- In the order in which groups are adopted: when there is something to do about the job (to run it, or to end it because it
-- expired), or at once where it is finished and others may be behind it.
create index job_flagged on job (queue, (case when finished_at is null then least(run_at, expires_at) else 'epoch' end), id)
  where flagged;

-- Adopts as the workers do (src/store/adopt.rs says why each flag may go). With `of_group`, only that group's flags.
create or replace function pull_adopt(of_queue text, of_group text) returns void
language plpgsql volatile
as $$
declare
  after_at timestamptz := '-infinity';
  after_id bigint := 0;
  ids bigint[]; groups text[]; ats timestamptz[];
  flags jsonb;
  safe jsonb; more jsonb;
  skipped text[] := '{}';
  kept text[];
begin
  -- One adopter per queue: another's uncommitted insert of the same row would be waited for.
  if (select j.id from job j
      where j.queue = of_queue and j.flagged and case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end <= now()
      order by case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end limit 1) is null
    or not pg_try_advisory_xact_lock(hashtextextended('seriatim adopt ' || current_schema() || ' ' || of_queue, 0))
  then
    return;
  end if;
  for page in 1..16 loop
    if of_group is null then
      select array_agg(f.id order by f.look_at, f.id), array_agg(f.group_id order by f.look_at, f.id),
        array_agg(f.look_at order by f.look_at, f.id) into ids, groups, ats
      from (select j.id, j.group_id, case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end as look_at
        from job j
        where j.queue = of_queue and j.flagged and j.group_id <> all (skipped)
          and case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end <= now()
          and (case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end, j.id) > (after_at, after_id)
        order by case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end, j.id
        limit 256 for no key update skip locked) f;
    else
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.run_at) into ids, groups, ats
      from (select j.id, j.group_id, j.run_at from job j
        where j.queue = of_queue and j.group_id = of_group and j.flagged
        order by j.id limit 256 for no key update skip locked) f;
    end if;
    exit when ids is null;
    after_at := ats[cardinality(ats)];
    after_id := ids[cardinality(ids)];
    select jsonb_object_agg(f.name, f.first) into flags
    from (select f.name, min(f.id) as first from unnest(groups, ids) f(name, id) group by f.name) f;

    -- Free rows: locked, and woken unless halted. Every flag may go.
    with flag as materialized (
      select of_queue as queue, f.key as group_id, f.value::text::bigint as first_id from jsonb_each(flags) f),
    free as materialized (
      select g.queue, g.group_id, flag.first_id from flag join lateral (
        select g.queue, g.group_id from queue_group g
        where g.queue = flag.queue and g.group_id = flag.group_id and g.claim is null
        limit 1 for no key update skip locked) g on true),
    woken as (
      update queue_group g set
        ready_at = case when g.halted_at is null then least(g.ready_at, clock_timestamp() - interval '10 s' * coalesce((
          select h.priority from job h where h.queue = free.queue and h.group_id = free.group_id
            and h.status in ('queued', 'started') and h.id >= least(g.head_id, free.first_id)
          order by h.id limit 1), 0)) else g.ready_at end,
        head_id = least(g.head_id, free.first_id), boost = 0
      from free where g.queue = free.queue and g.group_id = free.group_id
        and (g.halted_at is null and g.ready_at > clock_timestamp() or g.head_id > free.first_id))
    select coalesce(jsonb_object_agg(free.group_id, 0), '{}') into safe from free;

    -- Claimed rows: shared with whoever has the group. An id below head_id keeps its flag: nothing else brings it in.
    with flag as materialized (select of_queue as queue, f.key as group_id from jsonb_each(flags) f)
    select coalesce(jsonb_object_agg(g.group_id, g.head_id), '{}') into more from flag join lateral (
      select g.group_id, g.head_id from queue_group g
      where g.queue = flag.queue and g.group_id = flag.group_id and g.claim is not null
      limit 1 for key share skip locked) g on true;
    safe := more || safe;

    -- No rows. Only what was inserted counts: a conflict is no proof that the row stays.
    with flag as materialized (
      select of_queue as queue, f.key as group_id, f.value::text::bigint as first_id from jsonb_each(flags) f
      where not safe ? f.key),
    inserted as (
      insert into queue_group (queue, group_id, ready_at, head_id)
      select flag.queue, flag.group_id,
        clock_timestamp() - interval '10 s' * coalesce((select j.priority from job j where j.id = flag.first_id), 0),
        flag.first_id
      from flag
      where (select g.group_id from queue_group g where g.queue = flag.queue and g.group_id = flag.group_id limit 1) is null
      on conflict do nothing returning queue_group.group_id)
    select coalesce(jsonb_object_agg(inserted.group_id, 0), '{}') into more from inserted;
    safe := safe || more;

    update job j set flagged = false
    where j.id = any (array(
      select f.id from unnest(groups, ids) f(name, id) where f.id >= (safe ->> f.name)::bigint));
    kept := array(select distinct f.name from unnest(groups, ids) f(name, id)
      where not coalesce(f.id >= (safe ->> f.name)::bigint, false));
    exit when of_group is not null or cardinality(ids) < 256 or kept = '{}';
    skipped := skipped || kept;
  end loop;
end $$;
