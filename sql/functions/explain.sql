-- Explain: why a job or a group is where it is. By plain reads: it locks nothing, waits for
-- nothing, and counts nothing beyond 10,001.

-- Returns a session's query as it may be shown. The library's literals are left out, because the
-- result of a success is one. Its holds are left out as a whole, because they show the claim's
-- token. Null: the role may not see the query.
create or replace function shown_query(query text) returns text
language sql immutable as $$
  select case
    when query = '<insufficient privilege>' then null
    when query ~ 'hold_job' then '(the hold of the job, by the library)'
    when strpos(query, 'convert_from(decode(''') > 0
      then split_part(query, 'convert_from(decode(''', 1) || '…'
    else nullif(query, '') end
$$;

-- Reads what there is to know of a job; or of a group, by the job of it that runs or is next
-- (`head`). No row: there is no such job. A session: of a claim, the one that has the hold; of a
-- job that waits, one that holds it up. All in one statement, so in one snapshot. Each probe reads
-- by an index.
create or replace function subject_facts(of_queue text, of_group text, of_job bigint) returns record
language sql volatile set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_mergejoin = off set enable_hashjoin = off set jit = off set plan_cache_mode = force_generic_plan
as $$
  with facts as materialized (
    select clock_timestamp() as asked_at, k.queue, k.group_id, k.job_id as job,
      job_state(j.status, j.queue, j.group_id, j.id)::text as status, j.finished_at,
      j.error->>'message' as error, j.batch_id as batch, j.replaced, j.replaced_at, j.parked_with,
      j.run_at as job_run_at,
      j.max_attempts as job_max_attempts,
      j.attempts + (named.started_at is not null)::integer as job_attempts,
      j.attempts_forgiven as job_forgiven, j.timeout_ms as job_timeout_ms,
      coalesce(named.started_at, j.last_started_at) as job_started_at,
      -- One that a receiver looked at, whose visibility is over, counts as well.
      case when j.status::text in ('queued', 'started') then j.moved_from end as dead_letter_of,
      h.id as head, h.error->>'message' as head_error, h.run_at, h.expires_at, h.flagged, h.max_attempts,
      h.attempts + (g.started_at is not null)::integer as attempts, h.attempts_forgiven as forgiven,
      coalesce(g.started_at, h.last_started_at) as last_started_at, h.timeout_ms,
      -- Unless its last attempt has failed.
      case when (h.error->>'attempt')::integer is distinct from h.attempts
        then h.snoozes::integer end as snoozes,
      (select j.moved_from from job j where j.id = h.id) as head_dead_letter_of,
      g.queue is not null as has_row, nullif(g.ready_at, 'infinity') as ready_at,
      g.halted_at, g.halt_reason, g.halt_job_id, g.halt_until, g.park_to is not null as parking,
      case when g.queue is not null then g.job_id is not null
        else k.group_id is null and coalesce(h.status = 'started', false) end as claimed,
      case when g.queue is not null then g.suspect = g.claim else h.suspect = h.claim end as suspected,
      case when g.queue is not null then nullif(g.ready_at, 'infinity') else h.lease_until end as lease_end,
      case when k.group_id is null then h.xmax::text else g.xmax::text end as locked_by,
      h.xmax::text as head_locked_by,
      -- A claim counts by these.
      case when q.in_flight_limit is not null or q.rate is not null then q.xmax::text end as queue_locked_by,
      case when limit_of_key(k.queue, h.limit_key, q.limit_per_key) is not null
        and h.limit_key is not null then (
        select l.xmax::text from adoption_lock l
        where l.hash = any (array[limit_key_hash(k.queue, h.limit_key)])) end as key_locked_by,
      {paused_q} as queue_paused, q.paused_at as queue_paused_at, q.pause_reason as queue_reason,
      q.paused_until as queue_until, q.rested_by as queue_rested_by,
      {paused_s} as group_paused, s.paused_at as group_paused_at, s.pause_reason as group_reason,
      s.paused_until as group_until, s.rested_by as group_rested_by,
      -- A claim of a processor names it, also before the processor has its row.
      coalesce(g.claimed_by, h.claimed_by) is null as received,
      q.in_flight_limit, case when r.starts = 0 then r.free_at end as rate_free_at,
      case when r.starts = 0 then q.rate end as rate, q.rate_per_ms, g.spaced_until,
      g.gated_by as limit_key, g.gated_at,
      limit_of_key(k.queue, g.gated_by, q.limit_per_key) as limit_per_key,
      (select count(*) from (
          select from queue_group n where n.queue = k.queue and n.limit_key = g.gated_by
          limit {count_limit}) n) as key_taken,
      p.id as processor, p.node, p.host, p.pid as process_id, p.queues as serves,
      p.started_at, p.seen_at, (select o.alive from processors() o where o.id = p.id) as alive,
      (select o.silent from processors() o where o.id = p.id) as silent,
      -- The queue's settings, or else what processors say of its jobs.
      coalesce(q.max_attempts, p.max_attempts[array_position(p.queues, k.queue)],
        (select max(o.max_attempts[array_position(o.queues, k.queue)]) from processor o
          where k.queue = any (o.queues))) as queue_attempts,
      queue_timeout_ms(k.queue, p.id) as queue_timeout_ms,
      (select min(r.requested_at) from cancel_request r where r.job_id = j.id) as job_cancel,
      (select min(r.requested_at) from cancel_request r where r.job_id = h.id) as head_cancel,
      (select case when not bool_or(o.queues is null or k.queue = any (o.queues)) is true
          then array(select distinct u.name from processors() o, unnest(o.queues) u(name)
            where o.alive order by u.name limit 20) end
        from processors() o where o.alive) as served,
      -- Each job of a batch counts, as it does for the limit.
      (select coalesce(sum(n.jobs), 0)::bigint from (
          select {claimed_count_g} as jobs from queue_group g
          where g.queue = k.queue and g.job_id is not null limit {count_limit}) n)
        + (select count(*) from (
          select from job n where n.queue = k.queue and n.group_id is null and n.status = 'started'
          limit {count_limit}) n) as in_flight,
      (case when g.job_id is null and g.gated_by is null and g.ready_at > '-infinity'
        then (select count(*) from groups_in_line(k.queue, {count_limit}, least(g.ready_at, now())))
        else 0 end)
        + (select count(*) from (
          select from queue_group n
          where n.queue = k.queue and n.gated_by = g.gated_by and n.gated_at < g.gated_at
          limit {count_limit}) n)
        + (select count(*) from (
          select from job n
          where n.queue = k.queue and n.group_id is null and n.status = 'queued' and k.group_id is null
            and n.turn_at <= now() and (n.turn_at, n.id) < (h.turn_at, h.id)
          limit {count_limit}) n) as before,
      (select count(*) from (
        select from job n
        where n.queue = k.queue and (n.group_id, n.id) > (k.group_id, coalesce(j.id, h.id, 0))
          and n.group_id <= k.group_id and n.group_id is not null and n.status in ('queued', 'started')
        limit {count_limit}) n) as behind,
      (select count(*) from (
        select from job n
        where n.queue = k.queue and n.group_id = k.group_id and n.parked_with is not null
          and n.status = 'parked'
        limit {count_limit}) n) as parked,
      (select min(n.finished_at) from (
        select n.finished_at from job n
        where n.queue = k.queue and n.group_id = k.group_id and n.parked_with is not null
          and n.status = 'failed'
        order by n.group_id, n.id limit 100) n) as parked_since
    from (
        select j.queue, j.group_id, j.id as job_id from job j where j.id = of_job
        union all
        select of_queue, of_group, null::bigint where of_job is null) k
      left join job j on j.id = k.job_id
      left join queue_group g on g.queue = k.queue and g.group_id = k.group_id
      left join job h on h.id = case when k.group_id is null then k.job_id else coalesce(
        -- The first of several under one claim that has not ended.
        (select min(u.id) from unfinished(g.job_id, g.batch) u where g.job_id is not null), g.job_id,
        (select l.id from job l
          where l.queue = k.queue and l.group_id >= k.group_id and l.group_id <= k.group_id
            and l.group_id is not null and l.status in ('queued', 'started')
          order by l.group_id, l.id limit 1)) end
      left join lateral claim_of(k.queue, k.group_id, j.id) named on j.finished_at is null
      left join queue q on q.name = k.queue
      left join lateral rate_room(q.rate, q.rate_per_ms, q.rate_burst, q.rate_next_at, clock_timestamp()) r
        on true
      left join group_setting s on s.queue = k.queue and s.group_id = k.group_id
      left join processor p on p.id = coalesce(g.claimed_by, h.claimed_by))
  select facts.*, locker.locked_row, seen.*
  from facts left join lateral (
    select r.pid, r.locked_row from (values
      (1, null, case when facts.locked_by <> '0' then
        locker(facts.locked_by, case when facts.group_id is null then 'job' else 'queue_group' end) end),
      (2, null, case
        when facts.group_id is not null and not facts.claimed and facts.head_locked_by <> '0' then
        locker(facts.head_locked_by, 'job') end),
      (3, 'queue', case when not facts.claimed and facts.queue_locked_by <> '0' then
        locker(facts.queue_locked_by, 'queue') end),
      (4, 'limit_key', case when not facts.claimed and facts.key_locked_by <> '0' then
        locker(facts.key_locked_by, 'adoption_lock') end)) r(place, locked_row, pid)
    where r.pid is not null order by r.place limit 1) locker on true
  left join lateral (
    select a.pid as session, nullif(a.application_name, '') as application, a.state as session_state,
      shown_query(a.query) as session_query, a.query_start as query_began,
      pg_catalog.host(a.client_addr) as client_address, a.backend_start as session_began,
      a.xact_start as transaction_began, pg_catalog.pg_blocking_pids(a.pid) as blocked_by
    from pg_catalog.pg_stat_activity a where a.pid = locker.pid) seen on true
