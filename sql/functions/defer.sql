-- The claim's step *defer*: turns that start nothing.

-- Puts turns off: suspects a claim that lapsed, lets a group sleep until its head is due, rest
-- until its pause ends, or be gated until its limit key has a slot (`wake_gated`); frees one whose
-- job is gone, retires one that has no job. One that was
-- adopted, and might have started, is in line now. If another transaction has the head, the next
-- look is 20 ms later, and twice as long each time, up to 1.3 s. While there are so many that the
-- looks come late, it is eight times as long, up to 41 s: or looks that start nothing would be in
-- front of first turns. A flag that the row stands for goes, but not that of a sleeping head: it
-- may have been set since the head was read, to wake the group.
--
-- A row without a job stays until the spacing of its group is over: it remembers the last start.
--
-- A take-over needs two looks a grace apart: the handler may still be stopping. It never retires
-- its group: a job enqueued beside it would be lost (P3). Without `may_retire` a row stays for the
-- next claim: this transaction may have written it.
--
-- Locks: settings of paused groups SHARE, rows that are to be retired FOR UPDATE, skips; as
-- `clear_flags_from`.
create or replace function {schema}.defer_turns(terms {schema}.claim_terms, turns {schema}.turn[])
returns void
language plpgsql volatile as $$
declare
  deferred {schema}.deferred_turn[]; paused text[]; ends timestamptz[]; many boolean; drained tid[];
  freed text[];
