-- Flags that call for nothing are cleared: else claims would read them again and again.

-- Clears flags of groups from `from_ids` on, ten of each: the rows of the groups stand for them,
-- and this transaction has locked those.
--
-- Locks: jobs NO KEY UPDATE, skips.
create or replace function {schema}.clear_flags_from(of_queue text, groups text[], from_ids bigint[])
returns void
language plpgsql volatile as $$
begin
  with flag as materialized (
    select f.id from unnest(groups, from_ids) g(name, from_id) join lateral (
      select j.id from {schema}.job j
      where j.queue = of_queue and j.group_id between g.name and g.name and j.flagged and j.id >= g.from_id
        and {flag_at} <= clock_timestamp()
      order by j.group_id, j.id limit 10 for no key update skip locked) f on true)
  update {schema}.job j set flagged = false from flag where j.id = any (array[flag.id]);
end $$;

-- Gives rows to groups without one that are paused, or whose heads are not due, so that their flags
-- go. Returns how many.
--
-- A change of a pause waits for the setting's lock, so its flag comes after the rest is written.
-- The head is read by a snapshot younger than the group's lock, and what comes below it is flagged. The
-- flag of a head that sleeps stays: it may have been set since, to wake the group.
--
-- Locks: new groups, settings of paused ones SHARE, jobs NO KEY UPDATE, skips.
create or replace function {schema}.give_rest(of_queue text, groups text[]) returns integer
language plpgsql volatile as $$
declare
  mine text[]; paused text[]; ends timestamptz[]; from_ids bigint[]; given integer;
begin
  mine := {schema}.lock_new_groups(of_queue, groups);
  if mine is null then
    return 0;
  end if;
  with flag as materialized (select of_queue as queue, f.name from unnest(mine) f(name))
  select array_agg(s.group_id), array_agg(coalesce(s.paused_until, 'infinity')) into paused, ends
  from (select s.group_id, s.paused_until from flag
      join {schema}.group_setting s on s.queue = flag.queue and s.group_id = flag.name
    where {paused_s} for share of s skip locked) s;
  -- A younger snapshot than the locks'.
  with new as materialized (
    select of_queue as queue, f.name, ends[array_position(paused, f.name)] as ends_at
    from unnest(mine) f(name)),
  rest as materialized (
    select new.name, new.ends_at, j.id, j.due_at, j.priority from new
    join lateral (select h.id from {schema}.head(new.queue, new.name, 0, null) h) head on true
    join lateral (
      select j.id, least(j.run_at, j.expires_at) as due_at, j.priority::smallint from {schema}.job j
      where j.id = any (array[head.id])) j on true
    where (new.ends_at is not null or j.due_at > clock_timestamp())
      and (select g.group_id from {schema}.queue_group g
        where g.queue = new.queue and g.group_id between new.name and new.name
        order by g.group_id desc limit 1) is null),
  inserted as (
    insert into {schema}.queue_group (queue, group_id, ready_at, head_id, aging_priority)
    select of_queue, rest.name, coalesce(rest.ends_at, rest.due_at), rest.id,
      case when rest.ends_at is null then coalesce(rest.priority, 0) else 0 end
    from rest)
  select array_agg(rest.name), array_agg(case when rest.ends_at is null then rest.id + 1 else rest.id end)
    into mine, from_ids from rest;
  given := coalesce(cardinality(mine), 0);
  if given > 0 then
    perform {schema}.clear_flags_from(of_queue, mine, from_ids);
  end if;
  return given;
end $$;

-- Clears flags that call for nothing, of groups that have a row and of those that get one here,
-- until `tidy_until`. Returns how many groups. A receiver calls none of this: its transaction may
-- stay open.
create or replace function {schema}.tidy_flags(of_queue text, idle text[], resting text[],
  tidy_until timestamptz) returns integer
language plpgsql volatile as $$
declare
  tidied integer := 0; place integer := 1;
begin
  while place <= greatest(cardinality(idle), cardinality(resting)) loop
    if place <= cardinality(idle) then
      tidied := tidied + {schema}.clear_flags(of_queue, idle[place:place + 127]);
    end if;
    if place <= cardinality(resting) then
      tidied := tidied + {schema}.give_rest(of_queue, resting[place:place + 127]);
    end if;
    exit when clock_timestamp() > tidy_until;
    place := place + 128;
  end loop;
  return tidied;
end $$;

-- Clears flags of groups that have a row, 1,024 or so: the row must be free and be locked, or be
-- claimed and be shared. Returns how many groups. An id below head_id keeps its flag, as nothing
-- else brings that job in. So does the head of a group that sleeps: the flag may wake it.
--
-- Locks: free rows and the jobs NO KEY UPDATE, claimed rows KEY SHARE, skips; gives up after 5 ms.
create or replace function {schema}.clear_flags(of_queue text, groups text[]) returns integer
language plpgsql volatile as $$
declare
  free text[]; claimed text[]; safe text[]; safe_from bigint[]; shared text[]; shared_from bigint[];
begin
  -- By the newest version: its filter would read on to older ones.
  with flag as materialized (select distinct of_queue as queue, f.name from unnest(groups) f(name))
  select array_agg(flag.name) filter (where g.free), array_agg(flag.name) filter (where not g.free)
    into free, claimed
  from flag join lateral (
    select g.job_id is null as free from {schema}.queue_group g
    where g.queue = flag.queue and g.group_id between flag.name and flag.name
    order by g.group_id desc limit 1) g on true;
  with flag as materialized (select of_queue as queue, f.name from unnest(free) f(name))
  select array_agg(g.group_id),
      array_agg(g.head_id + (g.halted_at is null and g.ready_at > clock_timestamp())::integer)
    into safe, safe_from
  from flag join lateral (
    select g.group_id, g.head_id, g.halted_at, g.ready_at from {schema}.queue_group g
    where g.queue = flag.queue and g.group_id between flag.name and flag.name and g.claim is null
    order by g.group_id desc limit 1 for no key update skip locked) g on true;
  begin
    -- A version that an open transaction has written and then deleted is waited for, not skipped.
    perform set_config('lock_timeout', '5ms', true);
    -- Not `claim is not null`, by which all claims could be read.
    with flag as materialized (select of_queue as queue, f.name from unnest(claimed) f(name))
    select array_agg(g.group_id), array_agg(g.head_id) into shared, shared_from from flag join lateral (
      select g.group_id, g.head_id from {schema}.queue_group g
      where g.queue = flag.queue and g.group_id between flag.name and flag.name and coalesce(g.job_id, 0) > 0
      order by g.group_id desc limit 1 for key share skip locked) g on true;
  exception when lock_not_available then
    shared := null;
  end;
  perform set_config('lock_timeout', {lock_timeout}, true);
  with flag as materialized (
    select f.id from unnest(safe || shared, safe_from || shared_from) g(name, from_id) join lateral (
      select j.id from {schema}.job j
      where j.queue = of_queue and j.group_id between g.name and g.name and j.flagged and j.id >= g.from_id
      order by j.group_id, j.id limit 1 + 1024 / cardinality(safe || shared)
      for no key update skip locked) f on true)
  update {schema}.job j set flagged = false from flag where j.id = any (array[flag.id]);
  return coalesce(cardinality(safe || shared), 0);
end $$;
