-- Adopts a page of flags that are due, from `flags_from` on, or all flags of one group. Reads
-- further pages while some flags had to stay, each without the groups that those before met: no
-- number of one group's flags hides another group (P8). Returns how many groups are in line now,
-- whether there are more flags, and since when the first of those groups is due. The caller has the
-- adopter's lock.
--
-- That lock also keeps a group to one row: its owner reads by snapshots that are younger than the
-- last adopter's commit. Its key must never change, or two versions of the library that run side by
-- side would be two adopters.
--
-- A flag goes only with a row that this transaction has inserted; or has locked while it was free,
-- as the next read of its head comes later; or has share-locked while it was claimed, as its settle
-- has not passed its exclusive lock, and a later read sees the job. That is why nothing strands
-- (P3).
--
-- A group's row is looked up from the end of the index: of several versions with one key the newest
-- is the last as a rule. Those before it are read only if there is none, or another transaction
-- changes it at that moment.
create or replace function {schema}.adopt(of_queue text, of_group text, page integer, flags_from timestamptz,
  out readied integer, out more boolean, out first_at timestamptz)
language plpgsql volatile
as $$
declare
  after_at timestamptz := flags_from; after_id bigint := 0; skipped text[] := '{}';
  ids bigint[]; groups text[]; ats timestamptz[]; priorities smallint[];
  names text[]; firsts bigint[]; heads smallint[]; frees boolean[]; new_names text[]; new_firsts bigint[]; new_heads smallint[];
  safe text[]; held text[]; held_from bigint[];
  woken tid[]; woken_from bigint[];
  clear bigint[]; cleared integer;
