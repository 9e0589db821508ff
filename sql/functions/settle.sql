-- Writes the success of jobs, or deletes them without `keep`. No other place does: holds, batches,
-- turns and acks call it. This transaction has locked the jobs, or their groups by token (P4, P10).
-- Returns a row for each job that it wrote: one that was recorded already stays as it is.
create or replace function {schema}.succeed(jobs bigint[], results text[], keep boolean)
returns table (queue text, group_id text)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  if keep then
    return query
    update {schema}.job j set
      status = 'succeeded', finished_at = clock_timestamp(), result = done.result::jsonb, error = null,
      {free_job}
    from unnest(jobs, results) done(id, result)
    where j.id = any (array[done.id]) and j.finished_at is null and j.status not in ('queued', 'parked')
    returning j.queue, j.group_id;
  else
    return query
    delete from {schema}.job j
    where j.id = any (jobs) and j.finished_at is null and j.status not in ('queued', 'parked')
    returning j.queue, j.group_id;
  end if;
end $$;

-- Returns whether the queue or the group is paused. A turn ends then.
create or replace function {schema}.is_paused(of_queue text, of_group text) returns boolean
language plpgsql stable
as $$
begin
  perform from {schema}.queue q where q.name = of_queue and {paused_q};
  if not found then
    perform from {schema}.group_setting s
    where s.queue = of_queue and s.group_id = of_group and {paused_s};
  end if;
  return found;
end $$;

-- Records successes of a turn whose claim stays. Returns whether the queue or the group is paused.
-- The group's row is locked by the claim's token.
create or replace function {schema}.record_successes(of_queue text, of_group text, jobs bigint[], results text[], keep boolean)
returns boolean
language plpgsql volatile
as $$
begin
  perform from {schema}.succeed(jobs, results, keep);
  return {schema}.is_paused(of_queue, of_group);
end $$;

-- Passes the turns of claims whose groups' rows this transaction has locked. The jobs of a claim up
-- to its `ended` have ended; if that is null, its job is unfinished and keeps its place. Returns
-- how many of the groups have no job left: their rows are gone.
create or replace function {schema}.pass_turns(tokens uuid[], ended bigint[]) returns integer
language plpgsql volatile
as $$
declare
  lines tid[]; priorities smallint[]; drained tid[]; passed integer;
begin
  select array_agg(g.ctid), array_agg(next.priority), array_agg(g.ctid) filter (where next.id is null and c.ended is not null)
    into lines, priorities, drained
  from unnest(tokens, ended) c(claim, ended)
  join lateral (
    select g.ctid, g.queue, g.group_id, g.head_id from {schema}.queue_group g where g.claim = c.claim limit 1) g on true
  left join lateral (
    select h.id, h.priority from {schema}.job h
    where h.queue = g.queue and (h.group_id, h.id) >= (g.group_id, coalesce(c.ended + 1, g.head_id)) and h.group_id <= g.group_id
      and h.status in ('queued', 'started')
    order by h.group_id, h.id limit 1) next on true;
  if cardinality(lines) is distinct from cardinality(tokens) then
    raise 'groups are not as their worker has locked them' using errcode = 'no_data_found';
  end if;
  if drained is not null then
    -- Nothing has written these rows before. The lock fails while an adopter shares a row.
    perform {schema}.retire(array(
      select g.ctid from {schema}.queue_group g where g.ctid = any (drained) for update skip locked));
  end if;
  update {schema}.queue_group g set
    {free_group},
    ready_at = clock_timestamp() - {priority_aging} * coalesce(passed.priority, 0)
  from unnest(lines, priorities) passed(line, priority)
  where g.ctid = passed.line;
  get diagnostics passed = row_count;
  return cardinality(tokens) - passed;
end $$;

-- Queues started jobs again as if they had not been claimed: they were not begun.
create or replace function {schema}.unclaim(jobs bigint[]) returns void
language plpgsql volatile
as $$
begin
  update {schema}.job j set
    status = 'queued', attempts = j.attempts - 1,
    last_started_at = case when j.attempts > 1 then j.last_started_at end
  where j.id = any (jobs) and j.finished_at is null and j.status not in ('queued', 'parked');
end $$;

-- Settles the success of a job whose rows this transaction has locked. With jobs `behind` it the
-- claim stays for them (`stays`), unless the queue or the group is paused. Then those go back as if
-- they had not been claimed, and the turn ends. Else returns `passed`; `drained` if no job is left,
-- or if it has no group.
create or replace function {schema}.settle_success(of_job bigint, with_token uuid, with_result text, keep boolean, behind bigint[])
returns text
language plpgsql volatile
as $$
declare
  of_queue text; of_group text;
begin
  select s.queue, s.group_id into of_queue, of_group
  from {schema}.succeed(array[of_job], array[with_result], keep) s;
  if not found then
    raise 'job % is not as its worker has locked it', of_job using errcode = 'no_data_found';
  end if;
  if of_group is null then
    return 'drained';
  end if;
  if behind is not null then
    if not {schema}.is_paused(of_queue, of_group) then
      return 'stays';
    end if;
    perform {schema}.unclaim(behind);
  end if;
  return case when {schema}.pass_turns(array[with_token], array[of_job]) > 0 then 'drained' else 'passed' end;
end $$;

-- Settles many claims of groups, all of whose jobs have succeeded. `last_jobs` are the last of
-- each. Returns the claims that it settled: others are stale, or their rows are locked for a
-- moment. This transaction must not have written the groups' rows before.
create or replace function {schema}.settle_successes(tokens uuid[], last_jobs bigint[], jobs bigint[], results text[],
  of_claims uuid[], keep boolean)
