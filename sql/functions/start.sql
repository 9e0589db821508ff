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
  started {schema}.turn[]; deferred {schema}.turn[]; freed text[] := '{}'; is_strict boolean;
  places bigint[]; ids bigint[]; written integer; lost boolean; keyed boolean;
begin
  jobs := '{}';
  select
    coalesce(array_agg(t.turn order by t.place) filter (where t.begins), '{}'),
    coalesce(array_agg(t.turn order by t.place) filter (
      where not t.begins and ((t.turn).job is null or (t.turn).flags is not null)), '{}'),
    coalesce(sum((t.turn).bytes) filter (where t.begins), 0),
    coalesce(bool_or(not t.begins and (t.turn).job is not null), false),
    coalesce(bool_or((t.turn).suspected), false),
    coalesce(bool_or((t.turn).limit_key is not null or (t.turn).held_key is not null), false)
    into started, deferred, size, more, lost, keyed
  from (
    select u.turn, u.place, (u.turn).job is not null and count((u.turn).job) over before < limits.slots
      and (count((u.turn).job) over before = 0
        or sum((u.turn).bytes) over before < limits.bytes) as begins
    from (select unnest(turns) as turn, generate_series(1, cardinality(turns)) as place) u
    window before as (order by u.place rows between unbounded preceding and 1 preceding)) t;
  if keyed then
    select p.* into started, deferred, full_keys, freed, size, more
    from {schema}.pick_by_keys(terms, limits, turns, full_keys, per_key) p;
  end if;
  heads := cardinality(started);
  turns := deferred;
  if heads = 0 then
    return;
  end if;
  if terms.receiver then
    select q.strict_visibility into is_strict from {schema}.queue q where q.name = terms.queue;
  end if;
  limits.followers := least(limits.followers, limits.in_flight - heads,
    case when terms.receiver then limits.slots - heads end);
  if terms.per_turn > 1 and limits.followers > 0 and exists (
    select from unnest(started) s cross join lateral (
      select j.id from {schema}.job j
      where j.queue = terms.queue and (j.group_id, j.id) > (s.name, s.job) and j.group_id <= s.name
        and j.group_id is not null and j.status in ('queued', 'started')
      order by j.group_id, j.id limit 1) next)
  then
    limits.bytes := limits.bytes - size;
    select f.places, f.ids, size + f.bytes into places, ids, size
    from {schema}.follow(terms, limits, started, is_strict) f;
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
    from (select s.job as id from unnest(started) s union all select unnest(ids)) s
    where j.id = any (array[s.id]) and coalesce(j.flagged, false);
  end if;
  with claim as materialized (
    select s.*, gen_random_uuid() as token, s.job || b.ids as jobs,
      case when b.ids is not null then s.job || b.ids end as batch,
      case when s.disposition = 'run' then clock_timestamp() end as started_at,
      clock_timestamp() + (select make_interval(secs => q.group_spacing_ms / 1000.0::float8)
        from {schema}.queue q where q.name = terms.queue) as next_start_at,
      clock_timestamp() + make_interval(secs => coalesce(
        case when terms.own_lease then (
          select j.lease_ms / 1000.0 from {schema}.job j where j.id = s.job) end,
        terms.lease_seconds)) as lease_until
    from unnest(started) with ordinality s left join (
      select f.place, array_agg(f.id order by f.id) as ids from unnest(places, ids) f(place, id)
      group by f.place) b on b.place = s.ordinality),
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
        case when job.place = 1 then claim.lost_by end)::{schema}.claimed_job
        order by claim.ordinality, job.place)
      from claim cross join lateral unnest(claim.jobs) with ordinality job(id, place))
    into written, jobs;
  if written < heads then
    raise 'the rows of groups are not as this claim has locked them' using errcode = 'no_data_found';
  end if;
  perform {schema}.clear_flags_from(terms.queue, array_agg(s.name), array_agg(s.job + 1))
  from unnest(started) s where s.flags > 1 having count(*) > 0;