begin
  readied := 0;
  more := false;
  for n in 1..16 loop
    if of_group is null then
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.flag_due_at), array_agg(f.priority)
        into ids, groups, ats, priorities
      from (select j.id, j.group_id, {flag_due_at} as flag_due_at, j.priority::smallint from {schema}.job j
        where j.queue = of_queue and j.flagged and j.group_id <> all (skipped) and {flag_due_at} <= now()
          and ({flag_due_at}, j.id) > (after_at, after_id)
        order by {flag_due_at}, j.id
        limit page for no key update skip locked) f;
    else
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.flag_due_at), array_agg(f.priority)
        into ids, groups, ats, priorities
      from (select j.id, j.group_id, {flag_due_at} as flag_due_at, j.priority::smallint from {schema}.job j
        where j.queue = of_queue and j.group_id between of_group and of_group and j.flagged
        order by j.group_id, j.id limit page for no key update skip locked) f;
    end if;
    more := coalesce(cardinality(ids), 0) >= page;
    exit when ids is null;
    after_at := ats[cardinality(ats)];
    after_id := ids[cardinality(ids)];
    -- Most groups have no row, and nothing else adds one now. Whether a row that is there stays is
    -- not known before it is locked.
    with flag as materialized (
      select distinct on (f.name) of_queue as queue, f.name, f.id, f.priority
      from unnest(groups, ids, priorities) f(name, id, priority) order by f.name, f.id)
    select array_agg(flag.name) filter (where g.free is not null), array_agg(flag.id) filter (where g.free is not null),
        array_agg(flag.priority) filter (where g.free is not null), array_agg(g.free) filter (where g.free is not null),
        array_agg(flag.name) filter (where g.free is null), array_agg(flag.id) filter (where g.free is null),
        array_agg(flag.priority) filter (where g.free is null)
      into names, firsts, heads, frees, new_names, new_firsts, new_heads
    from flag left join lateral (
      select g.job_id is null as free from {schema}.queue_group g
      where g.queue = flag.queue and g.group_id between flag.name and flag.name
      order by g.group_id desc limit 1) g on true;

    safe := '{}';
    held := null;
    if names is not null then
      -- Free rows: locked, and woken unless halted. Every flag may go.
      with flag as materialized (
        select of_queue as queue, f.group_id, f.first_id
        from unnest(names, firsts, frees) f(group_id, first_id, free) where f.free)
      select array_agg(g.group_id), array_agg(g.ctid) filter (where g.to_wake),
          array_agg(flag.first_id) filter (where g.to_wake), least(first_at, min(g.ready_at) filter (where g.ready_at <= now()))
        into safe, woken, woken_from, first_at
      from flag join lateral (
        select g.group_id, g.ctid, g.ready_at, g.halted_at is null and g.ready_at > now() or g.head_id > flag.first_id as to_wake
        from {schema}.queue_group g
        where g.queue = flag.queue and g.group_id between flag.group_id and flag.group_id and g.claim is null
        order by g.group_id desc limit 1 for no key update skip locked) g on true;
      safe := coalesce(safe, '{}');
      if woken is not null then
        with free as materialized (
          select f.line, f.first_id from unnest(woken, woken_from) f(line, first_id)),
        earlier as (update {schema}.queue_group g set
          ready_at = case when g.halted_at is null then least(g.ready_at, now() - {priority_aging} * coalesce((
            select h.priority from {schema}.job h
            where h.queue = g.queue and (h.group_id, h.id) >= (g.group_id, least(g.head_id, free.first_id))
              and h.group_id <= g.group_id and h.status in ('queued', 'started')
            order by h.group_id, h.id limit 1), 0)) else g.ready_at end,
          head_id = least(g.head_id, free.first_id), aging_priority = 0
        from free where g.ctid = free.line returning g.ready_at)
        select least(first_at, min(e.ready_at) filter (where e.ready_at <= now())) into first_at from earlier e;
      end if;
    end if;
    if cardinality(safe) < cardinality(names) then
      -- Claimed rows: shared with the claim's owner. An id below head_id keeps its flag, as nothing
      -- else brings that job in. (Not `claim is not null`, by which all claims could be read.)
      with flag as materialized (
        select of_queue as queue, f.group_id from unnest(names) f(group_id)
        where (f.group_id in (select unnest(safe))) is not true)
      select array_agg(g.group_id), array_agg(g.head_id) into held, held_from from flag join lateral (
        select g.group_id, g.head_id from {schema}.queue_group g
        where g.queue = flag.queue and g.group_id between flag.group_id and flag.group_id and coalesce(g.job_id, 0) > 0
        order by g.group_id desc limit 1 for key share skip locked) g on true;
    end if;
    if cardinality(safe) + coalesce(cardinality(held), 0) < cardinality(names) then
      -- Another transaction has the row, or the row has gone meanwhile.
      with flag as materialized (
        select of_queue as queue, f.name, f.id, f.priority from unnest(names, firsts, heads) f(name, id, priority))
      select new_names || array_agg(flag.name), new_firsts || array_agg(flag.id), new_heads || array_agg(flag.priority)
        into new_names, new_firsts, new_heads
      from flag
      where (select g.group_id from {schema}.queue_group g
        where g.queue = flag.queue and g.group_id between flag.name and flag.name
        order by g.group_id desc limit 1) is null;
    end if;
    if new_names is not null then
      with inserted as (
        insert into {schema}.queue_group (queue, group_id, ready_at, head_id)
        select of_queue, f.name, now() - {priority_aging} * f.priority, f.id
        from unnest(new_names, new_firsts, new_heads) f(name, id, priority)
        returning queue_group.group_id, queue_group.ready_at)
      select safe || array_agg(i.group_id), least(first_at, min(i.ready_at)) into safe, first_at from inserted i;
    end if;

    readied := readied + cardinality(safe) + coalesce(cardinality(held), 0);
    -- By a hash: a join would compare each flag with each group.
    clear := array(select f.id from unnest(groups, ids) f(name, id)
      where (f.name in (select unnest(safe))) is true);
    if held is not null then
      clear := clear || array(select f.id from unnest(groups, ids) f(name, id)
        join unnest(held, held_from) s(name, from_id) on s.name = f.name and f.id >= s.from_id);
    end if;
    update {schema}.job j set flagged = false where j.id = any (clear);
    get diagnostics cleared = row_count;
    exit when of_group is not null or not more or cleared = cardinality(ids);
    skipped := skipped || array(select distinct f.name from unnest(groups, ids) f(name, id)
      where (f.id in (select unnest(clear))) is not true);
  end loop;
end $$;