$$;

-- Decides from those facts why the job, or the group, is where it is. `head_reason`: why the job
-- before it is, if the reason is `behind`.
--
-- Words: running, claimed, suspected, lapsed, locked, behind, not_due, halted, parking,
-- group_paused, queue_paused, spaced, at_key_limit, at_limit, at_rate, waits_for_turn, not_adopted,
-- stranded, expired, dead_letter, parked, ended, nothing. A halt comes before a claim, and a claim
-- before a wait; of waits, the strongest. A dead letter is one only where no processor serves its
-- dead-letter queue.
create or replace function subject_reasons(facts record, out reason text, out head_reason text)
language plpgsql stable as $$
declare
  hold constant text := case
    when facts.session is not null then 'running'
    when coalesce(facts.lease_end, facts.asked_at) <= facts.asked_at then 'lapsed'
    when facts.suspected then 'suspected'
    else 'claimed' end;
  -- A look into a dead-letter queue is a receive: it makes no server of a receiver.
  unserved constant boolean := facts.served is not null;
begin
  head_reason := case
    when facts.halted_at is not null and facts.parking then 'parking'
    when facts.halted_at is not null then 'halted'
    -- A group without jobs may be paused.
    when facts.head is null then case when facts.group_paused then 'group_paused' else 'nothing' end
    when facts.claimed then hold
    when facts.queue_paused then 'queue_paused'
    when facts.group_paused then 'group_paused'
    when facts.expires_at <= facts.asked_at then 'expired'
    when facts.run_at > facts.asked_at then 'not_due'
    when facts.spaced_until > facts.asked_at then 'spaced'
    when facts.locked_row = 'limit_key' and facts.transaction_began <= facts.asked_at - interval '1 s'
      then 'locked'
    when facts.limit_key is not null then 'at_key_limit'
    when facts.in_flight >= facts.in_flight_limit then 'at_limit'
    when facts.rate_free_at is not null then 'at_rate'
    -- Shorter ones are claims and other statements of the library.
    when facts.transaction_began <= facts.asked_at - interval '1 s' then 'locked'
    -- A session that this role may not see: since when is unknown.
    when facts.session is not null and facts.session_began is null then 'locked'
    when facts.group_id is null or facts.has_row then 'waits_for_turn'
    when facts.flagged then 'not_adopted'
    else 'stranded' end;
  if unserved and facts.head_dead_letter_of is not null
    and head_reason in ('waits_for_turn', 'not_adopted', 'stranded', 'not_due', 'lapsed')
  then
    head_reason := 'dead_letter';
  end if;
  reason := case
    when facts.job is null then head_reason
    when facts.status in ('succeeded', 'failed', 'cancelled') then 'ended'
    when facts.status = 'parked' then 'parked'
    when facts.head is null or facts.head = facts.job then head_reason
    -- One of several jobs that were received together: their receiver may work on any. The jobs of
    -- a processor's turn run one after the other.
    when facts.status = 'started' and facts.claimed and facts.received then hold
    -- The jobs before it in its dead-letter queue do not keep it from a redrive.
    when unserved and facts.dead_letter_of is not null and head_reason in ('dead_letter', 'waits_for_turn',
      'not_adopted', 'stranded', 'expired', 'not_due', 'lapsed') then 'dead_letter'
    else 'behind' end;
  head_reason := case when reason = 'behind' then head_reason end;
