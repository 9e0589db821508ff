-- The claim's step *start*: groups' rows name the jobs that begin.

-- Starts up to `slots` heads, and jobs behind them (`follow`). Together they have at most `bytes`
-- of data, or are one job. Returns the claimed jobs in the order of their turns: behind each head,
-- which has a token, come its followers, without one. `turns` are now those that are to be
-- deferred: so are those whose limit key has no slot (`full_keys`), by the limit that this claim
-- has read (`per_key`). `more`: others are left for want of slots or bytes.
--
-- The group's row names the jobs, which are locked and not written. Its commit is the attempt, and
-- comes before the handler (P9): a take-over of the claim counts it. The token is random, and
-- every later statement about the turn shows it (P10). Only a claim of a free row moves `head_id`.
-- A group without a row gets it claimed: its flag goes with the end of its job.
--
-- Locks: followers NO KEY UPDATE, skips. The groups and heads are locked.
create or replace function {schema}.start_turns(terms {schema}.claim_terms, limits {schema}.claim_limits,
  inout turns {schema}.turn[], inout full_keys text[] default '{}', per_key integer default null,
  out jobs {schema}.claimed_job[], out heads integer, out size bigint, out more boolean)
language plpgsql volatile as $$
declare
  turn {schema}.turn; started {schema}.turn[] := '{}'; deferred {schema}.turn[] := '{}'; written integer;
  is_strict boolean; lost boolean := false; begins boolean; freed text[] := '{}'; taken text[] := '{}';
  slot_key text;
begin
  jobs := '{}';
  heads := 0;
  size := 0;
  more := false;
  foreach turn in array turns loop
    begins := turn.job is not null and heads < limits.slots and (size < limits.bytes or heads = 0);
    if begins and turn.limit_key is not null
      and not {schema}.has_slot(terms.queue, per_key, turn, taken, full_keys)
    then
      full_keys := full_keys || turn.limit_key;
      turn.gated := true;
      turn.job := null;
      begins := false;
    end if;
    if begins then
      if turn.limit_key is not null or turn.held_key is not null then
        -- A slot that it has stays its own when the limit goes: its end wakes who waits for it.
        slot_key := case when turn.disposition = 'run' and (turn.limit_key = turn.held_key or per_key > 0)
          then turn.limit_key end;
        if slot_key is distinct from turn.held_key then
          freed := freed || array_remove(array[turn.held_key], null);
          taken := taken || array_remove(array[slot_key], null);
          turn.held_key := slot_key;
        end if;
      end if;
      started := started || turn;
      heads := heads + 1;
      size := size + turn.bytes;
      lost := lost or turn.suspected is true;
    else
      more := more or turn.job is not null;
      if turn.job is null or turn.flags is not null then
        deferred := deferred || turn;
      end if;
    end if;
  end loop;
  turns := deferred;
  if heads = 0 then
    return;
  end if;
  if terms.receiver then
    select q.strict_visibility into is_strict from {schema}.queue q where q.name = terms.queue;
  end if;
  limits.followers := least(limits.followers, limits.in_flight - heads,
    case when terms.receiver then limits.slots - heads end);
  if terms.per_turn > 1 and limits.followers > 0 then
    limits.bytes := limits.bytes - size;
    started := {schema}.follow(terms, limits, started, is_strict);
    size := (select sum(s.bytes) from unnest(started) s);
  end if;
  if freed <> '{}' then
    perform {schema}.free_slots(array_fill(terms.queue, array[cardinality(freed)]), freed, false);
  end if;
  if lost then
    perform {schema}.lose_attempts(started);
  end if;
  if terms.receiver then
    -- A receiver may have the job for hours, and the next receive would read the flag.
    update {schema}.job j set flagged = false
    from (select unnest(s.job || s.followers) as id from unnest(started) s) s
    where j.id = any (array[s.id]) and coalesce(j.flagged, false);
  end if;
  with claim as materialized (
    select s.*, gen_random_uuid() as token,
      case when s.followers <> '{}' then s.job || s.followers end as batch,
      case when s.disposition = 'run' then clock_timestamp() end as started_at,
      clock_timestamp() + (select make_interval(secs => q.group_spacing_ms / 1000.0::float8)
        from {schema}.queue q where q.name = terms.queue) as next_start_at,
      clock_timestamp() + make_interval(secs => coalesce(
        case when terms.own_lease then (
          select j.lease_ms / 1000.0 from {schema}.job j where j.id = s.job) end,
        terms.lease_seconds)) as lease_until
    from unnest(started) s),
  named as (
    update {schema}.queue_group g set
      claim = claim.token, job_id = claim.job, batch = claim.batch, started_at = claim.started_at,
      claimed_by = terms.processor, strict = is_strict, ready_at = claim.lease_until,
      head_id = case when g.claim is null then claim.job else g.head_id end,
      suspect = null, aging_priority = 0, rechecks = 0, limit_key = claim.held_key,
      gated_by = null, gated_at = null,
      spaced_until = case when claim.started_at is null then g.spaced_until else claim.next_start_at end
    from claim where g.ctid = claim.line
    returning 1),
  new as (
    insert into {schema}.queue_group (
      queue, group_id, head_id, claim, job_id, batch, started_at, claimed_by, strict, ready_at, limit_key,
      spaced_until)
    select terms.queue, claim.name, claim.job, claim.token, claim.job, claim.batch, claim.started_at,
      terms.processor, is_strict, claim.lease_until, claim.held_key,
      case when claim.started_at is not null then claim.next_start_at end
    from claim where claim.line is null
    returning 1)
  select (select count(*) from named) + (select count(*) from new), (
      select array_agg(row(
        job.id, case when job.place = 1 then claim.token end,
        case when job.place = 1 then claim.disposition else 'run' end,
        case when job.place = 1 then claim.ready_at end,
        case when job.place = 1 then claim.lost_by end)::{schema}.claimed_job)
      from claim cross join lateral unnest(claim.job || claim.followers) with ordinality job(id, place))
    into written, jobs;
  if written < heads then
    raise 'the rows of groups are not as this claim has locked them' using errcode = 'no_data_found';
  end if;
  perform {schema}.clear_flags_from(terms.queue, array_agg(s.name), array_agg(s.job + 1))
  from unnest(started) s where s.flags > 1 having count(*) > 0;
