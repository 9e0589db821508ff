-- Groups by what they wait for: what operators' lists show, and what their counts count.
--
-- A group's row and its flags may outlive what they were for: jobs that were cancelled or moved, or
-- a group that is paused now. They stay until a claim comes by, and no claim does in a paused queue
-- or in one without a processor. One group may have any number of flags. So each function passes
-- over rows that say nothing, {looked_at} at most, and over 20,000 such flags, before it counts to
-- `up_to`: they fill no list. Each reads an index in the order of that index, which the settings
-- see to. Their plans are kept, as an overview calls each for each queue.
--
-- The functions lock nothing.

-- Returns the groups with a row in line that could begin a job, the longest ready first; with
-- `before` those that were ready before that time. A group whose head another transaction had
-- locked is looked at again soon, and waits as well.
create or replace function groups_in_line(of_queue text, up_to bigint, before timestamptz default 'infinity')
returns table (group_id text, ready_at timestamptz, head_id bigint)
language plpgsql stable set search_path from current set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
  return query
  select g.group_id, g.ready_at, g.head_id
  from (
    select g.queue, g.group_id, g.ready_at, g.head_id from queue_group g
    where g.queue = of_queue and g.ready_at <= now() + interval '2 s' and g.ready_at < before
      and g.ready_at < 'infinity' and g.job_id is null and (g.ready_at <= now() or g.rechecks > 0)
    order by g.ready_at limit {looked_at}) g
  where {has_jobs_g} and not {is_paused_g}
  limit up_to;
end $$;

-- Returns the groups whose heads another transaction had locked at the last look, and the number of
-- looks in a row, among the last `among` groups in line: the next look is up to 1.3 s ahead, so
-- these are always near now.
create or replace function rechecked_groups(of_queue text, among bigint)
returns table (group_id text, rechecks smallint)
language plpgsql stable set search_path from current set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
  return query
  select g.group_id, g.rechecks
  from (
    select g.group_id, g.rechecks from queue_group g
    where g.queue = of_queue and g.ready_at <= now() + interval '2 s' and g.ready_at < 'infinity'
      and g.job_id is null
    order by g.ready_at desc limit among) g
  where g.rechecks > 0;
end $$;

-- Returns the groups with a row that sleep until their head is due, the next one first.
create or replace function sleeping_groups(of_queue text, up_to bigint)
returns table (group_id text, ready_at timestamptz)
language plpgsql stable set search_path from current set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
  return query
  select g.group_id, g.ready_at
  from (
    select g.queue, g.group_id, g.ready_at from queue_group g
    where g.queue = of_queue and g.ready_at > now() and g.ready_at < 'infinity' and g.job_id is null
      and g.halted_at is null and g.rechecks = 0 and g.gated_by is null
    order by g.ready_at limit {looked_at}) g
  where {has_jobs_g} and not {is_paused_g}
  limit up_to;
end $$;

-- Returns the groups that wait for a slot of their limit key, by key, the longest wait first.
create or replace function groups_at_key_limit(of_queue text, up_to bigint)
returns table (group_id text, gated_by text)
language plpgsql stable set search_path from current set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
  return query
  select g.group_id, g.gated_by
  from (
    select g.queue, g.group_id, g.gated_by from queue_group g
    where g.queue = of_queue and g.gated_by is not null
    order by g.queue, g.gated_by, g.gated_at limit {looked_at}) g
  where {has_jobs_g} and not {is_paused_g}
  limit up_to;
end $$;

-- Returns the groups whose claim has lapsed, or those whose claim has not.
create or replace function claimed_groups(of_queue text, is_lapsed boolean, up_to bigint)
returns table (group_id text, ready_at timestamptz)
language plpgsql stable set search_path from current set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
  return query
  select g.group_id, g.ready_at
  from (
    select g.group_id, g.ready_at, g.xmax from queue_group g
    where g.queue = of_queue and g.job_id is not null
    order by g.queue, g.claimed_by limit {looked_at}) g
  where {lapsed_g} = is_lapsed
  limit up_to;
