-- The turns of groups, in steps: lock the rows, read the heads, start what may run, defer the rest.
-- Each step is a statement or more with a snapshot younger than the locks of the step before.

-- Locks the rows of up to `n` groups that are due by `until_at`, the one served least recently
-- first (P8), from `from_at` on; or one group's. `lapsed`: only those whose claim's lease ran out.
-- In the order of the one index that has only claimed groups, no plan reads a backlog for them.
--
-- `ready_ats` is since when each group was ready, with the aging of its head's priority; of a claim
-- that lapsed, since when it could be taken over. `owners` says whose that was, and is null for
-- free groups.
--
-- Locks: group rows NO KEY UPDATE, skips.
create or replace function {schema}.lock_turns(of_queue text, of_group text, n integer, from_at timestamptz,
  until_at timestamptz, lapsed boolean,
  out turns {schema}.locked_turns, out ready_ats timestamptz[], out owners text[])
language plpgsql volatile
as $$
begin
  if of_group is not null then
    select array_agg(g.group_id), array_agg(g.head_id), array_agg(g.job_id),
        array_agg(g.suspected), array_agg(g.line), max(g.ready_at), array_agg(g.aged_at), array_agg(g.owner)
      into turns.names, turns.heads, turns.jobs, turns.suspected, turns.lines, turns.last_at, ready_ats, owners
    from (select g.group_id, g.head_id, g.job_id, g.ready_at, g.ctid as line,
        g.ready_at - g.aging_priority * {priority_aging} as aged_at,
        case when g.job_id is not null then case when g.claimed_by is null then 'receiver' else 'worker' end end as owner,
        case when g.job_id is not null then g.strict is true or {schema}.is_suspected(g.suspect, g.claim, g.ready_at) end as suspected
      from {schema}.queue_group g
      where g.queue = any (array[of_queue]) and g.group_id between of_group and of_group
        and g.ready_at <= until_at and (g.job_id is not null or not lapsed)
      limit 1 for no key update skip locked) g;
  elsif lapsed then
    select array_agg(g.group_id), array_agg(g.head_id), array_agg(g.job_id),
        array_agg(g.suspected), array_agg(g.line), max(g.ready_at), array_agg(g.aged_at), array_agg(g.owner)
      into turns.names, turns.heads, turns.jobs, turns.suspected, turns.lines, turns.last_at, ready_ats, owners
    from (select g.group_id, g.head_id, g.job_id, g.ready_at, g.ctid as line,
        g.ready_at - g.aging_priority * {priority_aging} as aged_at,
        case when g.job_id is not null then case when g.claimed_by is null then 'receiver' else 'worker' end end as owner,
        g.strict is true or {schema}.is_suspected(g.suspect, g.claim, g.ready_at) as suspected
      from {schema}.queue_group g
      where g.queue = of_queue and g.job_id is not null and g.ready_at <= until_at
      order by g.claimed_by limit n for no key update skip locked) g;
  else
    select array_agg(g.group_id), array_agg(g.head_id), array_agg(g.job_id),
        array_agg(g.suspected), array_agg(g.line), max(g.ready_at), array_agg(g.aged_at), array_agg(g.owner)
      into turns.names, turns.heads, turns.jobs, turns.suspected, turns.lines, turns.last_at, ready_ats, owners
    from (select g.group_id, g.head_id, g.job_id, g.ready_at, g.ctid as line,
        g.ready_at - g.aging_priority * {priority_aging} as aged_at,
        case when g.job_id is not null then case when g.claimed_by is null then 'receiver' else 'worker' end end as owner,
        case when g.job_id is not null then g.strict is true or {schema}.is_suspected(g.suspect, g.claim, g.ready_at) end as suspected
      from {schema}.queue_group g
      where g.queue = of_queue and g.ready_at <= until_at and g.ready_at < 'infinity' and g.ready_at >= from_at
      order by g.ready_at limit n for no key update skip locked) g;
  end if;
end $$;

-- Reads the heads of locked groups, and locks those that are to be started, in the same order. The
-- head of a claim that lapsed is its first job that has not ended: it was due when it was claimed,
-- so it goes on, whether the group is paused or not.
--
-- What is found by id says `finished_at is null` for unfinished: the words of a partial index could
-- have that index read as a whole. It asks for the queue again: a move may have committed between
-- the snapshot and the lock. The head of a paused group is not locked, as an unpause must be
-- able to flag it.
--
-- Locks: job rows NO KEY UPDATE, skips.
create or replace function {schema}.read_heads(of_queue text, turns {schema}.locked_turns, default_attempts integer,
  ignore_before timestamptz) returns {schema}.turn_heads
