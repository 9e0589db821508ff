-- Ack, nack and extend for any language: what a receipt is good for. Meant to be called in a transaction of their own, or
-- at the end of the caller's: what they lock, they lock until the commit.

-- A temporary table of the caller's must not stand in for one of these.
select set_config('search_path', current_setting('search_path') || ', pg_temp', true);

create function parse_receipt(receipt text, out job bigint, out token uuid)
language plpgsql immutable
as $$
begin
  if receipt is null or receipt !~ '^[0-9]{1,19}\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
    or split_part(receipt, '.', 1)::numeric > 9223372036854775807
  then
    raise exception 'this is not a receipt: %', coalesce(quote_literal(left(receipt, 80)), 'null')
      using errcode = '22023', hint = 'Pass the receipt as receive() returned it.';
  end if;
  job := split_part(receipt, '.', 1);
  token := split_part(receipt, '.', 2);
end $$;

-- Locks what a receipt speaks of: the group's row by its token, then the job's. Skipped is not lost: only a plain read that
-- shows another token says stale. `state`: held, stale or busy (somebody has had a row for half a second).
create function pull_hold(of_job bigint, token uuid, out state text, out of_queue text, out of_group text)
language plpgsql volatile
as $$
begin
  for tries in 1..100 loop
    select j.queue, j.group_id into of_queue, of_group from job j where j.id = of_job;
    if of_group is null then
      perform from job j where j.id = of_job and j.claim = token
        and j.finished_at is null and j.status not in ('queued', 'parked') for no key update skip locked;
      if found then
        state := 'held';
        return;
      end if;
      perform from job j where j.id = of_job and j.claim = token
        and j.finished_at is null and j.status not in ('queued', 'parked');
    else
      perform from queue_group g where g.queue = of_queue and g.group_id = of_group and g.claim = token
        and of_job between coalesce(g.job_id, 0) and coalesce(g.batch_end, g.job_id) for no key update skip locked;
      if found then
        perform from job j where j.id = of_job and j.finished_at is null and j.status not in ('queued', 'parked')
        for no key update skip locked;
        if found then
          state := 'held';
          return;
        end if;
      end if;
      perform from queue_group g join job j on j.id = of_job and j.finished_at is null
          and j.status not in ('queued', 'parked')
      where g.queue = of_queue and g.group_id = of_group and g.claim = token
        and of_job between coalesce(g.job_id, 0) and coalesce(g.batch_end, g.job_id);
    end if;
    if not found then
      state := 'stale';
      return;
    end if;
    perform pg_sleep(0.005);
  end loop;
  state := 'busy';
exception when lock_not_available then
  state := 'busy';
end $$;

-- What is left of a claim when one of its jobs has ended or went back: fewer jobs, or nothing, and the turn is passed on.
-- The group's row is locked.
create function pull_pass(of_queue text, of_group text) returns void
language plpgsql volatile
as $$
declare
  turn queue_group;
  left_first bigint;
  left_last bigint;
  left_count bigint;
begin
  select g.* into turn from queue_group g where g.queue = of_queue and g.group_id = of_group;
  select min(b.id), max(b.id), count(*) into left_first, left_last, left_count
  from batch_jobs(of_queue, of_group, turn.job_id, coalesce(turn.batch_end, turn.job_id)) b(id);
  if left_count = 0 then
    perform pull_free(of_queue, of_group, clock_timestamp());
  else
    update queue_group g set job_id = left_first, batch_end = left_last, batch_size = left_count
    where g.queue = of_queue and g.group_id = of_group;
  end if;
end $$;

-- The job is done: it ends as succeeded, with `result`. In the caller's transaction it commits together with what the
-- caller wrote there: exactly once, if the caller rolls back when told 'stale'.
-- 'done'; 'stale': the claim is not the receipt's any more (its visibility was over and somebody else has the job, it was
-- acked or nacked already, or is gone), and nothing was changed; 'busy': somebody has the rows for a moment, try again.
-- The jobs of a group that were received together may be acked in any order.
create function ack(receipt text, result jsonb default null) returns text
language plpgsql volatile
set search_path from current
set lock_timeout = '100ms'
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
#variable_conflict use_column
declare
  shown record;
  held record;
