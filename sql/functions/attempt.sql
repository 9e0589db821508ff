-- The ends of attempts. Nothing else writes them: workers, receivers, operators and take-overs call
-- these functions. Each is called with the rows locked and before the claim is passed on, as the
-- group's row says when the attempt began. A process also says how many seconds before the
-- statement its handler began, and ended: that of a follower begins after the claim of its turn.

-- Writes the success of jobs, or deletes them without `keep`. `tokens` are those of their claims.
-- This transaction has locked the jobs, or their groups by token (P4, P10). Returns a row for each
-- job that it wrote: one that was recorded already stays as it is.
create or replace function {schema}.succeed(jobs bigint[], tokens uuid[], results text[], keep boolean,
  began float8[] default null, ended float8[] default null) returns table (queue text, group_id text)
language plpgsql volatile as $$
#variable_conflict use_column
begin
  if keep then
    return query
    update {schema}.job j set {succeeded}
    from (
      select u.id, u.result, u.ended, (
        select greatest(g.started_at, statement_timestamp() - make_interval(secs => u.began))
        from {schema}.queue_group g where g.claim = u.token limit 1) as started_at
      from unnest(jobs, tokens, results, began, ended) u(id, token, result, began, ended) offset 0) done
    where j.id = any (array[done.id]) and {claimed}
    returning j.queue, case when j.batch_id is null then j.group_id
      else {schema}.mark_end(j.batch_id, j.id, j.queue, j.group_id, j.status, j.result) end;
  else
    return query
    delete from {schema}.job j where j.id = any (jobs) and {claimed}
    returning j.queue, case when j.batch_id is null then j.group_id
      else {schema}.mark_end(j.batch_id, j.id, j.queue, j.group_id, 'succeeded',
        results[array_position(jobs, j.id)]::jsonb) end;
  end if;
end $$;

-- Ends an attempt without success. `how` is retried (queued, and due after `delay`), snoozed (the
-- same, and not held against the job), released (queued, and not held against it), failed or
-- cancelled. Returns false if the job is not as its claim has locked it. A snooze leaves no trace
-- in the history, and of several attempts whose process did not know the kind only the first does:
-- many would push the failures out.
--
-- One time for `run_at` and `turn_at`: by it, a job is known to have its priority's aging before
-- it.
create or replace function {schema}.end_attempt(of_job bigint, how text, kind text, message text,
  delay float8 default 0, chain jsonb default '[]', age float8 default null) returns boolean
language plpgsql volatile as $$
declare
  marked text;
begin
  update {schema}.job j set
    status = case when how in ('retried', 'snoozed', 'released') then 'queued' else how
      end::{schema}.job_status,
    finished_at = case when how in ('failed', 'cancelled') then clock_timestamp() end,
    attempts = ended.attempt,
    attempts_forgiven = j.attempts_forgiven
      + ((how in ('snoozed', 'released') or kind = 'unknown_kind') and ended.begun)::integer,
    snoozes = j.snoozes + (how = 'snoozed')::integer,
    last_started_at = ended.started_at,
    run_at = coalesce(ended.due_at, j.run_at),
    turn_at = case when ended.due_at is null then j.turn_at else least(ended.due_at, j.expires_at) end,
    error = case when how in ('retried', 'failed') then jsonb_build_object(
      'kind', coalesce(ended.aborted ->> 'kind', kind),
      'message', coalesce(ended.aborted ->> 'message', message),
      'chain', chain, 'attempt', ended.attempt) else j.error end,
    history = case
      when how = 'snoozed' or kind = 'unknown_kind' and j.history -> -1 ->> 'kind' = kind then j.history
      else {schema}.history_with(j.history, ended.attempt, ended.started_at, kind, message) end,
    flagged = false, {free_job}
  from (
    select e.attempts + (c.started_at is not null)::integer as attempt,
      case when kind = 'worker_lost' then {schema}.aborted_record(e.history,
        e.attempts + (c.started_at is not null)::integer) end as aborted,
      case when c.started_at is null then e.last_started_at
        else greatest(c.started_at, statement_timestamp() - make_interval(secs => age)) end as started_at,
      c.started_at is not null or e.group_id is null as begun,
      case when how in ('retried', 'snoozed') then clock_timestamp() + make_interval(secs => delay)
        end as due_at
    from {schema}.job e left join lateral {schema}.claim_of(e.queue, e.group_id, e.id) c on true
    where e.id = of_job) ended
  where j.id = of_job and {claimed}
  returning case when j.batch_id is not null and j.finished_at is not null
    then {schema}.mark_end(j.batch_id, j.id, j.queue, j.group_id, j.status, null) end into marked;
  return found;
end $$;
