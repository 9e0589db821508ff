-- Explain: why a job or a group is where it is. By plain reads: it locks nothing, waits for
-- nothing, and counts nothing beyond 10,001.

-- Returns a session's query as it may be shown: the library's own literals are left out, as a
-- success's result is one, and its holds as a whole, as they show the claim's token. Null: the role
-- may not see it.
create or replace function shown_query(query text) returns text
language sql immutable
as $$
  select case
    when query = '<insufficient privilege>' then null
    when query ~ 'hold_job' then '(the hold of the job, by the library)'
    when strpos(query, 'convert_from(decode(''') > 0 then split_part(query, 'convert_from(decode(''', 1) || '…'
    else nullif(query, '') end
$$;

-- Explains a job; or a group, by the job of it that runs or is next. Null: there is no such job.
--
-- Words of `reason`: running, claimed, suspected, lapsed, locked, behind, not_due, halted, parking,
-- group_paused, queue_paused, at_limit, waits_for_turn, not_adopted, stranded, expired,
-- dead_letter, parked, ended, nothing. A halt comes before a claim, and a claim before a wait; of
-- waits, the strongest. A dead letter is one only where no processor serves its dead-letter queue.
create or replace function explain_subject(of_queue text, of_group text, of_job bigint) returns explanation
language plpgsql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  e explanation; f record; s record; claimed boolean; lease_end timestamptz; hold text; word text; own text; waits_on text; unserved text[];
begin
  -- Everything in one statement, so in one snapshot. Each probe reads by an index.
  select clock_timestamp() as now, k.queue, k.group_id, k.job_id,
      job_state(j.status, j.queue, j.group_id, j.id)::text as status, j.finished_at, j.error->>'message' as error, j.parked_with,
      j.attempts + (named.started_at is not null)::integer as job_attempts, j.attempts_forgiven as job_forgiven,
      j.max_attempts as job_max, coalesce(named.started_at, j.last_started_at) as job_started_at, j.timeout_ms as job_timeout_ms, j.run_at as job_run_at,
      -- One that a receiver looked at, whose visibility is over, counts as well.
      case when j.status::text in ('queued', 'started') then j.moved_from end as dead_letter_of,
      (select j.moved_from from job j where j.id = h.id) as head_dead_letter_of,
      h.id as head, job_state(h.status, h.queue, h.group_id, h.id)::text as head_status, h.attempts + (g.started_at is not null)::integer as attempts,
      h.attempts_forgiven, h.max_attempts, h.run_at, coalesce(g.started_at, h.last_started_at) as last_started_at, h.expires_at, h.error->>'message' as head_error, h.flagged, h.timeout_ms,
      coalesce(h.suspect = h.claim, false) as head_suspected, h.lease_until,
      g.queue is not null as has_row, nullif(g.ready_at, 'infinity') as ready_at, g.job_id as claimed_job,
      coalesce(g.suspect = g.claim, false) as suspected, g.halted_at, g.halt_reason, g.halt_job_id, g.halt_until,
      g.park_to is not null as parking,
      case when {paused_q} then q.paused_at end as queue_paused_at, q.pause_reason as queue_reason, q.paused_until as queue_until,
      case when {paused_s} then s.paused_at end as group_paused_at, s.pause_reason as group_reason, s.paused_until as group_until,
      q.in_flight_limit, p.id as processor, p.node, p.host, p.pid, p.queues, p.started_at, p.seen_at,
      (select o.alive from processors() o where o.id = p.id) as alive,
      case when k.group_id is null then h.xmax::text else g.xmax::text end as locked_by, h.xmax::text as head_locked_by,
      -- The queue's settings, or else what processors say of its jobs.
      coalesce(q.max_attempts, p.max_attempts[array_position(p.queues, k.queue)],
        (select max(o.max_attempts[array_position(o.queues, k.queue)]) from processor o where k.queue = any (o.queues)))
        as queue_attempts,
      coalesce(p.timeouts_ms[array_position(p.queues, k.queue)],
        (select max(o.timeouts_ms[array_position(o.queues, k.queue)]) from processor o where k.queue = any (o.queues)))
        as queue_timeout_ms,
      (select min(r.requested_at) from cancel_request r where r.job_id = j.id) as job_cancel,
      (select min(r.requested_at) from cancel_request r where r.job_id = h.id) as head_cancel,
      (select case when not bool_or(o.queues is null or k.queue = any (o.queues)) is true
          then array(select distinct u.name from processors() o, unnest(o.queues) u(name)
            where o.alive order by u.name limit 20) end
        from processors() o where o.alive) as served,
      -- Each job of a batch counts, as it does for the limit.
      (select coalesce(sum(n.jobs), 0)::bigint from (
          select {claimed_count_g} as jobs from queue_group g where g.queue = k.queue and g.job_id is not null limit {count_limit}) n)
        + (select count(*) from (
          select from job n where n.queue = k.queue and n.group_id is null and n.status = 'started' limit {count_limit}) n) as in_flight,
      (select count(*) from (select from queue_group n
          where n.queue = k.queue and n.ready_at <= now() and n.ready_at < 'infinity' and n.job_id is null
            and n.ready_at < g.ready_at limit {count_limit}) n)
        + (select count(*) from (select from job n
          where n.queue = k.queue and n.group_id is null and n.status = 'queued' and k.group_id is null
            and n.turn_at <= now() and (n.turn_at, n.id) < (h.turn_at, h.id) limit {count_limit}) n) as before,
      (select count(*) from (select from job n
        where n.queue = k.queue and (n.group_id, n.id) > (k.group_id, coalesce(j.id, h.id, 0)) and n.group_id <= k.group_id
          and n.group_id is not null and n.status in ('queued', 'started') limit {count_limit}) n) as behind,
      (select count(*) from (select from job n
        where n.queue = k.queue and n.group_id = k.group_id and n.parked_with is not null and n.status = 'parked'
        limit {count_limit}) n) as parked,
      (select min(n.finished_at) from (select n.finished_at from job n
        where n.queue = k.queue and n.group_id = k.group_id and n.parked_with is not null and n.status = 'failed'
        order by n.group_id, n.id limit 100) n) as parked_since
    into f
  from (
      select j.queue, j.group_id, j.id as job_id from job j where j.id = of_job
      union all
      select of_queue, of_group, null::bigint where of_job is null) k
    left join job j on j.id = k.job_id
    left join queue_group g on g.queue = k.queue and g.group_id = k.group_id
    left join job h on h.id = case when k.group_id is null then k.job_id else coalesce(
      -- Of several under one claim, the first that has not ended.
      (select min(u.id) from unfinished(g.job_id, g.batch) u where g.job_id is not null), g.job_id,
      (select l.id from job l
        where l.queue = k.queue and l.group_id >= k.group_id and l.group_id <= k.group_id
          and l.group_id is not null and l.status in ('queued', 'started')
        order by l.group_id, l.id limit 1)) end
    left join lateral claim_of(k.queue, k.group_id, j.id) named on j.finished_at is null
    left join queue q on q.name = k.queue
    left join group_setting s on s.queue = k.queue and s.group_id = k.group_id
    left join processor p on p.id = coalesce(g.claimed_by, h.claimed_by);
  if not found then
    return null;
  end if;
  claimed := case when f.has_row then f.claimed_job is not null
    else f.group_id is null and coalesce(f.head_status = 'started', false) end;
  -- Of a claim, the session that has the hold. Of a job that waits, one that holds it up.
  select a.pid, nullif(a.application_name, '') as application, a.state, shown_query(a.query) as query, a.query_start, pg_catalog.host(a.client_addr) as address,
      a.backend_start, a.xact_start, pg_catalog.pg_blocking_pids(a.pid) as blocked_by
    into s
  from pg_catalog.pg_stat_activity a
  where a.pid = coalesce(
    case when f.locked_by <> '0' then locker(f.locked_by, case when f.group_id is null then 'job' else 'queue_group' end) end,
    case when f.group_id is not null and not claimed and f.head_locked_by <> '0' then locker(f.head_locked_by, 'job') end);
  lease_end := coalesce(case when f.has_row then f.ready_at else f.lease_until end, f.now);
  -- Of a claim.
  hold := case when s.pid is not null then 'running' when lease_end <= f.now then 'lapsed'
    when case when f.has_row then f.suspected else f.head_suspected end then 'suspected' else 'claimed' end;
  word := case
    when f.halted_at is not null and f.parking then 'parking'
    when f.halted_at is not null then 'halted'
    when f.head is null then 'nothing'
    when claimed then hold
    when f.queue_paused_at is not null then 'queue_paused'
    when f.group_paused_at is not null then 'group_paused'
    when f.expires_at <= f.now then 'expired'
    when f.run_at > f.now then 'not_due'
    when f.in_flight >= f.in_flight_limit then 'at_limit'
    -- Shorter ones are claims and other statements of the library.
    when s.xact_start <= f.now - interval '1 s' then 'locked'
    -- A session that this role may not see: since when is unknown.
    when s.pid is not null and s.backend_start is null then 'locked'
    when f.group_id is not null and not f.has_row then case when f.flagged then 'not_adopted' else 'stranded' end
    else 'waits_for_turn' end;
  if f.served is not null and not receivers_serve(f.queue) then
    unserved := f.served;
  end if;
  -- A look into a dead-letter queue is a receive: it makes no server of a receiver.
  if f.served is not null and f.head_dead_letter_of is not null
    and word in ('waits_for_turn', 'not_adopted', 'stranded', 'not_due', 'lapsed')
  then
    word := 'dead_letter';
  end if;
  own := case
    when f.job_id is null then word
    when f.status in ('succeeded', 'failed', 'cancelled') then 'ended'
    when f.status = 'parked' then 'parked'
    -- One of several jobs that were received together: their receiver may work on any. (No
    -- processor is named then; the jobs of a processor's turn run one after the other.)
    when f.status = 'started' and f.head <> f.job_id and claimed and f.processor is null then hold
    -- What is before it in its dead-letter queue does not keep it from a redrive.
    when f.head <> f.job_id and f.served is not null and f.dead_letter_of is not null
      and word in ('dead_letter', 'waits_for_turn', 'not_adopted', 'stranded', 'expired', 'not_due', 'lapsed') then 'dead_letter'
    when f.head <> f.job_id then 'behind'
    else word end;
  waits_on := case when own = 'behind' then word else own end;
  e.job := f.job_id;
  e.queue := f.queue;
  e.group_id := f.group_id;
  e.status := f.status;
  e.head := f.head;
  e.reason := own;
  e.head_reason := case when own = 'behind' then word end;
  if waits_on in ('running', 'claimed', 'suspected', 'lapsed') and own <> 'behind' and f.job_id is not null then
    e.since := f.job_started_at;
    e.attempt := f.job_attempts;
    e.attempts_forgiven := f.job_forgiven;
    e.attempt_limit := coalesce(f.job_max, f.queue_attempts);
    e.timeout_at := f.job_started_at + make_interval(secs => coalesce(f.job_timeout_ms, f.queue_timeout_ms) / 1000.0);
  else
    e.since := f.last_started_at;
    e.attempt := f.attempts;
    e.attempts_forgiven := f.attempts_forgiven;
    e.attempt_limit := coalesce(f.max_attempts, f.queue_attempts);
    e.timeout_at := f.last_started_at + make_interval(secs => coalesce(f.timeout_ms, f.queue_timeout_ms) / 1000.0);
  end if;
  -- Receivers have no timeout.
  if f.processor is null or waits_on not in ('running', 'claimed') then
    e.timeout_at := null;
  end if;
  case waits_on
    when 'running' then
      e.since := coalesce(e.since, f.now);
    when 'claimed', 'suspected' then
      e.since := coalesce(e.since, f.now);
      e.until := lease_end;
    when 'lapsed' then
      e.since := lease_end;
    when 'halted', 'parking' then
      e.since := f.halted_at;
      e.until := f.halt_until;
      e.detail := f.halt_reason;
      e.by_job := f.halt_job_id;
    when 'queue_paused' then
      e.since := f.queue_paused_at;
      e.until := f.queue_until;
      e.detail := f.queue_reason;
    when 'group_paused' then
      e.since := f.group_paused_at;
      e.until := f.group_until;
      e.detail := f.group_reason;
    when 'expired' then
      e.since := f.expires_at;
    when 'not_due' then
      e.since := null;
      e.until := f.run_at;
      e.detail := case when f.attempts > 0 then f.head_error end;
    when 'locked' then
      e.since := s.xact_start;
    when 'at_limit', 'not_adopted', 'stranded' then
      e.since := f.run_at;
    when 'dead_letter' then
      if own = 'dead_letter' and f.job_id is not null then
        e.since := f.job_run_at;
        e.detail := f.dead_letter_of;
      else
        e.since := f.run_at;
        e.detail := f.head_dead_letter_of;
      end if;
    when 'waits_for_turn' then
      e.since := greatest(f.run_at, f.ready_at);
    when 'parked' then
      e.since := null;
      e.by_job := f.parked_with;
    when 'ended' then
      e.since := f.finished_at;
      e.detail := case when f.status <> 'succeeded' then f.error end;
      e.has_parked := f.parked_with is not null and f.parked_with = f.job_id;
    else
      e.since := null;
  end case;
  e.behind := f.behind;
  e.before := f.before;
  e.in_flight := f.in_flight;
  e.in_flight_limit := f.in_flight_limit;
  e.cancel_requested_at := case when f.job_id is null then f.head_cancel when own <> 'ended' then f.job_cancel end;
  -- That nobody serves the queue is told of jobs that wait for a worker, or whose worker is gone.
  if waits_on in ('waits_for_turn', 'not_adopted', 'stranded', 'lapsed', 'expired')
    or waits_on in ('claimed', 'suspected') and not f.alive
    or own = 'behind' and word = 'dead_letter'
  then
    e.unserved := unserved;
  end if;
  e.queue_paused := f.queue_paused_at is not null;
  e.parked := f.parked;
  e.parked_since := f.parked_since;
  e.processor := f.processor;
  e.node := f.node;
  e.host := f.host;
  e.process_id := f.pid;
  e.alive := f.alive;
  e.serves := f.queues;
  e.started_at := f.started_at;
  e.seen_at := f.seen_at;
  e.session := s.pid;
  e.application := s.application;
  e.session_state := s.state;
  e.session_query := s.query;
  e.query_began := s.query_start;
  e.client_address := s.address;
  e.session_began := s.backend_start;
  e.transaction_began := s.xact_start;
  e.blocked_by := s.blocked_by;
  e.asked_at := f.now;
  return e;
end $$;

-- Explains why a job is where it is. No row: there is no such job.
create or replace function explain(job bigint) returns setof explanation
language sql volatile
set search_path from current
as $$
  select e.* from explain_subject(null, null, explain.job) e where e.queue is not null
$$;

-- Explains why a group is where it is, by the job of it that runs or is next.
create or replace function explain_group(queue text, group_id text) returns setof explanation
language sql volatile
set search_path from current
as $$
  select e.* from explain_subject(explain_group.queue, explain_group.group_id, null) e
$$;
