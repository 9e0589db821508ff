-- Claims jobs without a group: due ones from `from_at` on; null: those whose claim lapsed and was
-- suspected a grace ago, or is strict. Their own row is their lock, their token and their lease.
--
-- Each row decides for itself, and its condition is checked again on the version that was locked.
-- So one statement may lock and write.
--
-- With `chosen` it claims only these jobs.
--
-- Locks: job rows NO KEY UPDATE, skips. A handler by transaction has its job's row locked.
create or replace function {schema}.claim_ungrouped(terms {schema}.claim_terms, limits {schema}.claim_limits,
  from_at timestamptz, until_at timestamptz, chosen bigint[] default null) returns {schema}.claim_answer
language plpgsql volatile as $$
declare
  answer {schema}.claim_answer; due {schema}.due_job[];
begin
  if from_at is null then
    select array_agg(d.job) into due
    from (select row(j.id, {disposition}, {job_bytes}, j.lease_until,
        case when j.claimed_by is null then 'receiver' else 'worker' end)::{schema}.due_job as job
      from {schema}.job j
      where j.queue = terms.queue and j.group_id is null and j.status = 'started'
        and j.lease_until <= until_at and (j.id = any (chosen)) is not false
        and (j.strict is true or {schema}.is_suspected(j.suspect, j.claim, j.lease_until))
      order by j.lease_until limit limits.slots for no key update skip locked) d;
  else
    select array_agg(d.job) into due
    from (select row(j.id, {disposition}, {job_bytes}, null, null)::{schema}.due_job as job
      from {schema}.job j
      where j.queue = terms.queue and j.group_id is null and j.status = 'queued'
        and j.turn_at <= until_at and j.turn_at >= from_at and (j.id = any (chosen)) is not false
      order by j.turn_at, j.id limit limits.slots for no key update skip locked) d;
  end if;
  answer.jobs := '{}';
  answer.slots := 0;
  answer.size := 0;
  answer.more := false;
  answer.others := false;
  if due is null then
    return answer;
  end if;
  with claim as materialized (
    select d.* from (
      select d.*, sum(d.bytes) over (
        order by d.ordinality rows between unbounded preceding and 1 preceding) as before
      from unnest(due) with ordinality d) d
    where coalesce(d.before < limits.bytes, true)),
  started as (
    update {schema}.job j set
      status = 'started', attempts = j.attempts + (claim.disposition = 'run')::integer,
      last_started_at = case when claim.disposition = 'run' then clock_timestamp() else j.last_started_at end,
      -- If the lost attempt was its last one, the settle that follows says so.
      history = case when j.status = 'started' and j.attempts > 0 and claim.disposition <> 'exhausted'
        then {schema}.history_with(j.history, j.attempts, j.last_started_at, 'worker_lost', {lost})
        else j.history end,
      claim = gen_random_uuid(), suspect = null, claimed_by = terms.processor,
      strict = case when terms.receiver then (
        select q.strict_visibility from {schema}.queue q where q.name = terms.queue) end,
      lease_until = clock_timestamp() + make_interval(
        secs => coalesce(case when terms.own_lease then j.lease_ms / 1000.0 end, terms.lease_seconds))
    from claim where j.id = any (array[claim.id])
    returning claim.bytes,
      row(j.id, j.claim, claim.disposition, claim.lapsed_at, claim.lost_by)::{schema}.claimed_job as job)
  select array_agg(s.job), count(*), sum(s.bytes)
    into answer.jobs, answer.slots, answer.size from started s;
  answer.more := answer.slots < cardinality(due);
  answer.others := answer.more;
  return answer;
end $$;

-- Suspects up to `most` claims of jobs without a group whose lease lapsed. They are to be taken
-- over a grace later.
create or replace function {schema}.suspect_ungrouped(of_queue text, until_at timestamptz, most integer)
returns void
language plpgsql volatile as $$
begin
  update {schema}.job j set suspect = j.claim, lease_until = {schema}.suspect_until(j.suspect, j.claim)
  from (select d.id from {schema}.job d
    where d.queue = of_queue and d.group_id is null and d.status = 'started' and d.lease_until <= until_at
      and not (d.strict is true or {schema}.is_suspected(d.suspect, d.claim, d.lease_until))
    order by d.lease_until limit most for no key update skip locked) due
  where j.id = any (array[due.id]);
end $$;
