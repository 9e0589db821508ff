-- Returns whether this transaction has written no group's row yet as a receiver, and notes that it
-- does now. A row that it has written it must not delete: a share lock follows the versions of a
-- row to the last one, and waits for a transaction that has deleted that, for as long as it is
-- open.
create or replace function receiver_may_retire() returns boolean
language plpgsql volatile as $$
declare
  wrote constant text := current_setting('seriatim.receiver_wrote', true);
begin
  perform set_config('seriatim.receiver_wrote', 'on', true);
  return wrote is distinct from 'on';
end $$;

-- Claims for a receive. Returns the jobs in the order of the answer, with the tokens of their
-- claims, and the answer of the first round. `others`: it has locked or written rows that are not
-- of these jobs and their groups.
--
-- A receive is a claim. Its token is in every receipt, and its visibility is its lease: `ready_at`
-- of the group, or `lease_until` of a job without one. Several jobs of a group that are received
-- together have one claim, whose `batch` are those that have not ended. `claimed_by` is null: no
-- presence vouches for a receiver.
--
-- Jobs that must not run end here, and other jobs are claimed in their place, within bounds.
create or replace function receive_claim(terms claim_terms, n integer, together boolean, scan flag_scan,
  out jobs bigint[], out tokens uuid[], out first claim_answer, out others boolean)
language plpgsql volatile as $$
declare
  claimed claim_answer; job claimed_job; token uuid; unfit boolean; ended boolean := false;
begin
  jobs := '{}';
  tokens := '{}';
  others := false;
  terms.may_retire := receiver_may_retire();
  for round in 1..20 loop
    claimed := claim(terms,
      row(n - cardinality(jobs), case when together then n else 0 end, {claim_bytes}, null)::claim_limits,
      row('-infinity', coalesce(scan.flags_at, '-infinity'), coalesce(scan.flags_id, 0),
        '-infinity')::claim_front,
      random() < 0.5);
    terms.may_retire := false;
    if round = 1 then
      first := claimed;
    end if;
    others := others or claimed.others;
    unfit := false;
    foreach job in array claimed.jobs loop
      -- Followers share the token of their head.
      token := coalesce(job.token, token);
      if job.disposition = 'run' then
        jobs := jobs || job.id;
        tokens := tokens || token;
      else
        unfit := true;
        perform end_unfit(job.id, token, job.disposition);
      end if;
    end loop;
    ended := ended or unfit;
    exit when cardinality(jobs) >= n or not unfit;
  end loop;
  -- The group of a job that ended is returned if its next job is.
  others := others or ended and (terms.group_id is null or jobs = '{}');
end $$;

-- Claims jobs without a group by their ids: as `receive_claim`.
create or replace function receive_chosen(terms claim_terms, chosen bigint[], out jobs bigint[],
  out tokens uuid[], out others boolean)
language plpgsql volatile as $$
declare
  limits constant claim_limits := row(cardinality(chosen), 0, {claim_bytes}, null);
  lapsed constant claim_answer := claim_ungrouped(terms, limits, null, clock_timestamp(), chosen);
  queued constant claim_answer := claim_ungrouped(terms, limits, '-infinity', clock_timestamp(), chosen);
begin
  select coalesce(array_agg(c.id), '{}'), coalesce(array_agg(c.token), '{}'),
      lapsed.others or queued.others or count(*) filter (where c.disposition <> 'run') > 0
    into jobs, tokens, others
  from unnest(lapsed.jobs || queued.jobs) c;
end $$;

-- Claims for a receive, and locks only the rows of what it returns: the transaction may stay open
-- (P3, P5). If a claim has locked other rows, it is rolled back, which releases them, and the same
-- jobs are claimed by name. Whatever the other rows need is done as the transaction commits
-- (`upkeep`), or by anybody who comes before.
create or replace function receive_apart(terms claim_terms, n integer, together boolean, scan flag_scan,
  out jobs bigint[], out tokens uuid[], out first claim_answer)
