-- The claim in the simple case: groups in line and new groups, whose heads may all start. Whatever
-- else it meets, it leaves to the claim's steps, which lock the same rows again.

-- Locks the first `n` turns of the line: rows of free groups, and new groups. Null if one call for
-- something else: a claim that lapsed, a slot or a spacing; flags that wake or that rest; or more
-- flags that call for nothing than it reads. `more`: others are in line.
--
-- Locks: group rows NO KEY UPDATE, new groups; skips.
create or replace function {schema}.first_turns(terms {schema}.claim_terms, n integer, until_at timestamptz,
  out turns {schema}.turn[], out more boolean)
language plpgsql volatile as $$
declare
  simple boolean; recent boolean; waits boolean;
begin
  with line as materialized (
    select g.ctid as line, g.group_id as name, g.head_id, g.ready_at,
      g.job_id is not null or coalesce(g.gated_by, g.limit_key) is not null or g.spaced_until is not null
        as odd
    from {schema}.queue_group g
    where g.queue = terms.queue and g.ready_at <= until_at and g.ready_at < 'infinity'
    order by g.ready_at limit n for no key update skip locked),
  flag as materialized (
    select j.id, j.group_id as name, j.finished_at is not null as ended from {schema}.job j
    where j.queue = terms.queue and j.flagged and {flag_at} <= until_at
    order by {flag_at}, j.id limit n + 64),
  flagged as materialized (
    select terms.queue as queue, f.name, min(f.id) as id, bool_or(f.ended) as ended, count(*) as flags
    from flag f group by f.name),
  called as materialized (
    select f.name, f.flags, h.id as head_id, h.turn_at as ready_at, g.free, case
      when g.free is null then coalesce(h.due_at > until_at or h.turn_at > until_at, true)
      -- A row that is due is in line, or another transaction has it.
      when g.free and not g.halted and g.ready_at > until_at then f.ended or coalesce(f.id <= g.head_id, true)
        or (select j.id from {schema}.job j where j.id = any (array[g.head_id]) and j.finished_at is null
          limit 1) is null
      else false end as odd
    from flagged f left join lateral (
      select g.job_id is null as free, g.halted_at is not null as halted, g.ready_at, g.head_id
      from {schema}.queue_group g
      where g.queue = f.queue and g.group_id between f.name and f.name
      order by g.group_id desc limit 1) g on true
    left join lateral (
      select j.id, j.turn_at, least(j.run_at, j.expires_at) as due_at from {schema}.job j
      where g.free is null and j.queue = f.queue and j.group_id between f.name and f.name
        and j.group_id is not null and j.status in ('queued', 'started')
      order by j.group_id, j.id limit 1) h on true),
  waiting as materialized (
    select w.*, row_number() over (order by w.ready_at) as place
    from (
      select line, name, head_id, ready_at, null::bigint as flags from line
      union all
      select null, name, head_id, ready_at, flags from called where free is null) w),
  locked as materialized (
    select w.name from waiting w join {schema}.adoption_lock l
      on l.hash = any (array[{schema}.group_hash(terms.queue, w.name)])
    where w.line is null and w.place <= n
    for no key update of l skip locked)
  select array_agg(row(w.name, w.line, w.head_id, w.ready_at, w.flags, null, null, null,
        null, null, null, null, null, null, null, null)::{schema}.turn order by w.place)
      filter (where w.place <= n and (w.line is not null or w.name in (select locked.name from locked))),
    count(*) > n or (select count(*) from flag) = n + 64, coalesce(bool_or(w.place > n and w.line is null
      and w.ready_at > until_at - interval '50 ms'), false),
    not exists (select from line where line.odd) and not exists (select from called where called.odd)
      and (count(*) >= n or (select count(*) from flag) < n + 64)
      -- If there is nothing to start, the steps clear all flags except those of running jobs.
      and (count(*) > 0 or not exists (select from called where called.free)
        and (select count(*) from flag) = (select count(*) from called)),
    count(*) > 0
    into turns, more, recent, simple, waits
  from waiting w;
  if not waits then
    turns := '{}';
  end if;
  if not simple then
    turns := null;
  elsif recent then
    -- Producers that saw many new jobs in other idle groups have woken no worker for theirs.
    perform {schema}.wake(terms.queue);
  end if;
end $$;

-- Starts the heads of turns in one statement, if each head may start and no job is to follow one of
-- them. Otherwise it starts none, and returns null. `read_heads` says which may start,
-- and `start_turns` what is written.
--
-- Locks: job rows NO KEY UPDATE, skips. The groups are locked.
create or replace function {schema}.start_heads(terms {schema}.claim_terms, limits {schema}.claim_limits,
  turns {schema}.turn[]) returns {schema}.claimed_job[]
language plpgsql volatile as $$
declare
  jobs {schema}.claimed_job[];