end $$;

-- As the start picks turns that may begin, if some have limit keys: decides which slot each has.
-- `freed` are the keys whose slots they give back.
create or replace function {schema}.pick_by_keys(terms {schema}.claim_terms, limits {schema}.claim_limits,
  turns {schema}.turn[], had_full text[], per_key integer, out started {schema}.turn[],
  out deferred {schema}.turn[], out full_keys text[], out freed text[], out size bigint, out more boolean)
language plpgsql volatile as $$
declare
  turn {schema}.turn; begins boolean; taken text[] := '{}'; slot record; slot_key text;
begin
  started := '{}';
  deferred := '{}';
  full_keys := had_full;
  freed := '{}';
  size := 0;
  more := false;
  foreach turn in array turns loop
    begins := turn.job is not null and cardinality(started) < limits.slots
      and (size < limits.bytes or started = '{}');
    slot_key := null;
    if begins and turn.limit_key is not null then
      slot := {schema}.has_slot(terms.queue, per_key, turn, taken, full_keys);
      if slot.starts then
        slot_key := case when slot.slotted then turn.limit_key end;
      else
        full_keys := full_keys || turn.limit_key;
        turn.gated := true;
        turn.job := null;
        begins := false;
      end if;
    end if;
    if begins then
      if slot_key is distinct from turn.held_key then
        freed := freed || array_remove(array[turn.held_key], null);
        taken := taken || array_remove(array[slot_key], null);
        turn.held_key := slot_key;
      end if;
      started := started || turn;
      size := size + turn.bytes;
    else
      more := more or turn.job is not null;
      if turn.job is null or turn.flags is not null then
        deferred := deferred || turn;
      end if;
    end if;
  end loop;
end $$;

-- Returns the followers of turns (`ids`, each with the place of its turn), up to `per_turn` - 1 of
-- each and `followers` in all, and their bytes.
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
  turns {schema}.turn[], is_strict boolean, out places bigint[], out ids bigint[], out bytes bigint)
language plpgsql volatile as $$
#variable_conflict use_column
begin
  with turn as materialized (
    select t.ordinality as place, t.name, t.job, t.limit_key
    from unnest(turns) with ordinality t
    where t.disposition = 'run' and (t.fresh or terms.receiver and (
      t.lapsed_job is null or is_strict is true and (
        select s.group_id from {schema}.group_setting s
        where s.queue = terms.queue and s.group_id = t.name and {paused_s} limit 1) is null))),
  next as materialized (
    select turn.place, n.id, n.bytes, turn.limit_key from turn
    -- A late job before the head may have been committed since the head was read: what was
    -- enqueued behind that commit must not run before it (P1).
    join lateral (
      select h.id = turn.job as is_head
      from {schema}.head(terms.queue, turn.name, turn.job, null) h) head on true
    join lateral (
      select j.id, {job_bytes} as bytes from {schema}.job j
      where j.queue = terms.queue and (j.group_id, j.id) > (turn.name, turn.job)
        and j.group_id <= turn.name
        and j.group_id is not null and j.status in ('queued', 'started')
      order by j.group_id, j.id
      limit (
        select least(terms.per_turn - 1, greatest(limits.followers / greatest(count(*), 1),
          least(limits.followers, 9)))
        from turn)) n on head.is_head),
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
    for no key update of j skip locked),
  unbroken as (
    select n.place, n.id, n.bytes, count(*) over had as number, sum(n.bytes) over had as bytes_so_far
    from (
      select next.*, bool_and(next.id in (select locked.id from locked)) over (
        partition by next.place order by next.id) as is_locked
      from next) n
    where n.is_locked window had as (order by n.place, n.id))
  select array_agg(u.place order by u.place, u.id), array_agg(u.id order by u.place, u.id),
      coalesce(sum(u.bytes), 0)
    into places, ids, bytes
  from unbroken u where u.number <= limits.followers and u.bytes_so_far <= limits.bytes;
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
