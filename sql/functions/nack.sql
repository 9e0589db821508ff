-- Gives the job of a receipt back to its place; it is due after `delay`, and its group waits for
-- it. Those behind it that were received with it go back too, with nothing held against them, and
-- their receipts become stale. Without a `delay`, the backoff of the queue's settings says when, or
-- it is due at once. Out of attempts, it ends as failed or goes to the dead-letter queue, and the
-- group does what its setting says, or else the queue's. Returns as ack does.
create or replace function nack(receipt text, delay interval default null, error text default null) returns text
language plpgsql volatile
set search_path from current
{pinned}
as $$
declare
  shown record;
begin
  perform check_isolation('nack');
  select * into shown from parse_receipt(receipt);
  perform check_delay(delay);
  return (settle_receipts('nack', array[shown.job], array[shown.token], null, delay, error))[1];
end $$;

-- Gives back the jobs of receipts, as far as they are held; with `forgive` the attempts are not
-- held against them. The last of a group comes first, as those behind a job go back with it.
-- Returns what each receipt came to.
create or replace function nack_receipts(of_jobs bigint[], tokens uuid[], delay interval, error text, forgive boolean,
  until timestamptz) returns text[]
language plpgsql volatile
as $$
declare
  states text[] := '{}';
  shown record;
  held record;
begin
  for shown in
    select r.* from unnest(of_jobs, tokens) with ordinality r(job, token, place) order by r.job desc
  loop
    held := receive_hold(array[shown.job], array[shown.token], false, until);
    states[shown.place] := held.states[1];
    if held.states[1] = 'held' then
      if forgive then
        update job j set attempts_forgiven = attempts_forgiven + 1 where j.id = shown.job;
      end if;
      perform give_back(shown.job, shown.token, delay, coalesce(error, 'given back by its receiver'));
      states[shown.place] := 'done';
    end if;
  end loop;
  return states;
end $$;

-- Gives back a job of a receiver. Its row is locked, and its group's by the token.
create or replace function give_back(of_job bigint, token uuid, delay interval, message text) returns void
language plpgsql volatile
as $$
declare
  wait interval := delay;
  j job;
  turn queue_group;
  attempt_limit integer;
begin
  select x.* into j from job x where x.id = of_job;
  if j.group_id is not null then
    select g.* into turn from queue_group g where g.queue = j.queue and g.group_id = j.group_id;
    perform return_jobs(j.queue, j.group_id, j.id + 1, turn.batch_end);
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
    if j.group_id is not null
      and (select p.out_of_attempts from receive_policy(j.queue, j.group_id) p) <> 'continue'
    then
      perform return_jobs(j.queue, j.group_id, turn.job_id, j.id - 1);
    end if;
    if receive_dead_letter(j.queue, j.group_id, j.id, message) then
      return;
    end if;
  end if;
  if j.group_id is not null then
    perform receive_pass(array[token], array[null::bigint]);
  end if;
end $$;