language plpgsql volatile as $$
declare
  claimed record; unit record; part record; left_out text[] := '{}';
begin
  begin
    claimed := receive_claim(terms, n, together, scan);
    if claimed.others then
      raise sqlstate 'SQ000';
    end if;
    jobs := claimed.jobs;
    tokens := claimed.tokens;
    first := claimed.first;
    return;
  exception when sqlstate 'SQ000' then
    first := claimed.first;
  end;
  -- The caller may have set all constraints to be immediate.
  set constraints upkeep_at_commit deferred;
  insert into upkeep_due (queue) values (terms.queue);
  -- A group that has changed since is left out.
  for try in 1..3 loop
    begin
      jobs := '{}';
      tokens := '{}';
      for unit in
        select j.group_id as name, array_agg(c.id) as ids
        from unnest(claimed.jobs) with ordinality c(id, place) join job j on j.id = any (array[c.id])
        where coalesce(j.group_id, '') <> all (left_out)
        group by j.group_id order by min(c.place)
      loop
        if unit.name is null then
          part := receive_chosen(terms, unit.ids);
        else
          terms.group_id := unit.name;
          part := receive_claim(terms, cardinality(unit.ids), true, null);
        end if;
        if part.others then
          raise sqlstate 'SQ000';
        end if;
        jobs := jobs || part.jobs;
        tokens := tokens || part.tokens;
      end loop;
      exit;
    exception when sqlstate 'SQ000' then
      left_out := left_out || coalesce(unit.name, '');
      jobs := '{}';
      tokens := '{}';
    end;
  end loop;
  select coalesce(array_agg(c.id order by c.place), '{}'), coalesce(array_agg(c.token order by c.place), '{}')
    into jobs, tokens
  from (select c.id, c.token, row(array_position(claimed.jobs, c.id), c.place) as place
    from unnest(jobs, tokens) with ordinality c(id, token, place)) c;
end $$;

-- Claims for a receive of a queue, and notes how far it has read the queue's flags.
create or replace function receive_jobs(of_queue text, n integer, per_group integer, visibility interval,
  of_group text, together boolean, limited boolean, out jobs bigint[], out tokens uuid[])
language plpgsql volatile as $$
declare
  terms constant claim_terms := row(of_queue, of_group, true, null,
    coalesce((select q.max_attempts from queue q where q.name = of_queue), {default_attempts}),
    extract(epoch from visibility), false, null, per_group, false);
  scan flag_scan; claimed record;
begin
  if of_group is null then
    scan := flags_to_read(of_queue);
  end if;
  if limited then
    claimed := receive_claim(terms, n, together, scan);
  else
    claimed := receive_apart(terms, n, together, scan);
  end if;
  jobs := claimed.jobs;
  tokens := claimed.tokens;
  if of_group is null then
    perform note_flags_read(of_queue, scan, claimed.first);
  end if;
end $$;

-- Lets a transaction that receives from a queue with a limit stay open for a moment only: until its
-- commit the receive has locked what the limit is counted by, the row of the queue or of the key.
create or replace function commit_soon(of_queue text) returns void
language plpgsql volatile as $$
declare
  setting text; most interval;
begin
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'queue % has a limit, so a receive from it must be a transaction of its own',
      quote_literal(of_queue) using errcode = '25001',
      detail = 'This transaction has written already. A limit is counted until a receive commits.',
      hint = 'Receive on a connection with autocommit, and ack in the transaction of the work.';
  end if;
  foreach setting in array array['idle_in_transaction_session_timeout', 'transaction_timeout'] loop
    most := case when setting = 'transaction_timeout' then {open_limited} * 5 else {open_limited} end;
    if coalesce(current_setting(setting, true)::interval not between interval '1 us' and most, false) then
      perform set_config(setting, (extract(epoch from most) * 1000)::bigint::text, true);
    end if;
  end loop;
