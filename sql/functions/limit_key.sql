-- Limit keys: so many groups of a queue run at once for each key.
--
-- A claim that starts a job with a key has one of the key's slots; its group's row says so
-- (`limit_key`). A group that finds no slot is gated: it sleeps, and no claim looks at it. An end
-- of a claim appends the slot to `freed_slot`, and changes no row of another group: its transaction
-- may stay open. The next claim of the queue consumes that, and wakes the group that has waited
-- longest. The slot is kept for that one: no other group takes it first.
--
-- Slots are counted behind the key's lock, by a snapshot that is younger. So no more groups run
-- than the limit says. And a gated group is never forgotten: it was gated while other rows had all
-- slots, and the end of each of these is appended when it commits. A claim reads the queue's limit
-- once, and decides once which slot a turn has (`has_slot`): a row must have the slot that gated
-- another group.
--
-- A key may have a limit of its own (`key_limit`); 0 pauses it. A claim reads that limit after it
-- has locked the key, so it needs no other lock: a change always appends a slot (`set_key_limit`),
-- and no claim consumes the slot before the claims that have read the old limit have committed. A
-- queue with a key's own limit has a `limit_per_key`: 0 if only such keys are limited.

-- Returns the hash of a limit key. Its lock is the row of `adoption_lock` with that hash, as for
-- new groups: some keys and groups share a lock.
create or replace function {schema}.limit_key_hash(of_queue text, key text) returns integer
language sql immutable as $$
  select (hashtextextended(quote_literal(of_queue) || ' limit ' || quote_literal(key), 0) & 65535)::integer
$$;

-- Locks a limit key until the commit. Returns whether it did, in up to `tries`, one a millisecond:
-- another claim may have it, for a few milliseconds, or while a receiver's transaction is open.
--
-- Locks: a row of `adoption_lock` NO KEY UPDATE, skips.
create or replace function {schema}.lock_limit_key(of_queue text, key text, tries integer) returns boolean
language plpgsql volatile as $$
declare
  its_hash constant integer := {schema}.limit_key_hash(of_queue, key);
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

-- Returns the limit of a key: its own one, or `per_key` of its queue. Null: it has no limit.
create or replace function {schema}.limit_of_key(of_queue text, key text, per_key integer) returns integer
language sql stable as $$
  select coalesce(
    (select l.groups from {schema}.key_limit l where l.queue = of_queue and l.limit_key = key limit 1),
    nullif(per_key, 0))
$$;

-- Returns how many slots of a key are left; null if it has no limit. The key is locked.
create or replace function {schema}.slots_left(of_queue text, key text, per_key integer) returns bigint
language plpgsql volatile as $$
begin
  return {schema}.limit_of_key(of_queue, key, per_key) - (
    select count(*) from {schema}.queue_group g where g.queue = of_queue and g.limit_key = key);
end $$;

-- Decides whether a turn with a limit key may start its job (`starts`), and whether it has a slot
-- of the key then (`slotted`). `taken` are the keys of slots that this claim has given to turns and
-- not written yet. A claim that is taken over has its slot. So has a group that was woken, unless
-- its key has been paused since. A key of `full_keys` has no slot left. If another claim has the
-- key, the next claim counts: it wakes the group if there is a slot.
--
-- A row keeps its slot when the limit is removed, because the end of that slot wakes the groups
-- that wait for it.
create or replace function {schema}.has_slot(of_queue text, per_key integer, turn {schema}.turn, taken text[],
  full_keys text[], out starts boolean, out slotted boolean)
language plpgsql volatile as $$
declare
  held constant boolean := coalesce(turn.held_key = turn.limit_key, false);
  most constant integer := case when per_key is not null and turn.disposition = 'run'
    then {schema}.limit_of_key(of_queue, turn.limit_key, per_key) end;
  slots_left bigint;
