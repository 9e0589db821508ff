-- Limit keys: so many groups of a queue run at once for each key.
--
-- A claim that starts a job with a key has one of the key's slots; its group's row says so
-- (`limit_key`). A group that finds no slot is gated: it sleeps, and no claim looks at it. An end
-- of a claim appends the slot to `freed_slot`, and changes no row of another group: its transaction
-- may stay open. The next claim of the queue consumes that, and wakes the group that has waited
-- longest. The slot is kept for that one: no other group takes it first.
--
-- Slots are counted behind the key's lock, by a snapshot that is younger. So no more groups run
-- than the limit says. And a gated group is never forgotten: it was gated while others had all
-- slots, and the end of each of these is appended when it commits.

-- Locks a limit key until the commit. Returns whether it did, in up to `tries`, one a millisecond:
-- another claim may have it, for a few milliseconds, or while a receiver's transaction is open.
--
-- The lock is a row of `adoption_lock`, as for new groups. Some keys and groups have the same one.
--
-- Locks: a row of `adoption_lock` NO KEY UPDATE, skips.
create or replace function {schema}.lock_limit_key(of_queue text, key text, tries integer) returns boolean
language plpgsql volatile as $$
declare
  its_hash constant integer :=
    hashtextextended(quote_literal(of_queue) || ' limit ' || quote_literal(key), 0) & 65535;
begin
  for try in 1..tries loop
    perform from {schema}.adoption_lock l where l.hash = any (array[its_hash])
    for no key update skip locked;
    if found then
      return true;
    end if;
    perform pg_sleep(case when try < tries then 0.001 else 0 end);
  end loop;
  return false;
end $$;

-- Returns how many slots of a key are left, of `per_key`. The key is locked.
create or replace function {schema}.slots_left(of_queue text, key text, per_key bigint) returns bigint
language plpgsql volatile as $$
begin
  return per_key - (
    select count(*) from {schema}.queue_group g where g.queue = of_queue and g.limit_key = key);
end $$;

-- Returns whether a turn may start its job, or its key has a slot for it; `started` are turns that
-- this claim starts. A claim that is taken over has its slot. One of `full_keys` has none left. If
-- another claim has the key, the next one counts: it wakes the group if there is a slot.
create or replace function {schema}.has_slot(of_queue text, turn {schema}.turn, started {schema}.turn[],
  full_keys text[]) returns boolean
language plpgsql volatile as $$
declare
  per_key integer;
begin
  if turn.disposition <> 'run' or turn.lapsed_job is not null or turn.held_key = turn.limit_key then
    return true;
  elsif turn.limit_key = any (full_keys) then
    return false;
  end if;
  select q.limit_per_key into per_key from {schema}.queue q where q.name = of_queue;
  if coalesce(per_key, 0) = 0 then
    return true;
  elsif not {schema}.lock_limit_key(of_queue, turn.limit_key, 3) then
    perform {schema}.free_slots(array[of_queue], array[turn.limit_key], false);
    return false;
  end if;
  return {schema}.slots_left(of_queue, turn.limit_key, per_key) > (
    select count(*) from unnest(started) s
    where s.limit_key = turn.limit_key and s.disposition = 'run' and s.held_key is distinct from s.limit_key);
end $$;

-- Appends slots that are free from this transaction's commit on. A worker claims behind each end;
-- `tells` others of it, if a group waits for one of these keys.
create or replace function {schema}.free_slots(queues text[], keys text[], tells boolean) returns void
language plpgsql volatile as $$
begin
  insert into {schema}.freed_slot (queue, limit_key) select f.* from unnest(queues, keys) f(queue, key);
  if tells then
    perform {schema}.wake(f.queue) from unnest(queues, keys) f(queue, key)
    where exists (
      select from {schema}.queue_group g where g.queue = f.queue and g.gated_by = f.key limit 1);
  end if;
end $$;

-- Frees the slots of the groups' rows at these places, which this transaction has locked and is
-- about to change.
create or replace function {schema}.free_slots_of(lines tid[]) returns void
language plpgsql volatile as $$
begin
  perform {schema}.free_slots(array_agg(g.queue), array_agg(g.limit_key), true)
  from {schema}.queue_group g where g.ctid = any (lines) and g.limit_key is not null having count(*) > 0;
end $$;

-- Appends a slot for each key that groups of a queue wait for, as its limit has changed, and wakes
-- workers. A claim that counted by the limit of before may gate a group behind this: the ends of
-- the others wake it, or the next sweep.
create or replace function {schema}.free_gated(of_queue text) returns void
language sql volatile as $$
  with recursive gated(key) as (
    select (select g.gated_by from {schema}.queue_group g
      where g.queue = of_queue and g.gated_by is not null order by g.gated_by limit 1)
    union all
    select (select g.gated_by from {schema}.queue_group g
      where g.queue = of_queue and g.gated_by > gated.key order by g.gated_by limit 1)
    from gated where gated.key is not null)
  select {schema}.free_slots(array_agg(of_queue), array_agg(gated.key), true)
  from gated where gated.key is not null having count(*) > 0
$$;

-- Consumes freed slots of a queue: wakes up to `most` gated groups, and keeps a slot for each.
-- Returns the first of their places in the line. If the limit is 0, as it was removed, all gated
-- groups are woken. A slot that it cannot pass on stays for the next claim.
--
-- An end that is not seen by the delete, and is by the count, leaves its slot here: the next claim
-- finds nothing to do for it.
--
-- Locks: limit keys (`lock_limit_key`), gated groups NO KEY UPDATE, skips.
create or replace function {schema}.wake_gated(of_queue text, per_key integer, most bigint,
  from_at timestamptz) returns timestamptz
language plpgsql volatile as $$
declare
  freed record; room bigint; woken record; first_at timestamptz;
begin
  for freed in
    select f.limit_key as key, array_agg(f.line) as lines
    from (select f.limit_key, f.ctid as line, f.freed_at from {schema}.freed_slot f
      where f.queue = of_queue and f.freed_at >= from_at
      order by f.freed_at limit 256) f
    group by f.limit_key order by min(f.freed_at)
  loop
    exit when most < 1;
    continue when not {schema}.lock_limit_key(of_queue, freed.key, 1);
    -- The key again: vacuum may have given a place to another row.
    delete from {schema}.freed_slot f
    where f.ctid = any (freed.lines) and f.queue = of_queue and f.limit_key = freed.key;
    room := case when per_key = 0 then 1000000 else {schema}.slots_left(of_queue, freed.key, per_key) end;
    continue when room < 1;
    with gated as materialized (
      select g.ctid as line, g.gated_at from {schema}.queue_group g
      where g.queue = of_queue and g.gated_by = freed.key
      order by g.gated_at limit least(room, most) for no key update skip locked),
    written as (
      update {schema}.queue_group g set
        ready_at = gated.gated_at, gated_by = null, gated_at = null,
        limit_key = case when per_key > 0 then freed.key end
      from gated where g.ctid = gated.line
      returning gated.gated_at)
    select count(*) as groups, min(w.gated_at) as first_at into woken from written w;
    first_at := least(first_at, woken.first_at);
    most := most - woken.groups;
    if woken.groups < room then
      -- Others are behind these, or are locked for a moment.
      perform from {schema}.queue_group g where g.queue = of_queue and g.gated_by = freed.key limit 1;
      if found then
        perform {schema}.free_slots(array[of_queue], array[freed.key], false);
      end if;
    end if;
  end loop;
  return first_at;
end $$;