begin
  select array_agg(row(turn.name, turn.line, turn.head_id, turn.ready_at, turn.plan, turn.head, turn.due_at,
      turn.priority, turn.limit_key)::{schema}.deferred_turn),
    array_agg(turn.name) filter (where turn.plan = 'rest'),
    array_agg(turn.line) filter (where turn.plan = 'retire'),
    count(*) filter (where turn.plan = 'recheck') >= 64,
    -- A group that is still in line keeps its slot, and so does a claim.
    array_agg(turn.held_key) filter (where turn.held_key is not null
      and (turn.plan = 'free' or turn.plan <> 'line' and turn.lapsed_job is null))
    into deferred, paused, drained, many, freed
  from (
    select turn.name, turn.line, turn.head_id, turn.ready_at, head.id as head, j.priority,
      case when turn.gated then j.expires_at else greatest(j.due_at, turn.spaced_until) end as due_at,
      j.limit_key, turn.held_key, turn.lapsed_job, case
      when turn.job is not null then 'line'
      when turn.lapsed_job is not null and not turn.suspected then 'suspect'
      when turn.lapsed_job is not null then case when (
          select c.id from {schema}.queue_group g cross join lateral {schema}.unfinished(g.job_id, g.batch) c
          where g.ctid = turn.line limit 1) is null then 'free' else 'recheck' end
      when head.id is null and turn.spaced_until > clock_timestamp() then 'spaced'
      -- This transaction may have woken it, and so have written its row.
      when head.id is null and turn.held_key is not null then 'later'
      when head.id is null then 'retire'
      -- A late commit may have become the head.
      when turn.gated then case when j.limit_key = turn.limit_key then 'gate' else 'later' end
      when j.paused then 'rest'
      when greatest(j.due_at, turn.spaced_until) > clock_timestamp() then 'sleep'
      else 'recheck' end as plan
    from unnest(turns) turn
    left join lateral (
      select h.id from {schema}.head(terms.queue, turn.name, turn.head_id, null) h
      where turn.job is null and turn.lapsed_job is null) head on true
    left join lateral (
      select least(j.run_at, j.expires_at) as due_at, j.expires_at, j.limit_key, j.priority::smallint,
        (select s.group_id from {schema}.group_setting s
          where s.queue = terms.queue and s.group_id = turn.name and {paused_s} limit 1) is not null as paused
      from {schema}.job j where j.id = any (array[head.id])) j on true
    where turn.job is null or turn.flags is not null) turn;
  if freed is not null then
    perform {schema}.free_slots(array_fill(terms.queue, array[cardinality(freed)]), freed, false);
  end if;
  if paused is not null then
    -- A change of a pause waits for this lock, so its flag comes after the rest is written. A pause
    -- with an end needs none: the row is due then.
    select array_agg(s.group_id), array_agg(coalesce(s.paused_until, 'infinity')) into paused, ends
    from (select s.group_id, s.paused_until from {schema}.group_setting s
      where s.queue = terms.queue and s.group_id = any (paused) and {paused_s}
      for share skip locked) s;
  end if;
  with deferred as materialized (
    select t.*, case t.plan
        when 'line' then t.ready_at
        when 'sleep' then t.due_at
        when 'spaced' then t.due_at
        when 'free' then clock_timestamp()
        when 'later' then clock_timestamp()
        when 'gate' then coalesce(t.due_at, 'infinity')
        when 'rest' then coalesce(ends[array_position(paused, t.name)], clock_timestamp() + {retry_soon})
        when 'retire' then clock_timestamp() + {retry_soon} end as next_at,
      case when t.plan in ('sleep', 'rest', 'gate') then t.head else t.head_id end as next_id,
      case when t.plan in ('sleep', 'recheck') then coalesce(t.priority, 0) else 0 end as aging,
      case when t.plan = 'gate' then t.limit_key end as gate,
      case when t.plan = 'gate' then t.ready_at end as gated_at
    from unnest(deferred) t),
  new as (
    insert into {schema}.queue_group (queue, group_id, ready_at, head_id, aging_priority, rechecks,
      gated_by, gated_at)
    select terms.queue, t.name, coalesce(t.next_at, clock_timestamp() + {retry_soon}), t.next_id, t.aging,
      (t.plan = 'recheck')::integer, t.gate, t.gated_at
    from deferred t where t.line is null and t.plan <> 'retire')
  update {schema}.queue_group g set
    ready_at = coalesce(t.next_at, case
      when t.plan = 'suspect' then {schema}.suspect_until(g.suspect, g.claim)
      else clock_timestamp() + {retry_soon} * 2 ^ g.rechecks end),
    head_id = t.next_id,
    aging_priority = t.aging,
    gated_by = t.gate,
    gated_at = t.gated_at,
    limit_key = case when g.claim is not null and t.plan <> 'free' or t.plan = 'line' then g.limit_key end,
    rechecks = case when t.plan <> 'recheck' then 0
      when many and g.rechecks > 0 and g.ready_at < clock_timestamp() - interval '0.2 s'
        then least(g.rechecks + 3, 11)
      when g.rechecks > 6 then g.rechecks - 1
      else least(g.rechecks + 1, 6) end,
    -- Put off, a strict claim is over all the same.
    suspect = case when t.plan in ('suspect', 'recheck') then g.claim
      when t.plan <> 'free' then g.suspect end,
    claim = case when t.plan <> 'free' then g.claim end,
    job_id = case when t.plan <> 'free' then g.job_id end,
    claimed_by = case when t.plan <> 'free' then g.claimed_by end,
    started_at = case when t.plan <> 'free' then g.started_at end,
    batch = case when t.plan <> 'free' then g.batch end
  from deferred t
  where g.ctid = t.line and not (t.plan = 'retire' and terms.may_retire);
  perform {schema}.clear_flags_from(terms.queue, array_agg(t.name),
    array_agg(t.head + (t.plan = 'sleep')::integer))
  from unnest(deferred) t where t.plan in ('sleep', 'rest', 'gate') having count(*) > 0;
  if drained is not null and terms.may_retire then
    -- The lock fails while an adopter shares the row.
    perform {schema}.retire(array(
      select g.ctid from {schema}.queue_group g
      where g.ctid = any (drained) and g.claim is null and g.halted_at is null
      for update skip locked));
    update {schema}.queue_group g set ready_at = clock_timestamp() + {retry_soon}
    where g.ctid = any (drained);
  end if;
end $$;

-- Deletes rows of groups that have no unfinished job, and returns whether it deleted all. This
-- transaction has locked them FOR UPDATE, and has not written them before: a share lock would wait
-- for a version that it wrote and deleted. The delete decides in a statement of its own: by a
-- snapshot that an adopter's commit has overtaken, it would strand a job (P3).
create or replace function {schema}.retire(lines tid[]) returns boolean
language plpgsql volatile as $$
declare
  deleted integer;
begin
  delete from {schema}.queue_group g
  where g.ctid = any (lines) and g.halted_at is null
    and (select j.id from {schema}.job j
      where j.queue = g.queue and j.group_id = g.group_id and j.status in ('queued', 'started')
      limit 1) is null;
  get diagnostics deleted = row_count;
  return deleted = cardinality(lines);
end $$;