returns setof uuid
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  locked uuid[]; ended bigint[];
begin
  -- The lock that a delete needs. An adopter that shares a row has it skipped.
  select array_agg(g.claim), array_agg(claimed.job_id) into locked, ended from unnest(tokens, last_jobs) claimed(claim, job_id)
  join lateral (
    select g.claim from {schema}.queue_group g
    where g.claim = claimed.claim limit 1 for update of g skip locked) g on true;
  if locked is null then
    return;
  end if;
  perform from (
    select array_agg(done.id) as jobs, array_agg(done.result) as results
    from unnest(jobs, results, of_claims) done(id, result, claim)
    where done.claim = any (locked)) done,
    {schema}.succeed(done.jobs, done.results, keep);
  perform {schema}.pass_turns(locked, ended);
  return query select unnest(locked);
end $$;

-- Settles many claims of jobs without a group. Returns the claims that it settled.
create or replace function {schema}.settle_ungrouped_successes(tokens uuid[], jobs bigint[], results text[], keep boolean)
returns setof uuid
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  locked record;
begin
  select array_agg(claimed.claim) as tokens, array_agg(claimed.job_id) as jobs, array_agg(claimed.result) as results
  into locked
  from unnest(tokens, jobs, results) claimed(claim, job_id, result)
  join lateral (
    select j.id from {schema}.job j
    where j.id = claimed.job_id and j.claim = claimed.claim
      and j.finished_at is null and j.status not in ('queued', 'parked')
    limit 1 for no key update of j skip locked) j on true;
  perform from {schema}.succeed(locked.jobs, locked.results, keep);
  return query select unnest(locked.tokens);
end $$;

-- Settles a success and starts the next job of the group under a token of its own, in the same
-- transaction, if nothing keeps it from that. Returns `goes_on` with what the next handler needs.
-- The session remembers the job for `hold_next`.
--
-- Only the read of a free row may raise `head_id`, as an adopter that shares the row goes by it. A
-- late job lowers it: what its flag stood for is behind that.
create or replace function {schema}.settle_and_chain(of_queue text, of_group text, of_job bigint, with_token uuid, with_result text,
  keep boolean, default_attempts integer, lease_seconds float8, processor bigint, ignore_before timestamptz)
returns table (
  suspected boolean, id bigint, data text, attempts integer, attempts_forgiven integer, max_attempts integer,
  timeout_ms bigint, created_at timestamptz, run_at timestamptz, cancel_requested boolean, followed boolean,
  pid integer, since timestamptz, lease_ms bigint, payload bytea, content_type text, name text, reference text,
  priority smallint, headers text, claim uuid, state text, chained_at timestamptz)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  next_job bigint; next_token uuid; word text;
begin
  -- Most groups have nothing behind the job.
  perform from {schema}.job h
  where h.queue = of_queue and (h.group_id, h.id) > (of_group, of_job) and h.group_id <= of_group
    and h.status in ('queued', 'started')
  order by h.group_id, h.id limit 1;
  if found then
    -- The row of the next job is not held yet. A claim must survive a crash of the server, whatever
    -- the host has set.
    perform set_config('lock_timeout', {lock_timeout}, true), set_config('synchronous_commit', 'on', true);
    -- By a snapshot that is younger than the lock of the group's row.
    select n.id into next_job from {schema}.job n
    where n.id = any (array[(
        select h.id from {schema}.queue_group g
        join lateral {schema}.head(of_queue, of_group, g.head_id, of_job) h on true
        where g.claim = with_token)])
      and n.finished_at is null and n.status = 'queued' and n.run_at <= clock_timestamp() and n.expires_at is null
      and n.queue = any (array[of_queue])
      and coalesce(n.created_at >= ignore_before, true)
      and n.attempts - n.attempts_forgiven < coalesce(n.max_attempts, default_attempts)
      -- If a limit of jobs in flight is set, a claim decides which job is next.
      and (select q.name from {schema}.queue q where q.name = of_queue and q.in_flight_limit is not null limit 1) is null
    for no key update of n skip locked;
  end if;
  word := {schema}.settle_success(of_job, with_token, with_result, keep, case when next_job is not null then '{}'::bigint[] end);
  if word <> 'stays' then
    perform set_config('seriatim.next', '', false);
    state := word;
    return next;
    return;
  end if;
  update {schema}.queue_group g set
    claim = gen_random_uuid(), job_id = next_job, head_id = least(g.head_id, next_job), suspect = null,
    claimed_by = processor, aging_priority = 0, batch_end = null, batch_size = 1, ready_at = clock_timestamp() + make_interval(secs => lease_seconds)
  where g.claim = with_token
  returning g.claim into next_token;
  if not found then
    raise 'group % is not as its worker has locked it', of_group using errcode = 'no_data_found';
  end if;
  -- The answer is text, in the form that the library reads.
  perform set_config('DateStyle', 'ISO, MDY', true), set_config('TimeZone', 'UTC', true),
    set_config('bytea_output', 'hex', true), set_config('seriatim.next', next_job || ' ' || next_token, false);
  return query
  update {schema}.job j set
    status = 'started', flagged = false, attempts = j.attempts + 1, last_started_at = clock_timestamp()
  where j.id = next_job
  returning false, j.id, j.data::text, j.attempts, j.attempts_forgiven, j.max_attempts::integer, j.timeout_ms::bigint,
    j.created_at, j.run_at, exists (select from {schema}.cancel_request r where r.job_id = j.id), true,
    pg_backend_pid(), now(), j.lease_ms::bigint, j.payload, j.content_type, j.name, j.reference, j.priority::smallint,
    j.headers::text, next_token, 'chained', clock_timestamp();
end $$;
