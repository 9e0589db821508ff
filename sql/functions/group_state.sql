-- Returns the state of a group, its head and its numbers, up to 1,001 each. If several states
-- apply, the first counts: lapsed (the lease or visibility of its claim is over, and nobody has
-- taken it over), running, halted, paused, delayed (its head is not due), gated (its limit key has
-- no slot), ready, parked, idle. It uses plain reads, each by one index. It has no settings of its
-- own, so that a query can inline it.
--
-- `stopped_at` is the begin of the halt, or else of the pause, or the end of a claim that lapsed.
-- `reason` is that of the halt, or else of the pause. `blocked`: it is ready, and four looks in a
-- row, 0.3 s in all, found the head locked by another transaction; no claim or settle takes so
-- long.
create or replace function {schema}.group_state(of_queue text, of_group text) returns table (
  state text, head bigint, head_status text, head_name text, attempts integer, attempts_forgiven integer,
  max_attempts integer, enqueued_at timestamptz, due_at timestamptz, started_at timestamptz, depth bigint,
  parked bigint, stopped_at timestamptz, reason text, halted_by bigint, halted_until timestamptz,
  halt_then text, paused_at timestamptz, paused_until timestamptz, pause_reason text, blocked boolean,
  rested_by bigint, timeout_at timestamptz)
language sql stable as $$
  select case
      when g.lapsed then 'lapsed'
      when g.job_id is not null then 'running'
      when g.halted_at is not null then 'halted'
      when s.paused_at is not null then 'paused'
      when h.run_at > now() then 'delayed'
      when g.gated_by is not null and h.id is not null then 'gated'
      when h.id is not null then 'ready'
      when n.parked > 0 then 'parked'
      else 'idle' end,
    h.id, case when g.job_id is not null then 'started' else h.status::text end, h.name,
    h.attempts + (g.started_at is not null)::integer, h.attempts_forgiven, h.max_attempts, h.created_at,
    h.run_at, coalesce(g.started_at, h.last_started_at), n.depth, n.parked,
    coalesce(case when g.lapsed then g.ready_at end, g.halted_at, s.paused_at),
    case when g.halted_at is not null then g.halt_reason else s.pause_reason end,
    g.halt_job_id, g.halt_until, g.halt_then, s.paused_at, s.paused_until, s.pause_reason,
    g.job_id is null and g.halted_at is null and s.paused_at is null and h.run_at <= now()
      and coalesce(g.rechecks >= 4, false),
    s.rested_by,
    -- Receivers have no timeout.
    case when g.claimed_by is not null and not g.lapsed then g.started_at + make_interval(
      secs => coalesce(h.timeout_ms, {schema}.queue_timeout_ms(of_queue, g.claimed_by)) / 1000.0) end
  from (select
      (select count(*) from (select from {schema}.job j where j.queue = of_queue and j.group_id = of_group
        and j.status in ('queued', 'started') limit 1001) c) as depth,
      (select count(*) from (select from {schema}.job j where j.queue = of_queue and j.group_id = of_group
        and j.parked_with is not null and j.status = 'parked' limit 1001) c) as parked) n
  left join lateral (
    select g.job_id, g.batch, g.started_at, g.claimed_by, g.halted_at, g.halt_reason, g.halt_job_id,
      g.halt_until,
      g.halt_then, g.rechecks, g.ready_at, g.gated_by, g.job_id is not null and {lapsed_g} as lapsed
    from {schema}.queue_group g where g.queue = of_queue and g.group_id = of_group limit 1) g on true
  left join lateral (
    select s.paused_at, s.pause_reason, s.paused_until, s.rested_by from {schema}.group_setting s
    where s.queue = of_queue and s.group_id = of_group and {paused_s}) s on true
  left join lateral (
    -- Named, as an observer may not read what a job carries.
    select j.id, j.status, j.name, j.attempts, j.attempts_forgiven, j.max_attempts, j.created_at, j.run_at,
      j.last_started_at, j.timeout_ms
    from {schema}.job j where j.id = coalesce(
      -- The first of several under one claim that has not ended.
      (select min(u.id) from {schema}.unfinished(g.job_id, g.batch) u),
      (select l.id from {schema}.job l
        where l.queue = of_queue and l.group_id = of_group and l.status in ('queued', 'started')
        order by l.group_id, l.id limit 1))) h on true
$$;

-- Returns the job by which `group_overview` lists a group: 0 if it has a row in line, else its
-- lowest flagged job, which may have ended, else its lowest parked one; null if it has none of
-- these. A function of its own, as by the planner's estimate of these look-ups the whole view would
-- be compiled, for a second.
create or replace function {schema}.listed_by(of_queue text, of_group text) returns bigint
language plpgsql stable cost 1 as $$
begin
  return coalesce(
    (select 0 from {schema}.queue_group g where g.queue = of_queue and g.group_id = of_group limit 1),
    (select j.id from {schema}.job j
      where j.queue = of_queue and j.group_id = of_group and j.flagged
      order by j.queue, j.group_id, j.id limit 1),
    (select j.id from {schema}.job j
      where j.queue = of_queue and j.group_id = of_group and j.parked_with is not null and j.status = 'parked'
      order by j.queue, j.group_id, j.id limit 1));
end $$;
