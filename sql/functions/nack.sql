-- Gives the job of a receipt back to its place; it is due after `delay`, and its group waits for
-- it. Those behind it that were received with it go back too, with nothing held against them, and
-- their receipts become stale. Without a `delay`, the backoff of the queue's settings says when, or
-- it is due at once. Out of attempts, it ends as failed or goes to the dead-letter queue, and the
-- group does what its setting says, or else the queue's. Returns as ack does.
create or replace function nack(receipt text, delay interval default null, error text default null) returns text
language plpgsql volatile
set search_path from current
set lock_timeout = {lock_timeout}
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
#variable_conflict use_column
declare
  message constant text := coalesce(error, 'given back by its receiver');
  shown record;
  held record;
  wait interval := delay;
  j job;
  turn queue_group;
  attempt_limit integer;
begin
  perform check_isolation('nack');
  select * into shown from parse_receipt(receipt);
  if wait < interval '0' or wait > interval '100 years' then
    raise exception 'the delay is %, it must be from 0 to 100 years', wait
      using errcode = '22023', hint = 'Leave it out for at once.';
  end if;
  select * into held from receive_hold(shown.job, shown.token, false);
  if held.state <> 'held' then
    return held.state;
  end if;
  select x.* into j from job x where x.id = shown.job;
  if held.of_group is not null then
    select g.* into turn from queue_group g where g.queue = held.of_queue and g.group_id = held.of_group;
    perform return_jobs(held.of_queue, held.of_group, j.id + 1, turn.batch_end);
  end if;
  if wait is null then
    -- Doubled with each attempt, up to the cap.
    wait := coalesce((
      select make_interval(secs => least(q.backoff_ms * 2.0 ^ least(j.attempts - j.attempts_forgiven - 1, 60),
        coalesce(q.backoff_cap_ms, {backoff_cap_ms})) / 1000.0)
      from queue q where q.name = j.queue and q.backoff_ms is not null), interval '0');
  end if;
  attempt_limit := coalesce(j.max_attempts, (select q.max_attempts from queue q where q.name = j.queue),
    {receiver_attempts});
  if exists (select from cancel_request r where r.job_id = j.id) then
    perform receive_refuse(j.id, 'cancelled');
  elsif j.attempts - j.attempts_forgiven < attempt_limit then
    update job set status = 'queued', run_at = clock_timestamp() + wait,
      turn_at = case when wait = interval '0' then clock_timestamp() - job.priority * {priority_aging}
        else least(clock_timestamp() + wait, job.expires_at) end,
      {free_job},
      error = jsonb_build_object('kind', 'error', 'message', message, 'chain', '[]'::jsonb, 'attempt', j.attempts),
      history = history_with(job.history, j.attempts, j.last_started_at, 'error', message)
    where job.id = j.id;
  else
    perform receive_end(j.id, 'failed', 'error', message);
    -- A group is halted as a whole: what came before and is not acked yet goes back.
    if held.of_group is not null
      and (select p.out_of_attempts from receive_policy(j.queue, j.group_id) p) <> 'continue'
    then
      perform return_jobs(held.of_queue, held.of_group, turn.job_id, j.id - 1);
    end if;
    if receive_dead_letter(held.of_queue, held.of_group, j.id, message) then
      return 'done';
    end if;
  end if;
  if held.of_group is not null then
    perform receive_pass(held.of_queue, held.of_group, shown.token, null);
  end if;
  return 'done';
end $$;