begin
  starts := true;
  slotted := turn.disposition = 'run' and (held or most is not null);
  if most is null or turn.lapsed_job is not null or held and most > 0 then
    return;
  elsif turn.limit_key = any (full_keys) then
    starts := false;
  elsif {schema}.lock_limit_key(of_queue, turn.limit_key, 3) then
    -- The limit may have changed before the lock.
    slots_left := {schema}.slots_left(of_queue, turn.limit_key, per_key) + held::integer;
    starts := coalesce(slots_left > (
      select count(*) from unnest(taken) t(key) where t.key = turn.limit_key), true);
    slotted := held or slots_left is not null;
  else
    perform {schema}.note_locked_key(of_queue, turn.limit_key);
    starts := false;
  end if;
end $$;

-- Leaves a note in `freed_slot` for a key that another transaction has locked: a later claim counts
-- its slots. A note that is there is enough. It is locked until this transaction's commit: so no
-- claim deletes it that cannot see yet which group this claim has gated. If it is locked, this
-- claim adds its own. So a key has one note, and one more for each claim that runs at the same
-- time.
--
-- Locks: a row of `freed_slot` NO KEY UPDATE, skips.
create or replace function {schema}.note_locked_key(of_queue text, key text) returns void
language plpgsql volatile as $$
begin
  perform from {schema}.freed_slot f where f.queue = of_queue and f.limit_key = key
  limit 1 for no key update skip locked;
  if not found then
    perform {schema}.free_slots(array[of_queue], array[key], false);
  end if;
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
-- workers. A claim that has read the limit of before may gate a group after this: the ends of the
-- others wake it, or the next sweep (`wake_stranded`).
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
-- Returns the first of their places in the line. If a key has no limit, as it was removed, all its
-- gated groups are woken. A slot that it cannot pass on stays for the next claim.
--
-- It skips keys that other transactions have locked, however many they are: about 5 us each.
--
-- An end that is not seen by the delete, and is by the count, leaves its slot here: the next claim
-- finds nothing to do for it.
--
-- Locks: limit keys, rows of `freed_slot` FOR UPDATE, gated groups NO KEY UPDATE, skips.
create or replace function {schema}.wake_gated(of_queue text, per_key integer, most bigint,
  from_at timestamptz) returns timestamptz
language plpgsql volatile as $$
declare
  keys text[]; freed text; slots_left bigint; room bigint; woken record; first_at timestamptz;
begin
  keys := array(
    select f.limit_key from {schema}.freed_slot f
    join {schema}.adoption_lock l on l.hash = any (array[{schema}.limit_key_hash(f.queue, f.limit_key)])
    where f.queue = of_queue and f.freed_at >= from_at
    order by f.freed_at limit greatest(most, 0) for no key update of l skip locked);
  for freed in select k.key from unnest(keys) with ordinality k(key) group by k.key order by min(k.ordinality)
  loop
    exit when most < 1;
    delete from {schema}.freed_slot f where f.ctid = any (array(
      select f.ctid from {schema}.freed_slot f
      where f.queue = of_queue and f.limit_key = freed for update skip locked));
    slots_left := {schema}.slots_left(of_queue, freed, per_key);
    room := coalesce(slots_left, 1000000);
    continue when room < 1;
    with gated as materialized (
      select g.ctid as line, g.gated_at from {schema}.queue_group g
      where g.queue = of_queue and g.gated_by = freed
      order by g.gated_at limit least(room, most) for no key update skip locked),
    written as (
      update {schema}.queue_group g set
        ready_at = gated.gated_at, gated_by = null, gated_at = null,
        limit_key = case when slots_left is not null then freed end
      from gated where g.ctid = gated.line
      returning gated.gated_at)
    select count(*) as groups, min(w.gated_at) as first_at into woken from written w;
    first_at := least(first_at, woken.first_at);
    most := most - woken.groups;
    if woken.groups < room then
      -- Others are behind these, or are locked for a moment.
      perform from {schema}.queue_group g where g.queue = of_queue and g.gated_by = freed limit 1;
      if found then
        perform {schema}.free_slots(array[of_queue], array[freed], false);
      end if;
    end if;
  end loop;
  return first_at;