end $$;

-- Keeps no group in two answers of `n` jobs each: the jobs that would begin an answer behind others
-- of their group are queued again. Returns the others, and their tokens.
create or replace function cut_answers(n integer, of_jobs bigint[], of_tokens uuid[],
  out jobs bigint[], out tokens uuid[])
language plpgsql volatile as $$
declare
  place integer := 0;
  last uuid;
  kept integer[] := '{}';
  cut integer[] := '{}';
begin
  for i in 1..cardinality(of_jobs) loop
    if place = n then
      place := 0;
    end if;
    if place = 0 and of_tokens[i] = last then
      cut := cut || i;
    else
      kept := kept || i;
      place := place + 1;
    end if;
    last := of_tokens[i];
  end loop;
  jobs := array(select of_jobs[k.i] from unnest(kept) k(i));
  tokens := array(select of_tokens[k.i] from unnest(kept) k(i));
  if cut <> '{}' then
    perform receive_pass(c.tokens, array_fill(null::bigint, array[cardinality(c.tokens)]),
      array(select of_jobs[c.i] from unnest(cut) c(i)))
    from (select array(select distinct of_tokens[c.i] from unnest(cut) c(i)) as tokens) c;
  end if;
end $$;

-- Receives up to `n` jobs (at most 1000; of one named group at most 10): the heads of the groups
-- served least recently, and jobs without a group. If that is fewer than `n`, further jobs of the
-- same groups follow, in order, up to 10 of a group. With `together` up to 10 jobs of the first
-- group come first, then those of the next. No rows, and no error, if nothing is due, if the queue
-- is paused or has reached its limit in flight, or if all groups with due jobs run, are halted or
-- are paused: queue_overview tells which it is.
--
-- No other receiver or worker gets these jobs, nor others of their groups, until each is acked or
-- nacked, or its `visibility` (0 to 12 h) has been over for a grace. A job that is taken over comes
-- alone, so that the next death is charged to the right one. With the queue's `strict_visibility`
-- there is no grace, and its jobs come together again.
--
-- With `requests` it receives for several clients at once, up to `n` jobs for each. Together these
-- are at most 1000. The first `n` rows are for the first, and so on: no group is in two of these.
--
-- A call that repeats an `attempt_id` within 5 minutes gets the same jobs with the same receipts,
-- for the whole visibility again, as far as their claims still stand. If none does, it is a new
-- receive.
--
-- Call it in a transaction of its own, and commit at once. Until the commit it has locked the jobs
-- that it returned and their groups, and no others. If the queue has a limit of jobs in flight, a
-- rate, or a limit per key, the receive has locked the count of the limit too. There it refuses a
-- transaction that has written before (25001), and the server ends the session of a transaction
-- that is left idle for a second.
create or replace function receive(
  queue text, n integer default 1, visibility interval default '30 s', group_id text default null,
  attempt_id text default null, together boolean default false, requests integer default 1
) returns setof received
language plpgsql volatile set search_path from current {pinned} as $$
#variable_conflict use_column
declare
  of_queue constant text := queue;
  of_group constant text := group_id;
  of_attempt constant text := attempt_id;
  job_limit constant integer := case when group_id is null then 1000 else 10 end;
  jobs bigint[] := '{}';
  tokens uuid[] := '{}';
  earlier receive_attempt;
  states text[];
  limited constant boolean := coalesce((
    select coalesce(q.in_flight_limit, q.rate, nullif(q.limit_per_key, 0)) is not null
      or q.limit_per_key = 0 and exists (select from key_limit l where l.queue = q.name)
    from queue q where q.name = receive.queue), false);