language plpgsql volatile
as $$
declare
  heads {schema}.turn_heads;
begin
  select array_agg(j.id), array_agg(j.disposition), array_agg(j.fresh and turn.job_id is null), array_agg(j.bytes),
      count(j.id), coalesce(sum(j.bytes), 0)
    into heads.ids, heads.dispositions, heads.fresh, heads.bytes, heads.ready, heads.all_bytes
  from unnest(turns.names, turns.heads, turns.jobs, turns.suspected, turns.lines) turn(name, head_id, job_id, suspected, line)
  left join lateral (
    select h.id, 0 as lost from {schema}.head(of_queue, turn.name, turn.head_id, null) h where turn.job_id is null
    union all
    -- The attempt that is lost is counted by the start.
    select (select min(c.id) from {schema}.unfinished(g.job_id, g.batch) c), (g.started_at is not null)::integer
    from {schema}.queue_group g where turn.suspected and g.ctid = turn.line) head on true
  left join lateral (
    select j.id, {head_disposition} as disposition, j.attempts = j.attempts_forgiven as fresh, {job_bytes} as bytes
    from {schema}.job j
    where j.id = any (array[head.id]) and j.finished_at is null and j.queue = any (array[of_queue])
      and (turn.job_id is not null
        or least(j.run_at, j.expires_at) <= clock_timestamp()
          and (select s.group_id from {schema}.group_setting s
            where s.queue = of_queue and s.group_id = turn.name and {paused_s} limit 1) is null)
    limit 1 for no key update skip locked) j on true;
  return heads;
end $$;

-- Starts up to `slots` heads, and up to `per_turn` - 1 followers of each, `at_most` of all those.
-- Together they have at most `max_bytes` of data, or are one job. The others stay due.
--
-- The group's row names the jobs, which are locked and not written. Its commit is the attempt, and
-- comes before the handler (P9): a take-over of the claim counts it. The token is random, and
-- every later statement about the turn shows it (P10). Only a claim of a free row moves `head_id`.
--
-- Followers are next in order, due, and never begun, behind a head that was never begun. Such a job
-- loses nothing if its worker dies before it comes to run. One whose attempts are limited to 1
-- would, under a lease. One that expires is left to a claim of its own, which alone sees that it did. The first
-- that cannot be had ends the line. A `receiver` gives them out now: its followers may have been
-- begun before, and may expire; only a claim that it takes over comes alone. Not if its queue has
-- strict visibility, and the group is not paused: there the end of a visibility is no sign of
-- death.
--
-- `turn_ats` and `owners` are those of the locked turns, in their order. `ready_ats` and `lost_by`
-- are the same of the jobs, and null for followers.
--
-- Locks: followers NO KEY UPDATE, skips. The groups and heads are locked.
create or replace function {schema}.start_turns(of_queue text, turns {schema}.locked_turns, heads {schema}.turn_heads, slots integer,
  default_attempts integer, lease_seconds float8, own_lease boolean, processor bigint, ignore_before timestamptz,
  per_turn integer, at_most integer, max_bytes bigint, receiver boolean,
  turn_ats timestamptz[] default null, owners text[] default null,
  out jobs bigint[], out tokens uuid[], out dispositions text[], out size bigint,
  out ready_ats timestamptz[], out lost_by text[])
language plpgsql volatile
as $$
declare
  names text[]; ids bigint[]; words text[]; fresh boolean[]; bytes bigint[]; lines tid[]; batches text[];
  is_strict constant boolean := case when receiver then (select q.strict_visibility from {schema}.queue q where q.name = of_queue) end;
  each integer; claims integer; n integer; head_bytes bigint;