end $$;

-- Returns the groups that have no row yet, with the job that is next, in the order of the line:
-- those that flags of ended jobs call for, up to `up_to`; then those that are due, and then those
-- that are not, up to as many of each. The flag of an ended job may be the only one that its group
-- has.
create or replace function new_groups(of_queue text, up_to bigint)
returns table (group_id text, head bigint, due_at timestamptz, turn_at timestamptz)
language plpgsql stable set search_path from current set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
  return query
  select distinct f.group_id, f.id, f.run_at, f.turn_at
  from (values
    ('-infinity'::timestamptz, 'epoch'::timestamptz),
    ('epoch'::timestamptz + interval '1 us', now()),
    (now() + interval '1 us', 'infinity'::timestamptz)) place(from_at, until_at)
  cross join lateral (
    select j.group_id, head.id, head.run_at, head.turn_at
    from (
      select f.queue, f.group_id, min(f.flag_at) as flag_at
      from (
        select j.queue, j.group_id, {flag_at} as flag_at from job j
        where j.queue = of_queue and j.flagged and {flag_at} >= place.from_at and {flag_at} <= place.until_at
        order by {flag_at}, j.id limit 20000 + 2 * up_to) f
      group by f.queue, f.group_id order by 3) j
    cross join lateral (
      select u.id, u.run_at, u.turn_at from job u
      where u.queue = j.queue and u.group_id between j.group_id and j.group_id and u.group_id is not null
        and u.status in ('queued', 'started')
      order by u.group_id, u.id limit 1) head
    where (select g.group_id from queue_group g where g.queue = j.queue and g.group_id = j.group_id limit 1)
        is null
      and not {is_paused_j}
    limit up_to) f;
end $$;

-- Returns the groups that have parked jobs, by name. The failed job of a group stays in the same
-- index when nothing is parked with it any more.
create or replace function groups_with_parked(of_queue text, up_to bigint) returns table (group_id text)
language plpgsql stable set search_path from current set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
#variable_conflict use_column
begin
  return query
  with recursive parked(name, step) as (
    (select j.group_id, 1 from job j
      where j.queue = of_queue and j.parked_with is not null and j.status = 'parked'
      order by j.group_id limit 1)
    union all
    select (
      select j.group_id from job j
      where j.queue = of_queue and j.parked_with is not null and j.status = 'parked' and j.group_id > p.name
      order by j.group_id limit 1), p.step + 1
    from parked p where p.name is not null and p.step < up_to)
  select p.name from parked p where p.name is not null limit up_to;
end $$;

-- Returns groups of every state that are not idle: of each state the first `of_each`.
create or replace function first_groups(of_queue text, of_each bigint) returns table (group_id text)
language plpgsql stable set search_path from current set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
begin
  return query
  select r.group_id from rechecked_groups(of_queue, of_each) r
  union
  select r.group_id from groups_in_line(of_queue, of_each) r
  union
  select n.group_id from new_groups(of_queue, of_each) n
  union
  select d.group_id from sleeping_groups(of_queue, of_each) d
  union
  select c.group_id from groups_at_key_limit(of_queue, of_each) c
  union
  select c.group_id from claimed_groups(of_queue, false, of_each) c
  union
  select c.group_id from claimed_groups(of_queue, true, of_each) c
  union
  (select g.group_id from queue_group g
    where g.queue = of_queue and g.halted_at is not null order by g.halted_at limit of_each)
  union
  (select s.group_id from group_setting s where s.queue = of_queue and {paused_s} limit of_each)
  union
  select p.group_id from groups_with_parked(of_queue, of_each) p;
end $$;