end $$;

-- Returns when a claim can consume a freed slot: the time of the first one whose key no other
-- transaction has locked. If all keys are locked, it is a time to look again: as long from now as
-- the last note is old, from 10 ms to half a second. Null: no slot was freed. It gives the locks
-- back at once.
--
-- Locks: a limit key, skips.
create or replace function {schema}.freed_at(of_queue text, from_at timestamptz) returns timestamptz
language plpgsql volatile as $$
declare
  first_at timestamptz; last_at timestamptz;
begin
  select f.freed_at into last_at from {schema}.freed_slot f
  where f.queue = of_queue and f.freed_at >= from_at order by f.freed_at desc limit 1;
  if last_at is null then
    return null;
  end if;
  begin
    select f.freed_at into first_at from {schema}.freed_slot f
    join {schema}.adoption_lock l on l.hash = any (array[{schema}.limit_key_hash(f.queue, f.limit_key)])
    where f.queue = of_queue and f.freed_at >= from_at
    order by f.freed_at limit 1 for no key update of l skip locked;
    raise sqlstate 'SQ000';
  exception when sqlstate 'SQ000' then
    return coalesce(first_at, clock_timestamp()
      + least(greatest(clock_timestamp() - last_at, interval '10 ms'), interval '0.5 s'));
  end;
end $$;

-- Frees a slot for each limit key of a queue that has one left, whose groups are gated, and that no
-- freed slot speaks for: nothing but the end of another group would wake them. `stranded`: for how
-- many keys there was no other group either. One look for each key that gates groups, however many
-- groups the queue has.
--
-- It looks at keys for half a second, and returns the last one (`last_key`); null: it has looked at
-- all. The next call may continue after that key.
--
-- In a table that only the library writes, no key is stranded. A group waits late if a claim that
-- had read a lower limit has gated it after the change.
create or replace function {schema}.wake_stranded(of_queue text, after_key text default '',
  out stranded bigint, out last_key text)
language plpgsql volatile as $$
declare
  late text[]; lost bigint; until constant timestamptz := clock_timestamp() + interval '0.5 s';
  per_key constant integer := (select q.limit_per_key from {schema}.queue q where q.name = of_queue);
begin
  stranded := 0;
  last_key := coalesce(after_key, '');
  loop
    -- One snapshot: an end frees its slot and appends it in one transaction, and a claim deletes it
    -- and wakes the group in one.
    with recursive gated(key, place) as (
      select (select g.gated_by from {schema}.queue_group g
        where g.queue = of_queue and g.gated_by > last_key order by g.gated_by limit 1), 1
      union all
      select (select g.gated_by from {schema}.queue_group g
        where g.queue = of_queue and g.gated_by > gated.key order by g.gated_by limit 1), gated.place + 1
      from gated where gated.key is not null and gated.place < 1000),
    looked as materialized (
      select gated.key, gated.place, own.most, (
          select count(*) from (
            select from {schema}.queue_group t where t.queue = of_queue and t.limit_key = gated.key
            limit own.most) t) as taken, (
          select f.limit_key from {schema}.freed_slot f
          where f.queue = of_queue and f.limit_key = gated.key limit 1) is not null as noted
      from gated
        cross join lateral (select {schema}.limit_of_key(of_queue, gated.key, per_key) as most offset 0) own
      where gated.key is not null)
    select array_agg(l.key) filter (where w.waits), count(*) filter (where w.waits and l.taken = 0),
        (array_agg(l.key) filter (where l.place = 1000))[1]
      into late, lost, last_key
    from looked l cross join lateral (
      select not l.noted and coalesce(l.taken < l.most, true) as waits) w;
    if late is not null then
      perform {schema}.free_slots(array_fill(of_queue, array[cardinality(late)]), late, true);
    end if;
    stranded := stranded + lost;
    exit when last_key is null or clock_timestamp() > until;
  end loop;
end $$;