begin
  if heads.ready = cardinality(heads.ids) and heads.ready <= slots and heads.all_bytes <= max_bytes and per_turn = 1 then
    ids := heads.ids;
    words := heads.dispositions;
    lines := turns.lines;
    ready_ats := turn_ats;
    lost_by := owners;
    size := heads.all_bytes;
  else
    select array_agg(h.name), array_agg(h.id), array_agg(h.word), array_agg(h.followable), array_agg(h.bytes),
        array_agg(h.line), array_agg(h.ready_at), array_agg(h.owner), sum(h.bytes),
        least(per_turn - 1, greatest(at_most / greatest(count(*) filter (where h.followable), 1), least(at_most, 9)))
      into names, ids, words, fresh, bytes, lines, ready_ats, lost_by, head_bytes, each
    from (
      select t.*, t.word = 'run' and (t.fresh or receiver and (t.lapsed_job is null or is_strict is true and (
          select s.group_id from {schema}.group_setting s
          where s.queue = of_queue and s.group_id = t.name and {paused_s} limit 1) is null)) as followable,
        row_number() over (order by t.place) as nth,
        sum(t.bytes) over (order by t.place rows between unbounded preceding and 1 preceding) as before
      from unnest(turns.names, heads.ids, heads.dispositions, heads.fresh, heads.bytes, turns.lines, turns.jobs, turn_ats, owners)
        with ordinality t(name, id, word, fresh, bytes, line, lapsed_job, ready_at, owner, place)
      where t.id is not null) h
    where h.nth <= slots and coalesce(h.before < max_bytes, true);
  end if;
  if ids is null then
    size := 0;
    return;
  end if;
  size := coalesce(size, head_bytes);
  n := cardinality(ids);
  if each > 0 and at_most > 0 and true = any (fresh) then
    with turn as materialized (
      select t.* from unnest(names, ids, words, fresh, bytes) with ordinality t(name, id, word, fresh, bytes, place)),
    next as materialized (
      select turn.place, f.id, f.bytes from turn join lateral (
        select j.id, {job_bytes} as bytes from {schema}.job j
        where j.queue = of_queue and (j.group_id, j.id) > (turn.name, turn.id) and j.group_id <= turn.name
          and j.group_id is not null and j.status in ('queued', 'started')
        order by j.group_id, j.id limit each) f on turn.fresh),
    locked as materialized (
      select j.id from next join {schema}.job j on j.id = any (array[next.id])
      where j.finished_at is null and j.run_at <= clock_timestamp() and j.queue = any (array[of_queue])
        and (j.expires_at is null or receiver and j.expires_at > clock_timestamp())
        and coalesce(j.created_at >= ignore_before, true)
        and (j.attempts = j.attempts_forgiven or receiver and j.attempts - j.attempts_forgiven < coalesce(j.max_attempts, default_attempts))
        and coalesce(j.max_attempts, default_attempts) > 1
        and (j.lease_ms is null or not own_lease)
      for no key update of j skip locked),
    line as (
      select m.*, min(m.id) filter (where not m.ours) over (partition by m.place) as gap
      from (
        select turn.place, turn.id, turn.word, turn.bytes, true as first, true as ours from turn
        union all
        select next.place, next.id, 'run', next.bytes, false, (next.id in (select locked.id from locked)) is true from next) m),
    within as (
      select l.*, count(*) filter (where not l.first) over w as behind,
        sum(l.bytes) filter (where not l.first) over w as bytes_behind
      from line l where coalesce(l.id < l.gap, true) window w as (order by l.place, l.id)),
    ours as (
      select i.place, i.id, i.word, i.bytes, i.first, array_agg(i.id) over (partition by i.place order by i.id
        rows between unbounded preceding and unbounded following) as batch
      from within i where i.first or i.behind <= at_most and i.bytes_behind <= max_bytes - head_bytes)
    select array_agg(o.id), array_agg(o.word), array_agg(case when o.first then lines[o.place] end),
        array_agg(case when o.first and cardinality(o.batch) > 1 then o.batch::text end),
        array_agg(case when o.first then ready_ats[o.place] end), array_agg(case when o.first then lost_by[o.place] end), sum(o.bytes)
      into ids, words, lines, batches, ready_ats, lost_by, size from (select ours.* from ours order by ours.place, ours.id) o;
  end if;
  if true = any (turns.suspected) then
    perform {schema}.lose_attempts(ids, words, lines);
  end if;
  if receiver then
    -- A receiver may have the job for hours, and the next receive would read the flag.
    update {schema}.job j set flagged = false where j.id = any (ids) and coalesce(j.flagged, false);
  end if;
  with turn as materialized (
    select t.*, case when t.line is not null then gen_random_uuid() end as token
    from unnest(ids, words, lines, batches) t(id, disposition, line, batch)),
  named as (
    update {schema}.queue_group g set
      claim = turn.token, job_id = turn.id, batch = turn.batch::bigint[],
      head_id = case when g.claim is null then turn.id else g.head_id end,
      started_at = case when turn.disposition = 'run' then clock_timestamp() end,
      suspect = null, claimed_by = processor, aging_priority = 0, rechecks = 0, strict = is_strict,
      ready_at = clock_timestamp() + make_interval(secs => coalesce(
        case when own_lease then (select j.lease_ms / 1000.0 from {schema}.job j where j.id = turn.id) end, lease_seconds))
    from turn where g.ctid = turn.line
    returning 1)
  select (select array_agg(turn.token) from turn), (select count(*) from named) into tokens, claims;
  if claims < n then
    raise 'the rows of groups are not as this claim has locked them' using errcode = 'no_data_found';
  end if;
  jobs := ids;
  dispositions := words;