end $$;

-- Adds followers to turns, up to `per_turn` - 1 to each and `followers` in all, and their bytes.
--
-- Followers are next in order, due, and never begun, behind a head that was never begun. Such a job
-- loses nothing if its worker dies before it comes to run. One whose attempts are limited to 1
-- would, under a lease. One that expires is left to a claim of its own, which alone sees that it
-- did. One with another limit key needs a slot of its own. The first that cannot be had ends the
-- line. A receiver gives them out now: its followers may have been begun before, and may expire;
-- only a claim that it takes over comes alone. Not if its queue has strict visibility, and the
-- group is not paused: there the end of a visibility is no sign of death.
--
-- Locks: followers NO KEY UPDATE, skips.
create or replace function {schema}.follow(terms {schema}.claim_terms, limits {schema}.claim_limits,
  turns {schema}.turn[], is_strict boolean) returns {schema}.turn[]
language plpgsql volatile as $$
declare
  places bigint[]; each integer; follower record; added integer := 0; size bigint := 0; closed bigint := 0;
begin
  select array_agg(t.ordinality) into places
  from unnest(turns) with ordinality t
  where t.disposition = 'run' and (t.fresh or terms.receiver and (
    t.lapsed_job is null or is_strict is true and (
      select s.group_id from {schema}.group_setting s
      where s.queue = terms.queue and s.group_id = t.name and {paused_s} limit 1) is null));
  each := least(terms.per_turn - 1,
    greatest(limits.followers / greatest(cardinality(places), 1), least(limits.followers, 9)));
  for follower in
    with next as materialized (
      select f.place, n.id, n.bytes, turns[f.place].limit_key as limit_key from unnest(places) f(place)
      -- A late job before the head may have been committed since the head was read: what was
      -- enqueued behind that commit must not run before it (P1).
      join lateral (
        select h.id = turns[f.place].job as is_head
        from {schema}.head(terms.queue, turns[f.place].name, turns[f.place].job, null) h) head on true
      join lateral (
        select j.id, {job_bytes} as bytes from {schema}.job j
        where j.queue = terms.queue and (j.group_id, j.id) > (turns[f.place].name, turns[f.place].job)
          and j.group_id <= turns[f.place].name
          and j.group_id is not null and j.status in ('queued', 'started')
        order by j.group_id, j.id limit each) n on head.is_head),
    locked as materialized (
      select j.id from next join {schema}.job j on j.id = any (array[next.id])
      where j.finished_at is null and j.run_at <= clock_timestamp() and j.queue = any (array[terms.queue])
        and (j.expires_at is null or terms.receiver and j.expires_at > clock_timestamp())
        and coalesce(j.created_at >= terms.ignore_before, true)
        and (j.attempts = j.attempts_forgiven or terms.receiver
          and j.attempts - j.attempts_forgiven < coalesce(j.max_attempts, terms.default_attempts))
        and coalesce(j.max_attempts, terms.default_attempts) > 1
        and (j.lease_ms is null or not terms.own_lease)
        and j.limit_key is not distinct from next.limit_key
      for no key update of j skip locked)
    select next.place, next.id, next.bytes, (next.id in (select locked.id from locked)) is true as is_locked
    from next order by next.place, next.id
  loop
    continue when follower.place = closed;
    if not follower.is_locked then
      closed := follower.place;
      continue;
    end if;
    added := added + 1;
    size := size + follower.bytes;
    exit when added > limits.followers or size > limits.bytes;
    turns[follower.place].followers := turns[follower.place].followers || follower.id;
    turns[follower.place].bytes := turns[follower.place].bytes + follower.bytes;
  end loop;
  return turns;
end $$;

-- Counts the attempts of claims that lapsed and are now taken over. The attempt of the first job of
-- each that has not ended is lost. If that was its last one, the settle that follows says so in its
-- history. A receiver had begun the others as well, and a worker under a lease may have: no number
-- comes twice (P9). Nothing is held against those.
create or replace function {schema}.lose_attempts(turns {schema}.turn[]) returns void
language plpgsql volatile as $$
begin
  update {schema}.job j set
    attempts = j.attempts + 1, last_started_at = lapsed.started_at,
    attempts_forgiven = j.attempts_forgiven + (j.id <> lapsed.head)::integer,
    history = case
      when j.id <> lapsed.head
        then {schema}.history_with(j.history, j.attempts + 1, lapsed.started_at, 'released', null)
      when lapsed.disposition <> 'exhausted'
        then {schema}.history_with(j.history, j.attempts + 1, lapsed.started_at, 'worker_lost', {lost})
      else j.history end
  from (
    select c.id, turn.job as head, turn.disposition, g.started_at
    from unnest(turns) turn
    join {schema}.queue_group g on g.ctid = turn.line
    cross join lateral {schema}.unfinished(g.job_id, g.batch) c
    where g.started_at is not null) lapsed
  where j.id = any (array[lapsed.id]) and j.finished_at is null;
end $$;
