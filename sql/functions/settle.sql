-- Returns whether the queue or the group is paused. A turn ends then.
create or replace function {schema}.is_paused(of_queue text, of_group text) returns boolean
language plpgsql stable as $$
begin
  return (select q.name from {schema}.queue q where q.name = of_queue and {paused_q} limit 1) is not null
    or (select s.group_id from {schema}.group_setting s
      where s.queue = of_queue and s.group_id = of_group and {paused_s} limit 1) is not null;
end $$;

-- Records successes of a turn whose claim stays. Returns whether the queue or the group is paused.
-- The group's row is locked by the claim's token.
create or replace function {schema}.record_successes(of_queue text, of_group text, with_token uuid,
  jobs bigint[], results text[], began float8[], ended float8[], keep boolean) returns boolean
language plpgsql volatile as $$
begin
  perform from {schema}.succeed(
    jobs, array_fill(with_token, array[cardinality(jobs)]), results, keep, began, ended);
  -- The next job began later than these ended. A later statement counts its seconds from its own
  -- time.
  update {schema}.queue_group g set
    started_at = greatest(g.started_at, clock_timestamp() - make_interval(secs => (
      select min(coalesce(e.seconds, 0)) from unnest(record_successes.ended) e(seconds))))
  where g.claim = with_token;
  return {schema}.is_paused(of_queue, of_group);
end $$;

-- Passes the turns of claims whose groups' rows this transaction has locked. The jobs of a claim up
-- to its `ended` have ended; if that is null, its job is unfinished and keeps its place. Returns
-- how many of the groups have no job left: their rows are gone.
create or replace function {schema}.pass_turns(tokens uuid[], ended bigint[]) returns integer
language plpgsql volatile as $$
declare
  lines tid[]; priorities smallint[]; spaced timestamptz[]; drained tid[]; passed integer;
  queues text[]; keys text[]; received boolean;
begin
  -- Most pass the turn to a next job, without a slot or a spacing.
  update {schema}.queue_group g set
    {free_group}, ready_at = clock_timestamp() - {priority_aging} * coalesce(next.priority, 0)
  from (
    select g.ctid as line, next.priority
    from unnest(tokens, ended) c(claim, ended)
    join lateral (
      select g.ctid, g.queue, g.group_id, g.head_id from {schema}.queue_group g
      where g.claim = c.claim and g.limit_key is null and g.spaced_until is null limit 1) g on true
    join lateral (
      select h.priority from {schema}.job h
      where h.queue = g.queue and (h.group_id, h.id) >= (g.group_id, coalesce(c.ended + 1, g.head_id))
        and h.group_id <= g.group_id and h.status in ('queued', 'started')
      order by h.group_id, h.id limit 1) next on true) next
  where g.ctid = next.line;
  get diagnostics passed = row_count;
  if passed = cardinality(tokens) then
    return 0;
  end if;
  select array_agg(g.ctid), array_agg(next.priority), array_agg(g.spaced_until),
      array_agg(g.ctid) filter (where next.id is null and c.ended is not null
        -- The row remembers the start: the group's next job may come before its time.
        and coalesce(g.spaced_until <= clock_timestamp(), true)),
      array_agg(g.queue) filter (where g.limit_key is not null),
      array_agg(g.limit_key) filter (where g.limit_key is not null), bool_or(g.claimed_by is null)
    into lines, priorities, spaced, drained, queues, keys, received
  from unnest(tokens, ended) c(claim, ended)
  join lateral (
    select g.ctid, g.queue, g.group_id, g.head_id, g.limit_key, g.claimed_by,
      case when g.spaced_until is not null then coalesce(
        -- Its handler began behind the claim, by as much as the spacing is longer.
        (select j.last_started_at from {schema}.job j where j.id = g.job_id)
          + (g.spaced_until - g.started_at), g.spaced_until) end as spaced_until
    from {schema}.queue_group g where g.claim = c.claim limit 1) g on true
  left join lateral (
    select h.id, h.priority from {schema}.job h
    where h.queue = g.queue and (h.group_id, h.id) >= (g.group_id, coalesce(c.ended + 1, g.head_id))
      and h.group_id <= g.group_id and h.status in ('queued', 'started')
    order by h.group_id, h.id limit 1) next on true;
  if coalesce(cardinality(lines), 0) + passed <> cardinality(tokens) then
    raise 'groups are not as their worker has locked them' using errcode = 'no_data_found';
  end if;
  if keys is not null then
    perform {schema}.free_slots(queues, keys, received);
  end if;
  if drained is not null then
    -- Nothing has written these rows before. The lock fails while an adopter shares a row.
    drained := array(
      select g.ctid from {schema}.queue_group g where g.ctid = any (drained) for update skip locked);
    if {schema}.retire(drained) and cardinality(drained) = cardinality(lines) then
      return cardinality(lines);
    end if;
  end if;
  update {schema}.queue_group g set
    {free_group},
    spaced_until = passed.spaced_until,
    ready_at = greatest(clock_timestamp() - {priority_aging} * coalesce(passed.priority, 0),
      passed.spaced_until)
  from unnest(lines, priorities, spaced) passed(line, priority, spaced_until)
  where g.ctid = passed.line;
  get diagnostics passed = row_count;
  return cardinality(lines) - passed;
