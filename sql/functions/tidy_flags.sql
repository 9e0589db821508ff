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
-- go: by the claim's steps, without a start. Returns how many.
--
-- Locks: new groups, their heads, and as `defer_turns`: skips.
create or replace function {schema}.give_rest(of_queue text, groups text[]) returns integer
language plpgsql volatile as $$
declare
  terms {schema}.claim_terms; turns {schema}.turn[];
begin
  terms.queue := of_queue;
  turns := array(
    select {schema}.adopted_turn(m.name, null, 0, clock_timestamp(), 1)
    from unnest({schema}.lock_new_groups(of_queue, groups)) m(name));
  turns := {schema}.read_heads(terms, turns);
  if turns is null then
    return 0;
  end if;
  perform {schema}.defer_turns(terms, turns);
  return cardinality(turns);
end $$;

-- Clears flags that call for nothing, of groups that have a row and of those that get one here,
-- until `tidy_until`; those of claimed jobs only if `running`. Returns how many groups. A receiver
-- does not call this: its transaction may stay open.
create or replace function {schema}.tidy_flags(of_queue text, idle text[], resting text[],
  tidy_until timestamptz, running boolean default true) returns integer
language plpgsql volatile as $$
declare
  tidied integer := 0; place integer := 1;
begin
  while place <= greatest(cardinality(idle), cardinality(resting)) loop
    if place <= cardinality(idle) then
      tidied := tidied + {schema}.clear_flags(of_queue, idle[place:place + 127], running);
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
-- else brings that job in. So does a job that is claimed, unless `running`: its flag goes with its
-- end, and its hold would wait for the write. So does the head of a group that sleeps: the flag may
-- wake it. A group that sleeps until it may start again is not woken.
--
-- Locks: free rows and the jobs NO KEY UPDATE, claimed rows KEY SHARE, skips; gives up after 5 ms.
create or replace function {schema}.clear_flags(of_queue text, groups text[], running boolean)
returns integer
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
      array_agg(g.head_id + (g.halted_at is null and g.ready_at > clock_timestamp()
        and coalesce(g.ready_at > g.spaced_until, true))::integer)
    into safe, safe_from
  from flag join lateral (
    select g.group_id, g.head_id, g.halted_at, g.ready_at, g.spaced_until from {schema}.queue_group g
    where g.queue = flag.queue and g.group_id between flag.name and flag.name and g.claim is null
    order by g.group_id desc limit 1 for no key update skip locked) g on true;
  begin
    -- A version that an open transaction has written and then deleted is waited for, not skipped.
    perform set_config('lock_timeout', '5ms', true);
    -- Not `claim is not null`, by which all claims could be read.
    with flag as materialized (select of_queue as queue, f.name from unnest(claimed) f(name))
    select array_agg(g.group_id), array_agg(g.from_id) into shared, shared_from from flag join lateral (
      select g.group_id, greatest(g.head_id, case when not running
          then coalesce(g.batch[cardinality(g.batch)], g.job_id) + 1 end) as from_id
      from {schema}.queue_group g
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
