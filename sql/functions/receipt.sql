-- Returns whether this text can be a receipt, of whatever claim.
create or replace function is_receipt(receipt text) returns boolean
language sql immutable as $$
  select case when receipt ~ '^[0-9]{1,19}\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
    then split_part(receipt, '.', 1)::numeric <= 9223372036854775807 else false end
$$;

create or replace function parse_receipt(receipt text, out job bigint, out token uuid)
language plpgsql immutable as $$
begin
  if not is_receipt(receipt) then
    raise exception 'this is not a receipt: %', coalesce(quote_literal(left(receipt, 80)), 'null')
      using errcode = '22023', hint = 'Pass the receipt as receive() returned it.';
  end if;
  job := split_part(receipt, '.', 1);
  token := split_part(receipt, '.', 2);
end $$;

-- Settles receipts: what acks, extends, nacks, snoozes, releases and reports have in common. `verb`
-- is ack, extend, nack, snooze (up to `most` times), release, progress or checkpoint. `results` has
-- what acks and reports bring along; a message is cut. Returns what each receipt came to: done,
-- stale, or busy (another transaction has had its rows for half a second).
--
-- If a row is locked, all that this call has locked and written is rolled back before it waits:
-- another call may have that row, and wait for one of these. All is one subtransaction. A row that
-- is locked in one and written behind it would get a multixact.
create or replace function settle_receipts(verb text, of_jobs bigint[], tokens uuid[], results text[],
  wait interval, message text, most integer default null) returns text[]
language plpgsql volatile as $$
declare
  until constant timestamptz := clock_timestamp() + interval '0.5 s';
  pause float8 := 0.005; states text[];
begin
  message := left(message, {message_limit});
  loop
    begin
      states := case verb
        when 'ack' then ack_receipts(of_jobs, tokens, results, until)
        when 'extend' then extend_receipts(of_jobs, tokens, wait, until)
        when 'progress' then report_receipts(of_jobs, tokens, results, until)
        when 'checkpoint' then report_receipts(of_jobs, tokens, results, until)
        else nack_receipts(of_jobs, tokens, verb, wait, message, most, until) end;
      return states;
    exception when lock_not_available or sqlstate 'SQ000' then
      states := array_fill('busy'::text, array[cardinality(of_jobs)]);
    end;
    if clock_timestamp() >= until then
      return states;
    end if;
    perform pg_sleep(pause * (0.5 + random()));
    pause := least(pause * 2, 0.05);
  end loop;
end $$;

-- Settles a single receipt. Returns what it came to.
create or replace function settle_receipt(receipt text, verb text, result text, wait interval, message text,
  most integer default null) returns text
language plpgsql volatile as $$
declare
  shown record;
begin
  perform check_isolation(verb);
  shown := parse_receipt(receipt);
  return (settle_receipts(verb, array[shown.job], array[shown.token], array[result], wait, message, most))[1];
end $$;

-- Returns the job of a claim that stands, by its token; no row: the claim is stale. A plain read,
-- so the claim may be taken over right behind it.
create or replace function held_job(of_job bigint, token uuid, late boolean)
returns table (id bigint, queue text, group_id text)
language sql stable as $$
  select j.id, j.queue, j.group_id from job j left join lateral (
    select g.queue, g.group_id from queue_group g
    where g.claim = token and not {over_g} and of_job = any ({claimed_jobs_g})
    limit 1) g on true
  where j.id = any (array[of_job]) and {claimed}
    and case when j.group_id is null then j.claim = token and (late or not {over_j})
      else j.queue = g.queue and j.group_id = g.group_id end
  limit 1
$$;

-- Locks the rows of receipts: the groups' by their tokens, then the jobs'. `states`: held, stale,
-- or busy. Skipped is not lost: only a plain read that shows another token makes it stale. `groups`
-- has the group of each held receipt, and of no other; null: the job has none. If a receipt is busy
-- before the time `until`, the function raises SQ000 before anything is written: the caller is to
-- try again.
--
-- A strict claim that is over is stale, by the clock as its row is read. If a claim was not over
-- yet, the lock keeps it until the caller's commit, however late that is. With `late` a job without
-- a group is held until it is received again: no other job waits for its turn.
create or replace function receive_hold(of_jobs bigint[], tokens uuid[], late boolean, until timestamptz,
  out states text[], out groups text[])
language plpgsql volatile as $$
declare
  of_queues text[]; of_groups text[];
begin
  select array_agg(g.queue), array_agg(g.group_id) into of_queues, of_groups
  from unnest(of_jobs, tokens) r(job, token)
  left join lateral (
    select g.queue, g.group_id from queue_group g
    where g.claim = r.token and not {over_g} and r.job = any ({claimed_jobs_g})
    limit 1 for no key update of g skip locked) g on true;
  -- By a snapshot younger than those locks.
  select array_agg(j.group_id), array_agg(case when j.id is not null then 'held' end) into groups, states
  from unnest(of_jobs, tokens, of_queues, of_groups) r(job, token, queue, name)
  left join lateral (
    select j.id, j.group_id from job j
    where j.id = any (array[r.job]) and {claimed}
      and case when j.group_id is null then j.claim = r.token and (late or not {over_j})
        else j.queue = r.queue and j.group_id = r.name end
    limit 1 for no key update of j skip locked) j on true;
  if array_position(states, null) is not null then
    select array_agg(coalesce(r.state, case when j.id is null then 'stale' else 'busy' end)) into states
    from unnest(of_jobs, tokens, states) r(job, token, state)
    left join lateral (
      select h.id from held_job(r.job, r.token, late) h where r.state is null) j on true;
    if 'busy' = any (states) and clock_timestamp() < until then
      raise sqlstate 'SQ000';
    end if;
  end if;
end $$;

-- Passes on claims of which jobs have ended, or went back (`returned`): a claim keeps the rest of
-- its jobs, or its turn ends. The groups' rows are locked. `ended` is the last job of each that has
-- ended; null: none has.
create or replace function receive_pass(claims uuid[], ended bigint[], returned bigint[] default '{}')
returns void
language plpgsql volatile as $$
declare
  may_retire constant boolean := receiver_may_retire();
  over uuid[]; over_ended bigint[];
begin
  with claimed as materialized (
    select g.ctid as line, c.token, c.ended, rest.jobs from unnest(claims, ended) c(token, ended)
    cross join lateral (
      select g.ctid, g.job_id, g.batch from queue_group g where g.claim = c.token limit 1) g
    -- A claim of one job has none left.
    cross join lateral (
      select array(select u.id from unfinished(g.job_id, g.batch) u
        where g.batch is not null and u.id <> all (returned)) as jobs) rest),
  kept as (
    update queue_group g set job_id = claimed.jobs[1], batch = claimed.jobs
    from claimed where g.ctid = claimed.line and claimed.jobs <> '{}')
  select array_agg(c.token), array_agg(case when may_retire then c.ended end) into over, over_ended
  from claimed c where c.jobs = '{}';
  if over is not null then
    perform pass_turns(over, over_ended);
  end if;
end $$;