end $$;

-- Settles the success of a job whose rows this transaction has locked. If its turn goes on, the
-- claim stays (`stays`), unless the queue or the group is paused: then the turn ends. Else returns
-- `passed`; `drained` if no job is left, or if it has no group.
create or replace function {schema}.settle_success(of_job bigint, with_token uuid, with_result text,
  keep boolean, goes_on boolean, age float8) returns text
language plpgsql volatile as $$
declare
  of_queue text; of_group text; is_last boolean; drained tid[];
begin
  if keep then
    -- As `succeed`, of one job.
    update {schema}.job j set {succeeded}
    from (
      select with_result as result, null::float8 as ended, (
        select greatest(g.started_at, statement_timestamp() - make_interval(secs => age))
        from {schema}.queue_group g where g.claim = with_token limit 1) as started_at offset 0) done
    where j.id = of_job and {claimed}
    returning j.queue, case when j.batch_id is null then j.group_id
      else {schema}.mark_end(j.batch_id, j.id, j.queue, j.group_id, j.status, j.result) end,
      not goes_on and (
        select h.id from {schema}.job h
        where h.queue = j.queue and (h.group_id, h.id) > (j.group_id, j.id) and h.group_id <= j.group_id
          and h.group_id is not null and h.status in ('queued', 'started')
        order by h.group_id, h.id limit 1) is null
      into of_queue, of_group, is_last;
  else
    select s.queue, s.group_id into of_queue, of_group
    from {schema}.succeed(array[of_job], array[with_token], array[with_result], false, array[age]) s;
  end if;
  if not found then
    raise 'job % is not as its worker has locked it', of_job using errcode = 'no_data_found';
  end if;
  if of_group is null then
    return 'drained';
  end if;
  if goes_on and not {schema}.is_paused(of_queue, of_group) then
    return 'stays';
  end if;
  if is_last then
    -- As `pass_turns`, of a group without a slot or a spacing.
    drained := array(
      select g.ctid from {schema}.queue_group g
      where g.claim = with_token and g.limit_key is null and g.spaced_until is null
      limit 1 for update skip locked);
    if drained <> '{}' and {schema}.retire(drained) then
      return 'drained';
    end if;
  end if;
  return case when {schema}.pass_turns(array[with_token], array[of_job]) > 0 then 'drained' else 'passed' end;
end $$;

-- Settles many claims of groups, all of whose jobs have succeeded. `last_jobs` are the last of
-- each. Returns the claims that it settled: others are stale, or their rows are locked for a
-- moment. This transaction must not have written the groups' rows before.
create or replace function {schema}.settle_successes(tokens uuid[], last_jobs bigint[], jobs bigint[],
  results text[], began float8[], ended float8[], of_claims uuid[], keep boolean) returns setof uuid
language plpgsql volatile as $$
#variable_conflict use_column
declare
  locked uuid[]; last_locked bigint[];
begin
  -- The lock that a delete needs. An adopter that shares a row has it skipped.
  select array_agg(g.claim), array_agg(claimed.job_id) into locked, last_locked
  from unnest(tokens, last_jobs) claimed(claim, job_id)
  join lateral (
    select g.claim from {schema}.queue_group g
    where g.claim = claimed.claim limit 1 for update of g skip locked) g on true;
  if locked is null then
    return;
  end if;
  perform from (
    select array_agg(done.id) as jobs, array_agg(done.claim) as claims, array_agg(done.result) as results,
      array_agg(done.began) as began, array_agg(done.ended) as ended
    from unnest(jobs, results, began, ended, of_claims) done(id, result, began, ended, claim)
    where done.claim = any (locked)) done,
    {schema}.succeed(done.jobs, done.claims, done.results, keep, done.began, done.ended);
  perform {schema}.pass_turns(locked, last_locked);
  return query select unnest(locked);
end $$;

-- Settles many claims of jobs without a group. Returns the claims that it settled.
create or replace function {schema}.settle_ungrouped_successes(tokens uuid[], jobs bigint[],
  results text[], keep boolean) returns setof uuid
language plpgsql volatile as $$
#variable_conflict use_column
declare
  locked record;
begin
  select array_agg(claimed.claim) as tokens, array_agg(claimed.job_id) as jobs,
      array_agg(claimed.result) as results
    into locked
  from unnest(tokens, jobs, results) claimed(claim, job_id, result)
  join lateral (
    select j.id from {schema}.job j
    where j.id = claimed.job_id and j.claim = claimed.claim
      and j.finished_at is null and j.status not in ('queued', 'parked')
    limit 1 for no key update of j skip locked) j on true;
  perform from {schema}.succeed(locked.jobs, locked.tokens, locked.results, keep);
  return query select unnest(locked.tokens);
end $$;