begin
  with claim as materialized (
    select t.name, t.line, t.ready_at, t.ordinality as place, j.id, j.followed, gen_random_uuid() as token,
      clock_timestamp() + make_interval(secs => coalesce(
        case when terms.own_lease then j.lease_ms / 1000.0 end, terms.lease_seconds)) as lease_until
    from unnest(turns) with ordinality t
    cross join lateral (
      select h.id, 0 as lost from {schema}.head(terms.queue, t.name, t.head_id, null) h) head
    cross join lateral (
      select j.id, j.lease_ms, terms.per_turn > 1 and limits.followers > 0 and (
        select n.id from {schema}.job n
        where n.queue = j.queue and (n.group_id, n.id) > (j.group_id, j.id) and n.group_id <= j.group_id
          and n.group_id is not null and n.status in ('queued', 'started')
        order by n.group_id, n.id limit 1) is not null as followed
      from {schema}.job j
      where j.id = any (array[head.id]) and j.finished_at is null and j.queue = any (array[terms.queue])
        and j.run_at <= clock_timestamp() and j.limit_key is null and {head_disposition} = 'run'
        and {job_bytes} <= limits.bytes / cardinality(turns)
        and (select s.group_id from {schema}.group_setting s
          where s.queue = terms.queue and s.group_id = t.name and {paused_s} limit 1) is null
      limit 1 for no key update skip locked) j
    where t.line is not null and t.flags is null or t.line is null and t.flags = 1 and (
      select g.group_id from {schema}.queue_group g
      where g.queue = terms.queue and g.group_id between t.name and t.name
      order by g.group_id desc limit 1) is null),
  every as materialized (
    -- A spacing since the front was read is for `start_turns`.
    select count(*) = cardinality(turns) and not bool_or(claim.followed) and (
      select q.group_spacing_ms from {schema}.queue q where q.name = terms.queue) is null as starts
    from claim),
  named as (
    update {schema}.queue_group g set
      claim = claim.token, job_id = claim.id, batch = null, started_at = clock_timestamp(),
      claimed_by = terms.processor, strict = null, ready_at = claim.lease_until, head_id = claim.id,
      suspect = null, aging_priority = 0, rechecks = 0, limit_key = null, gated_by = null, gated_at = null
    from claim where g.ctid = claim.line and (select every.starts from every)),
  new as (
    insert into {schema}.queue_group (
      queue, group_id, head_id, claim, job_id, started_at, claimed_by, ready_at)
    select terms.queue, claim.name, claim.id, claim.token, claim.id, clock_timestamp(), terms.processor,
      claim.lease_until
    from claim where claim.line is null and (select every.starts from every))
  select array_agg(row(claim.id, claim.token, 'run', claim.ready_at, null)::{schema}.claimed_job
      order by claim.place)
    into jobs
  from claim where (select every.starts from every);
  return jobs;
end $$;

-- Claims heads of up to `slots` groups, and jobs behind them, in the simple case. `jobs` is null if
-- it is not simple. Without a flag that is due, `with_flags` is false.
create or replace function {schema}.claim_simply(terms {schema}.claim_terms, limits {schema}.claim_limits,
  with_flags boolean, until_at timestamptz) returns {schema}.claim_answer
language plpgsql volatile as $$
declare
  began constant timestamptz := clock_timestamp();
  answer {schema}.claim_answer; turns {schema}.turn[]; started record;
begin
  if with_flags then
    select f.turns, f.more into turns, answer.more
    from {schema}.first_turns(terms, least(limits.slots, 256), until_at) f;
  else
    turns := {schema}.lock_turns(terms, 'line', least(limits.slots, 256), '-infinity', until_at);
    answer.more := false;
    if exists (
      select from unnest(turns) t
      where t.lapsed_job is not null or t.held_key is not null or t.spaced_until is not null)
    then
      turns := null;
    end if;
  end if;
  -- A short read passes no dead rows, and few that others hold.
  answer.reading := clock_timestamp() - began;
  if answer.reading < interval '2 ms' then
    answer.reading := '0';
  end if;
  if turns is null then
    return answer;
  end if;
  if turns <> '{}' then
    answer.jobs := {schema}.start_heads(terms, limits, turns);
    answer.slots := cardinality(answer.jobs);
  end if;
  if answer.jobs is null and turns <> '{}' then
    turns := {schema}.read_heads(terms, turns);
    if exists (select from unnest(turns) t where t.disposition is distinct from 'run') then
      return answer;
    end if;
  end if;
  if answer.jobs is null then
    started := {schema}.start_turns(terms, limits, coalesce(turns, '{}'));
    if cardinality(started.turns) > 0 then
      perform {schema}.defer_turns(terms, started.turns);
    end if;
    answer.jobs := started.jobs;
    answer.slots := started.heads;
    answer.more := answer.more or started.more;
  end if;
  answer.more := answer.more or answer.slots >= 256;
  if not answer.more then
    answer.flags_at := until_at;
    answer.groups_at := case when answer.slots < limits.slots then until_at end;
  end if;
  return answer;
end $$;