-- Returns the deepest groups, and how many unfinished jobs each has, up to `counted`. They are the
-- deepest of three kinds: the first `of_each` of every state; the groups of the newest 10,000 jobs,
-- which grow fastest, as far as these are among the newest 50 times `of_each` ids; and the groups
-- of `of_each` jobs at even distances from the first in line to the newest, and from the lowest id
-- on, where a group with a large part of the backlog shows.
create or replace function deep_groups(of_queue text, of_each bigint, counted bigint, up_to bigint)
returns table (group_id text, depth bigint)
language plpgsql stable set search_path from current set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
begin
  return query
  with bounds as materialized (
    select f.first_id, (select j.id from job j order by j.id desc limit 1) as last_id
    from (values
      -- The jobs before the first ones in line are history, as a rule.
      (least(
        (select min(r.head_id) from groups_in_line(of_queue, of_each) r),
        (select min(f.id) from (
          select j.id from job j where j.queue = of_queue and j.flagged and {flag_at} > 'epoch'
          order by {flag_at}, j.id limit of_each) f))),
      ((select j.id from job j order by j.id limit 1))) f(first_id)),
  newest as materialized (
    select n.group_id from (
      select n.group_id from (
        select j.queue, j.group_id, j.status from job j order by j.id desc limit of_each * 50) n
      where n.queue = of_queue and n.group_id is not null and n.status in ('queued', 'started')
      limit 10000) n
    group by n.group_id order by count(*) desc limit of_each),
  spread as materialized (
    select distinct s.group_id from bounds b
    cross join lateral generate_series(b.first_id, b.last_id,
      greatest((b.last_id - b.first_id) / of_each, 1)) p(id)
    cross join lateral (
      select j.queue, j.group_id, j.status from job j where j.id >= p.id order by j.id limit 1) s
    where s.queue = of_queue and s.group_id is not null and s.status in ('queued', 'started'))
  select c.group_id, (select count(*) from (
      select from job j
      where j.queue = of_queue and j.group_id = c.group_id and j.status in ('queued', 'started')
      limit counted) n) as depth
  from (
    select f.group_id from first_groups(of_queue, of_each) f
    union select n.group_id from newest n
    union select s.group_id from spread s) c
  order by depth desc, c.group_id limit up_to;
end $$;

-- Returns the unfinished job of a queue with the lowest id, among those that are next in the first
-- 10,001 groups with a row in line, in as many that have none yet, and as many jobs without a
-- group.
create or replace function oldest_job(of_queue text) returns bigint
language sql stable set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
  select least(
    (select min(r.id) from (
      select u.id
      from (
        select g.queue, g.group_id from queue_group g
        where g.queue = of_queue and g.ready_at < 'infinity'
        order by g.ready_at limit {looked_at}) g
      cross join lateral (
        select u.id from job u
        where u.queue = g.queue and u.group_id between g.group_id and g.group_id and u.group_id is not null
          and u.status in ('queued', 'started')
        order by u.group_id, u.id limit 1) u
      limit 10001) r),
    (select min(n.head) from new_groups(of_queue, 10001) n),
    (select min(j.id) from (
      select j.id from job j
      where j.queue = of_queue and j.group_id is null and j.status = 'queued' limit 10001) j))
$$;

-- Returns whether a queue has a due job that is no dead letter of another queue and that nobody has
-- claimed.
create or replace function has_own_work(of_queue text) returns boolean
language sql stable set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
  select (
      select true from (
        select j.id, j.queue, j.group_id, j.moved_from, j.run_at from job j
        where j.queue = of_queue and j.group_id is not null and j.status in ('queued', 'started')
        limit {looked_at}) j
      where j.moved_from is null and j.run_at <= now()
        and (select true from claim_of(j.queue, j.group_id, j.id) c) is null
      limit 1) is not null
    or (
      select true from (
        select j.moved_from from job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued' and j.turn_at <= now()
        order by j.turn_at limit {looked_at}) j
      where j.moved_from is null limit 1) is not null
$$;
