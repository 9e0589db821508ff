-- The front of a queue: where its lines begin. Probes that read one entry of an index each, lock
-- nothing, and become part of the statement that asks.

-- Returns the place of the first group in line from `from_at` on and up to `until_at`.
create or replace function {schema}.first_group(of_queue text, from_at timestamptz, until_at timestamptz)
returns table (ready_at timestamptz)
language sql stable as $$
  select g.ready_at from {schema}.queue_group g
  where g.queue = of_queue and g.ready_at >= from_at and g.ready_at <= until_at and g.ready_at < 'infinity'
  order by g.ready_at limit 1
$$;

-- Returns the place of the first flag behind `from_at`, `from_id` and up to `until_at`.
create or replace function {schema}.first_flag(of_queue text, from_at timestamptz, from_id bigint,
  until_at timestamptz)
returns table (flag_at timestamptz)
language sql stable as $$
  select {flag_at} from {schema}.job j
  where j.queue = of_queue and j.flagged and {flag_at} <= until_at and ({flag_at}, j.id) > (from_at, from_id)
  order by {flag_at} limit 1
$$;

-- Returns the place of the first queued job without a group from `from_at` on and up to `until_at`.
create or replace function {schema}.first_ungrouped(of_queue text, from_at timestamptz, until_at timestamptz)
returns table (turn_at timestamptz)
language sql stable as $$
  select j.turn_at from {schema}.job j
  where j.queue = of_queue and j.group_id is null and j.status = 'queued'
    and j.turn_at >= from_at and j.turn_at <= until_at
  order by j.turn_at limit 1
$$;

-- Returns when the next group, job without a group or flag is due, from `from_at` on; null if none
-- will be.
create or replace function {schema}.next_due(of_queue text, from_at timestamptz)
returns table (next_at timestamptz)
language sql stable as $$
  select nullif(least(
      (select f.ready_at from {schema}.first_group(of_queue, from_at, 'infinity') f),
      (select f.turn_at from {schema}.first_ungrouped(of_queue, from_at, 'infinity') f),
      (select f.flag_at from {schema}.first_flag(of_queue, from_at, 9223372036854775807, 'infinity') f)),
    'infinity')
$$;

-- Returns in how many seconds a claim of the queue may find something, even if another transaction
-- has locked a group or a job that is due; null if nothing will be due, as far as is known. A slot
-- of a limit key that another transaction has locked is looked at later (`freed_at`). In a paused
-- queue nothing is due before the pause ends, and in one with a rate before it allows a start. The
-- caller has plans pinned.
--
-- Locks: a limit key for a moment, skips.
create or replace function {schema}.due_in(of_queue text) returns float8
language plpgsql volatile as $$
declare
  resumes_at timestamptz; paused boolean; begins_at timestamptz; keyed boolean;
begin
  select {paused_q}, q.paused_until, case when r.starts = 0 then r.free_at end,
      q.limit_per_key is not null
    into paused, resumes_at, begins_at, keyed
  from {schema}.queue q, {schema}.rate_room(q.rate, q.rate_per_ms, q.rate_burst, q.rate_next_at,
    clock_timestamp()) r
  where q.name = of_queue;
  if paused then
    return extract(epoch from resumes_at - clock_timestamp());
  end if;
  return extract(epoch from nullif(greatest(begins_at, least(
      (select f.ready_at from {schema}.first_group(of_queue, '-infinity', 'infinity') f),
      case when keyed then {schema}.freed_at(of_queue, '-infinity') end,
      -- The flag of a job that runs goes with its end. There may be others than it reads.
      (select case when count(*) = 8 and bool_and(f.runs) then clock_timestamp()
          else min(f.flag_at) filter (where not f.runs) end
        from (
          select {flag_at} as flag_at, (
            select g.job_id from {schema}.queue_group g
            where g.queue = of_queue and g.group_id between j.group_id and j.group_id
            order by g.group_id desc limit 1) is not null as runs
          from {schema}.job j
          where j.queue = of_queue and j.flagged
          order by {flag_at} limit 8) f),
      (select f.turn_at from {schema}.first_ungrouped(of_queue, '-infinity', 'infinity') f),
      (select j.lease_until from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'started'
          -- Behind that are the leases of the living, and those that many ended jobs had. The grace
          -- of a suspicion is shorter.
          and j.lease_until <= now() + interval '2 s'
        order by j.lease_until limit 1))),
    'infinity') - clock_timestamp());