end $$;

-- Counts the attempts of claims that lapsed and are now taken over. The attempt of the first job of
-- each that has not ended is lost. If that was its last one, the settle that follows says so in its
-- history. A receiver had begun the others as well: nothing is held against those.
create or replace function {schema}.lose_attempts(heads bigint[], dispositions text[], lines tid[]) returns void
language plpgsql volatile
as $$
begin
  update {schema}.job j set
    attempts = j.attempts + 1, last_started_at = lapsed.started_at,
    attempts_forgiven = j.attempts_forgiven + (j.id <> lapsed.head)::integer,
    history = case
      when j.id <> lapsed.head then {schema}.history_with(j.history, j.attempts + 1, lapsed.started_at, 'released', null)
      when lapsed.disposition <> 'exhausted'
        then {schema}.history_with(j.history, j.attempts + 1, lapsed.started_at, 'worker_lost', {lost})
      else j.history end
  from (
    select c.id, t.head, t.disposition, g.started_at
    from unnest(heads, dispositions, lines) t(head, disposition, line)
    join {schema}.queue_group g on g.ctid = t.line
    cross join lateral {schema}.unfinished(g.job_id, g.batch) c
    where g.started_at is not null and (c.id = t.head or g.claimed_by is null)) lapsed
  where j.id = any (array[lapsed.id]) and j.finished_at is null;
end $$;

-- Puts off the turns whose heads are null: suspects a claim that lapsed, lets a group sleep until
-- its head is due, or rest until its pause ends, frees one whose job is gone, retires one that has
-- no job. If another transaction has the head, the next look is 20 ms later, and twice as long each
-- time, up to 1.3 s. While there are so many that the looks come late, it is eight times as long, up to
-- 41 s: or looks that start nothing would be in front of first turns. A flag that the row stands for goes,
-- but not that of a sleeping head: it may have been set since the head was read, to wake the group.
--
-- A take-over needs two looks a grace apart: the handler may still be stopping. It never retires
-- its group: a job enqueued beside it would be lost (P3). Without `may_retire` a row stays for the
-- next claim: this transaction may have written it.
--
-- Locks: settings of paused groups SHARE, rows that are to be retired FOR UPDATE, skips; as `clear_flags_from`.
create or replace function {schema}.defer_turns(of_queue text, turns {schema}.locked_turns, heads {schema}.turn_heads,
  may_retire boolean) returns void
language plpgsql volatile
as $$
declare
  names text[]; lines tid[]; plans text[]; ids bigint[]; due_ats timestamptz[]; priorities smallint[];
  resting text[]; rest_until timestamptz[]; still text[]; still_from bigint[]; drained tid[]; many boolean;