end $$;

-- Explains a job; or a group, by the job of it that runs or is next. Null: there is no such job.
create or replace function explain_subject(of_queue text, of_group text, of_job bigint) returns explanation
language plpgsql volatile set search_path from current as $$
declare
  facts record; answer explanation; waits_on text; begun timestamptz; timeout_ms bigint;
begin
  facts := subject_facts(of_queue, of_group, of_job);
  if facts is null then
    return null;
  end if;
  -- Facts have the names of the answer's columns as far as they are told as they are.
  answer := jsonb_populate_record(null::explanation, to_jsonb(facts));
  select r.reason, r.head_reason into answer.reason, answer.head_reason from subject_reasons(facts) r;
  waits_on := coalesce(answer.head_reason, answer.reason);
  if answer.reason in ('ended', 'parked') then
    -- The limit of its queue may have been another one when it ended.
    answer.attempt := facts.job_attempts;
    answer.attempts_forgiven := facts.job_forgiven;
    answer.attempt_limit := facts.job_max_attempts;
  elsif facts.job is not null and answer.reason in ('running', 'claimed', 'suspected', 'lapsed') then
    begun := facts.job_started_at;
    timeout_ms := facts.job_timeout_ms;
    answer.attempt := facts.job_attempts;
    answer.attempts_forgiven := facts.job_forgiven;
    answer.attempt_limit := coalesce(facts.job_max_attempts, facts.queue_attempts);
  else
    begun := facts.last_started_at;
    timeout_ms := facts.timeout_ms;
    answer.attempt := facts.attempts;
    answer.attempts_forgiven := facts.forgiven;
    answer.attempt_limit := coalesce(facts.max_attempts, facts.queue_attempts);
  end if;
  -- Receivers have no timeout.
  if not facts.received and waits_on in ('running', 'claimed') then
    answer.timeout_at := begun + make_interval(secs => coalesce(timeout_ms, facts.queue_timeout_ms) / 1000.0);
  end if;
  begun := coalesce(begun, facts.asked_at);
  select told.since, told.until, told.detail, told.by_job
    into answer.since, answer.until, answer.detail, answer.by_job
  from (values
    ('running', begun, null, null, null),
    ('claimed', begun, facts.lease_end, null, null),
    ('suspected', begun, facts.lease_end, null, null),
    ('lapsed', coalesce(facts.lease_end, facts.asked_at), null, null, null),
    ('halted', facts.halted_at, facts.halt_until, facts.halt_reason, facts.halt_job_id),
    ('parking', facts.halted_at, facts.halt_until, facts.halt_reason, facts.halt_job_id),
    ('queue_paused', facts.queue_paused_at, facts.queue_until, facts.queue_reason,
      facts.queue_rested_by),
    ('group_paused', facts.group_paused_at, facts.group_until, facts.group_reason,
      facts.group_rested_by),
    ('expired', facts.expires_at, null, null, null),
    ('not_due', null, facts.run_at, case when facts.attempts > 0 then facts.head_error end, null),
    ('locked', facts.transaction_began, null, facts.locked_row, null),
    ('at_key_limit', greatest(facts.run_at, facts.gated_at), null, facts.limit_key, null),
    ('at_limit', facts.run_at, null, null, null),
    ('at_rate', facts.run_at, facts.rate_free_at, null, null),
    ('spaced', facts.run_at, facts.spaced_until, null, null),
    ('not_adopted', facts.run_at, null, null, null),
    ('stranded', facts.run_at, null, null, null),
    ('waits_for_turn', greatest(facts.run_at, facts.ready_at), null, null, null),
    ('dead_letter', facts.run_at, null, facts.head_dead_letter_of, null),
    ('parked', null, null, null, facts.parked_with),
    ('ended', facts.finished_at, null, case when facts.status <> 'succeeded' then facts.error end,
      case when facts.halted_at is not null and not facts.parking and facts.halt_job_id = facts.job
        then facts.job end)
    ) told(reason, since, until, detail, by_job)
  where told.reason = waits_on;
  if waits_on in ('running', 'claimed') then
    -- A report of an attempt before does not tell where this one is.
    select p.percent, p.message, p.reported_at
      into answer.progress_percent, answer.progress_message, answer.progress_at
    from job_progress p
    where p.job_id = case when answer.reason = 'behind' then facts.head else coalesce(facts.job, facts.head)
      end and p.reported_at >= begun;
  end if;
  if answer.reason = 'dead_letter' and facts.job is not null then
    answer.since := facts.job_run_at;
    answer.detail := facts.dead_letter_of;
  end if;
  if answer.reason = 'ended' then
    answer.has_parked := coalesce(facts.parked_with = facts.job, false);
  end if;
  answer.cancel_requested_at := case when facts.job is null then facts.head_cancel
    when answer.reason <> 'ended' then facts.job_cancel end;
  -- Jobs that wait for a worker, or whose worker is gone, are told that nobody serves the queue.
  if waits_on in ('waits_for_turn', 'not_adopted', 'stranded', 'lapsed', 'expired')
    or waits_on in ('claimed', 'suspected') and not facts.alive
    or answer.head_reason = 'dead_letter'
  then
    answer.unserved := case when not receivers_serve(facts.queue) then facts.served end;
  end if;
  return answer;
end $$;

-- Explains why a job is where it is. No row: there is no such job.
create or replace function explain(job bigint) returns setof explanation
language sql volatile set search_path from current as $$
  select e.* from explain_subject(null, null, explain.job) e where e.queue is not null
$$;

-- Explains why a group is where it is, by the job of it that runs or is next.
create or replace function explain_group(queue text, group_id text) returns setof explanation
language sql volatile set search_path from current as $$
  select e.* from explain_subject(explain_group.queue, explain_group.group_id, null) e
$$;