begin
  perform check_isolation('receive');
  perform check_queue(of_queue);
  perform check_name('group', of_group, {group_limit});
  perform check_name('receive attempt id', of_attempt, {dedup_limit});
  perform check_visibility(visibility);
  if n is null or n < 1 or n > job_limit then
    raise exception 'n is %, it must be from 1 to %', coalesce(n::text, 'null'), job_limit
      using errcode = '22023', hint = 'Receive again for more.';
  end if;
  if requests is null or requests < 1 or requests > 1000 / n then
    raise exception 'requests is %, for % jobs each it must be from 1 to %',
      coalesce(requests::text, 'null'), n, 1000 / n using errcode = '22023', hint = 'Receive again for more.';
  elsif requests > 1 and (of_group is not null or of_attempt is not null) then
    raise exception 'several requests are received for, and a group or an attempt id is given'
      using errcode = '22023', hint = 'Leave requests out: both are of one.';
  end if;
  if current_setting('seriatim.held', true) = of_queue then
    raise exception 'this transaction holds a job of queue %, which receive could return', of_queue
      using errcode = '22023', hint = 'Call it on a connection of its own.';
  end if;
  if limited then
    perform commit_soon(of_queue);
  end if;
  perform note_receiver(of_queue);
  -- A crash of the server must not lose an attempt (P9).
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;

  if of_attempt is not null then
    -- If the same call runs at this moment, that one answers.
    if not pg_try_advisory_xact_lock(hashtextextended(
      'seriatim receive ' || quote_literal(current_schema()) || quote_literal(of_queue)
        || quote_literal(of_attempt), 0))
    then
      return;
    end if;
    select a.* into earlier from receive_attempt a
    where a.queue = of_queue and a.attempt_id = of_attempt and a.expires_at > clock_timestamp();
    if earlier.jobs is not null then
      states := settle_receipts('extend', earlier.jobs, earlier.tokens, null, visibility, null);
      select coalesce(array_agg(e.job), '{}'), coalesce(array_agg(e.token), '{}') into jobs, tokens
      from unnest(earlier.jobs, earlier.tokens, states) e(job, token, state) where e.state = 'done';
    end if;
  end if;

  if jobs = '{}' then
    begin
      select c.jobs, c.tokens into jobs, tokens
      from receive_jobs(of_queue, n * requests, least(n, 10), visibility, of_group,
        coalesce(receive.together, false), limited) c;
      if requests > 1 then
        select c.jobs, c.tokens into jobs, tokens from cut_answers(n, jobs, tokens) c;
      end if;
    exception when lock_not_available then
      -- A statement was about to wait for another transaction. Its locks are free again.
      return;
    end;
  end if;
  if of_attempt is not null and earlier.jobs is distinct from jobs then
    insert into receive_attempt as a (queue, attempt_id, jobs, tokens, expires_at)
    select of_queue, of_attempt, jobs, tokens, clock_timestamp() + interval '5 min' where jobs <> '{}'
    on conflict (queue, attempt_id) do update
    set jobs = excluded.jobs, tokens = excluded.tokens, expires_at = excluded.expires_at;
  end if;
  return query
    select r.id || '.' || r.token, j.id, j.group_id, j.attempts + (g.started_at is not null)::integer, j.data,
      j.payload, j.content_type, j.name, j.reference, j.created_at, coalesce(j.lease_until, g.ready_at),
      -- As ActiveJob::key.
      j.id || '-' || (extract(epoch from j.created_at) * 1000000)::bigint, j.headers, j.attributes,
      j.dedup_id,
      coalesce((j.history -> 0 ->> 'started_at')::timestamptz, g.started_at, j.last_started_at), j.moved_from,
      -- A first attempt has none: jobs that keep none pay nothing.
      case when j.attempts + (g.started_at is not null)::integer > 1
        then (select p.checkpoint from job_progress p where p.job_id = j.id limit 1) end
    from unnest(jobs, tokens) with ordinality r(id, token, place)
    join job j on j.id = any (array[r.id])
    left join queue_group g
      on g.queue = any (array[j.queue]) and g.group_id between j.group_id and j.group_id
    order by r.place;
end $$;