end $$;

-- Returns which of these queues a receive may find something in now.
create or replace function due_queues(queues text[]) returns setof text
language sql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
  select q.name from unnest(queues) q(name) where due_in(q.name) <= 0
$$;

-- Returns what a claim finds up to `until_at` behind a front: the places of the first group, flag
-- and job without a group; whether claims of jobs without a group have lapsed; whether priorities
-- are to be aged; and the queue's attempts, and whether it is paused, or has limits (room.sql).
-- If a worker reads from the beginning and nothing is due, `next_at` is when something will be.
--
-- Locks: a job whose claim lapsed NO KEY UPDATE, skips.
create or replace function {schema}.read_front(terms {schema}.claim_terms, behind {schema}.claim_front,
  until_at timestamptz, out ungrouped_at timestamptz, out groups_at timestamptz, out flags_at timestamptz,
  out lapsed boolean, out aging boolean, out bound text, out max_attempts integer,
  out next_at timestamptz)
language plpgsql volatile as $$
begin
  select f.*, case when behind.groups_at = '-infinity' and not terms.receiver
      and coalesce(f.ungrouped_at, f.groups_at, f.flags_at) is null and f.bound is null and not f.lapsed
    then (select n.next_at from {schema}.next_due(terms.queue, until_at) n) end
    into ungrouped_at, groups_at, flags_at, lapsed, aging, bound, max_attempts, next_at
  from (select
    (select f.turn_at from {schema}.first_ungrouped(terms.queue, behind.ungrouped_at, until_at) f),
    (select f.ready_at from {schema}.first_group(terms.queue, behind.groups_at, until_at) f),
    least(
      (select f.flag_at from {schema}.first_flag(terms.queue, behind.flags_at, behind.flags_id, until_at) f),
      -- A priority comes in before where this claim begins to read.
      case when behind.flags_at > '-infinity' and behind.flags_id = 0 then (
        select j.turn_at from {schema}.job j
        where j.queue = terms.queue and j.flagged and j.priority > 0 and j.turn_at <= until_at
        order by j.turn_at limit 1) end),
    (select j.lease_until from {schema}.job j
      -- A claim of one group leaves others' jobs unlocked.
      where terms.group_id is null and j.queue = terms.queue and j.group_id is null and j.status = 'started'
        and j.lease_until <= until_at and j.lease_until >= behind.ungrouped_at
      -- A handler by transaction has it locked as long as it runs.
      order by j.lease_until limit 1 for no key update skip locked) is not null,
    (select g.ready_at from {schema}.queue_group g
      where g.queue = terms.queue and g.aging_priority > 0
        and g.ready_at <= until_at and g.ready_at >= behind.groups_at
      order by g.ready_at limit 1) is not null
    or (select j.run_at from {schema}.job j
      where j.queue = terms.queue and j.status = 'queued' and j.priority > 0 and j.turn_at >= j.run_at
        and (j.group_id is null or j.flagged) and j.run_at <= until_at and j.run_at >= behind.ungrouped_at
      order by j.run_at limit 1) is not null,
    case when {paused_q} then 'paused'
      when coalesce(q.in_flight_limit, q.rate, q.group_spacing_ms, q.limit_per_key) is not null
        then 'limited' end,
    q.max_attempts
  from (select) this left join {schema}.queue q on q.name = terms.queue offset 0) f(
    ungrouped_at, groups_at, flags_at, lapsed, aging, bound, max_attempts);
end $$;