begin
  perform check_isolation('ack');
  select * into shown from parse_receipt(receipt);
  select * into held from pull_hold(shown.job, shown.token);
  if held.state <> 'held' then
    return held.state;
  end if;
  update job j set status = 'succeeded', finished_at = clock_timestamp(), result = ack.result, error = null,
    claim = null, lease_until = null, suspect = null, claimed_by = null
  where j.id = shown.job;
  if held.of_group is not null then
    perform pull_pass(held.of_queue, held.of_group);
  end if;
  return 'done';
end $$;

-- The job was not done: it goes back to its place and is due after `delay`; its group waits for it. Those behind it that
-- were received with it go back too, with nothing held against them, and their receipts become stale. Out of attempts, it
-- ends as failed, and the group does what its setting says. Returns as ack does.
create function nack(receipt text, delay interval default '0', error text default null) returns text
language plpgsql volatile
set search_path from current
set lock_timeout = '100ms'
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
#variable_conflict use_column
declare
  wait constant interval := coalesce(delay, interval '0');
  message constant text := coalesce(error, 'given back by its receiver');
  shown record;
  held record;
  j job;
  turn queue_group;
  most_attempts integer;
begin
  perform check_isolation('nack');
  select * into shown from parse_receipt(receipt);
  if wait < interval '0' or wait > interval '100 years' then
    raise exception 'the delay is %, it must be from 0 to 100 years', wait
      using errcode = '22023', hint = 'Leave it out for at once.';
  end if;
  select * into held from pull_hold(shown.job, shown.token);
  if held.state <> 'held' then
    return held.state;
  end if;
  select x.* into j from job x where x.id = shown.job;
  if held.of_group is not null then
    select g.* into turn from queue_group g where g.queue = held.of_queue and g.group_id = held.of_group;
    perform pull_return(held.of_queue, held.of_group, j.id + 1, turn.batch_end);
  end if;
  most_attempts := coalesce(j.max_attempts, (select q.max_attempts from queue q where q.name = j.queue), 10);
  if exists (select from cancel_request r where r.job_id = j.id) then
    perform pull_refuse(j, 'cancelled');
  elsif j.attempts - j.attempts_forgiven < most_attempts then
    update job set status = 'queued', run_at = clock_timestamp() + wait,
      turn_at = case when wait = interval '0' then clock_timestamp() - job.priority * interval '10 s'
        else least(clock_timestamp() + wait, job.expires_at) end,
      claim = null, lease_until = null, suspect = null, claimed_by = null,
      error = jsonb_build_object('kind', 'error', 'message', message, 'chain', '[]'::jsonb, 'attempt', j.attempts),
      history = history_with(job.history, j.attempts, j.last_started_at, 'error', message)
    where job.id = j.id;
  else
    perform pull_end(j.id, 'failed', 'error', message);
    if held.of_group is not null then
      -- A group is halted as a whole: what came before and is not acked yet goes back.
      if (select s.out_of_attempts from group_setting s where s.queue = j.queue and s.group_id = j.group_id) <> 'continue' then
        perform pull_return(held.of_queue, held.of_group, turn.job_id, j.id - 1);
      end if;
      if pull_dead_letter(held.of_queue, held.of_group, j.id, message) then
        return 'done';
      end if;
    end if;
  end if;
  if held.of_group is not null then
    perform pull_pass(held.of_queue, held.of_group);
  end if;
  return 'done';
end $$;

-- Gives the claim `visibility` (0 to 12 h) from now on, instead of what is left of it. Jobs of a group that were received
-- together have one claim: it is extended for all of them. Returns as ack does.
create function extend(receipt text, visibility interval) returns text
language plpgsql volatile
set search_path from current
set lock_timeout = '100ms'
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
declare
  shown record;
  held record;
begin
  perform check_isolation('extend');
  select * into shown from parse_receipt(receipt);
  perform check_visibility(visibility);
  select * into held from pull_hold(shown.job, shown.token);
  if held.state <> 'held' then
    return held.state;
  end if;
  if held.of_group is null then
    update job j set lease_until = clock_timestamp() + visibility, suspect = null where j.id = shown.job;
  else
    update queue_group g set ready_at = clock_timestamp() + visibility, suspect = null
    where g.queue = held.of_queue and g.group_id = held.of_group;
  end if;
  return 'done';
end $$;

select set_config('search_path', regexp_replace(current_setting('search_path'), ', pg_temp$', ''), true);