begin
  select count(*) filter (where d.plan = 'recheck') >= 64, array_agg(d.name), array_agg(d.line), array_agg(d.plan), array_agg(d.id), array_agg(d.due_at), array_agg(d.priority),
      array_agg(d.name) filter (where d.plan = 'rest'), array_agg(d.name) filter (where d.plan in ('sleep', 'rest')),
      array_agg(d.id + (d.plan = 'sleep')::integer) filter (where d.plan in ('sleep', 'rest')),
      array_agg(d.line) filter (where d.plan = 'retire')
    into many, names, lines, plans, ids, due_ats, priorities, resting, still, still_from, drained
  from (
    select turn.name, turn.line, head.id, j.due_at, j.priority, case
      when turn.job_id is not null and not turn.suspected then 'suspect'
      when turn.job_id is not null then case when (
          select c.id from {schema}.queue_group g cross join lateral {schema}.unfinished(g.job_id, g.batch) c
          where g.ctid = turn.line limit 1) is null then 'free' else 'recheck' end
      when head.id is null then 'retire'
      when j.paused then 'rest'
      when j.due_at > clock_timestamp() then 'sleep'
      else 'recheck' end as plan
    from unnest(turns.names, turns.heads, turns.jobs, turns.suspected, turns.lines, heads.ids)
      turn(name, head_id, job_id, suspected, line, head)
    left join lateral (
      select h.id from {schema}.head(of_queue, turn.name, turn.head_id, null) h where turn.job_id is null) head on true
    left join lateral (
      select least(j.run_at, j.expires_at) as due_at, j.priority::smallint,
        (select s.group_id from {schema}.group_setting s
          where s.queue = of_queue and s.group_id = turn.name and {paused_s} limit 1) is not null as paused
      from {schema}.job j where j.id = any (array[head.id])) j on true
    where turn.head is null) d;
  if resting is not null then
    -- A change of a pause waits for this lock, so its flag comes after the rest is written. A pause
    -- with an end needs none: the row is due then.
    select array_agg(s.group_id), array_agg(coalesce(s.paused_until, 'infinity')) into resting, rest_until
    from (select s.group_id, s.paused_until from {schema}.group_setting s
      where s.queue = of_queue and s.group_id = any (resting) and {paused_s}
      for share skip locked) s;
  end if;
  update {schema}.queue_group g set
    ready_at = case d.plan
      when 'sleep' then d.due_at
      when 'suspect' then {schema}.suspect_until(g.suspect, g.claim)
      when 'free' then clock_timestamp()
      when 'rest' then coalesce(rest_until[array_position(resting, d.name)], clock_timestamp() + {retry_soon})
      when 'retire' then clock_timestamp() + {retry_soon}
      else clock_timestamp() + {retry_soon} * 2 ^ g.rechecks end,
    head_id = case when d.plan in ('sleep', 'rest') then d.id else g.head_id end,
    aging_priority = case when d.plan in ('sleep', 'recheck') then coalesce(d.priority, 0) else 0 end,
    rechecks = case when d.plan <> 'recheck' then 0
      when many and g.rechecks > 0 and g.ready_at < clock_timestamp() - interval '0.2 s'
        then least(g.rechecks + 3, 11)
      when g.rechecks > 6 then g.rechecks - 1
      else least(g.rechecks + 1, 6) end,
    -- Put off, a strict claim is over all the same.
    suspect = case when d.plan in ('suspect', 'recheck') then g.claim when d.plan = 'free' then null else g.suspect end,
    claim = case when d.plan <> 'free' then g.claim end,
    job_id = case when d.plan <> 'free' then g.job_id end,
    claimed_by = case when d.plan <> 'free' then g.claimed_by end,
    started_at = case when d.plan <> 'free' then g.started_at end,
    batch = case when d.plan <> 'free' then g.batch end
  from unnest(names, lines, plans, ids, due_ats, priorities) d(name, line, plan, id, due_at, priority)
  where g.ctid = d.line and not (d.plan = 'retire' and may_retire);
  if still is not null then
    perform {schema}.clear_flags_from(of_queue, still, still_from);
  end if;
  if drained is not null and may_retire then
    -- The lock fails while an adopter shares the row.
    perform {schema}.retire(array(
      select g.ctid from {schema}.queue_group g
      where g.ctid = any (drained) and g.claim is null and g.halted_at is null
      for update skip locked));
    update {schema}.queue_group g set ready_at = clock_timestamp() + {retry_soon} where g.ctid = any (drained);
  end if;
end $$;

-- Deletes rows of groups that have no unfinished job, and returns whether it deleted all. This
-- transaction has locked them FOR UPDATE, and has not written them before: a share lock would wait
-- for a version that it wrote and deleted. The delete decides in a statement of its own: by a
-- snapshot that an adopter's commit has overtaken, it would strand a job (P3).
create or replace function {schema}.retire(lines tid[]) returns boolean
language plpgsql volatile
as $$
declare
  deleted integer;
begin
  delete from {schema}.queue_group g
  where g.ctid = any (lines) and g.halted_at is null
    and (select j.id from {schema}.job j
      where j.queue = g.queue and j.group_id = g.group_id and j.status in ('queued', 'started') limit 1) is null;
  get diagnostics deleted = row_count;
  return deleted = cardinality(lines);
end $$;
