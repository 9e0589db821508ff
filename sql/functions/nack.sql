-- Gives the job of a receipt back to its place; it is due after `delay`, and its group waits for
-- it. Jobs behind it that were received with it go back too, with nothing held against them, and
-- their receipts become stale. Without a `delay`, the backoff of the queue's settings counts; by
-- default the job waits 1 s, and twice as long each time. Out of attempts, it ends as failed or
-- goes to the dead-letter queue, and the group follows its own setting, or else the queue's.
-- Returns the same as ack.
create or replace function nack(receipt text, delay interval default null, error text default null)
returns text
language plpgsql volatile set search_path from current {pinned} as $$
begin
  perform check_delay(delay);
  return settle_receipt(receipt, 'nack', null, delay, error);
end $$;

-- Puts the job of a receipt off, as one whose partner is not ready: it keeps its place, it is due
-- after `delay`, and its group waits for it. No attempt counts. Jobs behind it that were received
-- with it go back too. A job that has been put off `max_snoozes` times is given back as by nack
-- without a delay.
-- Returns the same as ack.
create or replace function snooze(receipt text, delay interval, max_snoozes integer default {max_snoozes})
returns text
language plpgsql volatile set search_path from current {pinned} as $$
begin
  if delay is null or max_snoozes is null or max_snoozes not between 0 and {snooze_limit} then
    raise exception 'the delay is %, and max_snoozes %', coalesce(delay::text, 'null'),
        coalesce(max_snoozes::text, 'null')
      using errcode = '22023', hint = 'Pass a delay, and max_snoozes from 0 to {snooze_limit}.';
  end if;
  perform check_delay(delay);
  return settle_receipt(receipt, 'snooze', null, delay, null, max_snoozes);
end $$;

-- Gives back the jobs of receipts, as far as they are held. `verb` is nack, snooze or release. The
-- last of a group comes first, as those behind a job go back with it. Returns the outcome per
-- receipt.
create or replace function nack_receipts(of_jobs bigint[], tokens uuid[], verb text, delay interval,
  error text, most integer, until timestamptz) returns text[]
language plpgsql volatile as $$
declare
  states text[] := '{}'; shown record; held record;
begin
  for shown in
    select r.* from unnest(of_jobs, tokens) with ordinality r(job, token, place) order by r.job desc
  loop
    held := receive_hold(array[shown.job], array[shown.token], false, until);
    states[shown.place] := held.states[1];
    if held.states[1] = 'held' then
      perform give_back(shown.job, shown.token, verb, delay, error, most);
      states[shown.place] := 'done';
    end if;
  end loop;
  return states;
end $$;

-- Gives back a job of a receiver. Its row is locked, and its group's by the token. A release, and a
-- snooze if the job was put off less than `most` times, are not held against it.
create or replace function give_back(of_job bigint, token uuid, verb text, delay interval, error text,
  most integer) returns void
language plpgsql volatile as $$
declare
  policy constant jsonb := failure_policy(of_job);
  j job; claimed bigint[] := '{}'; counted integer; ends boolean; message text;
begin
  select x.* into j from job x where x.id = of_job;
  counted := j.attempts - j.attempts_forgiven + (j.group_id is not null)::integer;
  message := coalesce(error, case when verb = 'snooze' then format({snoozed_out}, j.snoozes)
    else 'given back by its receiver' end);
  if j.group_id is not null then
    claimed := array(
      select u.id from queue_group g cross join lateral unfinished(g.job_id, g.batch) u
      where g.claim = token);
    -- The jobs behind it go back too.
    perform end_attempt(c.id, 'released', 'released', null) from unnest(claimed) c(id) where c.id > of_job;
  end if;
  if (policy->'cancel_requested')::boolean then
    perform receive_refuse(of_job, token, 'cancelled');
  elsif verb = 'release' then
    perform end_attempt(of_job, 'released', 'released', message);
  elsif verb = 'snooze' and j.snoozes < most then
    perform end_attempt(of_job, 'snoozed', null, null, extract(epoch from delay)::float8);
  elsif counted < coalesce((policy->>'max_attempts')::integer, {default_attempts}) then
    perform end_attempt(of_job, 'retried', 'error', message,
      coalesce(case when verb <> 'snooze' then extract(epoch from delay)::float8 end,
        backoff(policy, counted)));
  else
    perform end_attempt(of_job, 'failed', 'error', message);
    ends := j.group_id is not null and policy->>'out_of_attempts' <> 'continue';
    -- A group is halted as a whole: what came before and is not acked yet goes back.
    perform end_attempt(c.id, 'released', 'released', null) from unnest(claimed) c(id)
    where ends and c.id < of_job;
    if end_behind(of_job, token, policy) then
      return;
    end if;
  end if;
  if j.group_id is not null then
    perform receive_pass(array[token], array[null::bigint],
      array(select c.id from unnest(claimed) c(id) where c.id >= of_job));
  end if;
end $$;

-- Returns how many seconds a job waits after its n-th failed attempt: doubled with each, up to the
-- cap.
create or replace function backoff(policy jsonb, counted integer) returns float8
language sql stable as $$
  select least(
    extract(epoch from coalesce((policy->>'backoff')::interval, {backoff}))::float8
      * 2.0 ^ least(counted - 1, 60),
    extract(epoch from coalesce((policy->>'backoff_cap')::interval, {backoff_cap}))::float8)
$$;
