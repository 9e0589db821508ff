-- Claims up to `n` jobs without a group: due ones from `from_at` on, or those whose claim lapsed
-- and was suspected a grace ago, or is strict. Their own row is their lock, their token and their
-- lease.
--
-- Each row decides for itself, and its condition is checked again on the version that was locked.
-- So one statement may lock and write. `size` is the bytes of data that it brings, and `more` says
-- that some were left for their bytes. `ready_ats` and `lost_by` are set for claims that are taken
-- over: since when they could be, and whose they were.
--
-- Locks: job rows NO KEY UPDATE, skips. A handler by transaction has its job's row locked.
create or replace function {schema}.claim_ungrouped(of_queue text, n integer, from_at timestamptz, until_at timestamptz,
  lapsed boolean, default_attempts integer, lease_seconds float8, own_lease boolean, processor bigint,
  ignore_before timestamptz, max_bytes bigint, receiver boolean, out jobs bigint[], out tokens uuid[], out dispositions text[],
  out size bigint, out more boolean, out ready_ats timestamptz[], out lost_by text[])
language plpgsql volatile
as $$
declare
  ids bigint[]; words text[]; bytes bigint[]; lapsed_ats timestamptz[]; owners text[];
begin
  size := 0;
  more := false;
  if lapsed then
    select array_agg(d.id), array_agg(d.disposition), array_agg(d.bytes), array_agg(d.lease_until), array_agg(d.lost_by)
      into ids, words, bytes, lapsed_ats, owners
    from (select j.id, {disposition} as disposition, {job_bytes} as bytes, j.lease_until,
        case when j.claimed_by is null then 'receiver' else 'worker' end as lost_by
      from {schema}.job j
      where j.queue = of_queue and j.group_id is null and j.status = 'started' and j.lease_until <= until_at
        and (j.strict is true or {schema}.is_suspected(j.suspect, j.claim, j.lease_until))
      order by j.lease_until limit n for no key update skip locked) d;
  else
    select array_agg(d.id), array_agg(d.disposition), array_agg(d.bytes) into ids, words, bytes
    from (select j.id, {disposition} as disposition, {job_bytes} as bytes from {schema}.job j
      where j.queue = of_queue and j.group_id is null and j.status = 'queued'
        and j.turn_at <= until_at and j.turn_at >= from_at
      order by j.turn_at, j.id limit n for no key update skip locked) d;
  end if;
  if ids is null then
    return;
  end if;
  with due as materialized (
    select d.id, d.disposition, d.bytes, d.lapsed_at, d.lost_by, sum(d.bytes) over (order by d.place rows between unbounded preceding and 1 preceding) as before
    from unnest(ids, words, bytes, lapsed_ats, owners) with ordinality d(id, disposition, bytes, lapsed_at, lost_by, place)),
  turn as materialized (
    select due.id, due.disposition, due.bytes, due.lapsed_at, due.lost_by from due where coalesce(due.before < max_bytes, true)),
  started as (
    update {schema}.job j set
      status = 'started', attempts = j.attempts + (turn.disposition = 'run')::integer,
      last_started_at = case when turn.disposition = 'run' then clock_timestamp() else j.last_started_at end,
      -- If the lost attempt was its last one, the settle that follows says so.
      history = case when j.status = 'started' and j.attempts > 0 and turn.disposition <> 'exhausted'
        then {schema}.history_with(j.history, j.attempts, j.last_started_at, 'worker_lost', {lost}) else j.history end,
      claim = gen_random_uuid(), suspect = null, claimed_by = processor,
      strict = case when receiver then (select q.strict_visibility from {schema}.queue q where q.name = of_queue) end,
      lease_until = clock_timestamp() + make_interval(
        secs => coalesce(case when own_lease then j.lease_ms / 1000.0 end, lease_seconds))
    from turn where j.id = any (array[turn.id])
    returning j.id, j.claim, turn.disposition, turn.bytes, turn.lapsed_at, turn.lost_by)
  select array_agg(s.id), array_agg(s.claim), array_agg(s.disposition), coalesce(sum(s.bytes), 0), array_agg(s.lapsed_at), array_agg(s.lost_by)
    into jobs, tokens, dispositions, size, ready_ats, lost_by from started s;
  more := cardinality(jobs) < cardinality(ids);
end $$;

-- Suspects up to `most` claims of jobs without a group whose lease lapsed. They are to be taken
-- over a grace later.
create or replace function {schema}.suspect_ungrouped(of_queue text, until_at timestamptz, most integer) returns void
language plpgsql volatile
as $$
begin
  update {schema}.job j set suspect = j.claim, lease_until = {schema}.suspect_until(j.suspect, j.claim)
  from (select d.id from {schema}.job d
    where d.queue = of_queue and d.group_id is null and d.status = 'started' and d.lease_until <= until_at
      and not (d.strict is true or {schema}.is_suspected(d.suspect, d.claim, d.lease_until))
    order by d.lease_until limit most for no key update skip locked) due
  where j.id = any (array[due.id]);
end $$;
