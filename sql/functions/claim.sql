-- The claim of workers and receivers, in steps. Each step is a statement or more, with a snapshot
-- younger than the locks of the step before.
--
-- *front*: where the queue's lines begin (front.sql). *room*: what its limits leave (room.sql).
-- *lock*: rows of groups in line (lock.sql), and groups that flags call for (adopt.sql). *read*:
-- their heads (head.sql). *start*: what may run (start.sql). *defer*: the rest (defer.sql). Jobs
-- without a group need one step (ungrouped.sql).

-- Claims heads of up to `slots` groups from the front on; `lapsed`: only those whose claims lapsed.
--
-- Turns that start nothing do not use the claim up: it takes further ones, for 8 rounds, and for
-- 50 ms if those took less; flags it reads for 30 ms. Where it gates groups, each a write, it ends
-- after 100 ms. A receiver has a fifth of that. If the time is over first, and slots are free, it
-- looks at the ends of both lines as well: what has just become due starts behind any number of
-- groups that cannot start (P8). The next claims go on behind the flags that it read, with all that
-- is between.
--
-- A worker's followers wait for their head's slot. A receiver gets them now, when no other group is
-- due; with `followers` above 0 it fills up from one group before it takes the next.
create or replace function {schema}.claim_groups(terms {schema}.claim_terms, limits {schema}.claim_limits,
  front {schema}.claim_front, lapsed boolean, until_at timestamptz, per_key integer)
  returns {schema}.claim_answer
language plpgsql volatile as $$
declare
  answer {schema}.claim_answer; scan {schema}.claim_scan; wanted {schema}.claim_limits := limits;
  began constant timestamptz := clock_timestamp(); locked record; started record;
  over_at timestamptz := began + case when terms.receiver then interval '10 ms' else interval '50 ms' end;
  brought integer; held integer; last boolean; rows_left boolean; many boolean;
begin
  answer.jobs := '{}';
  answer.size := 0;
  answer.more := false;
  answer.others := false;
  scan.others := false;
  scan.part := case when lapsed then 'lapsed' else 'line' end;
  scan.page := limits.slots;
  scan.groups_at := front.groups_at;
  scan.flags_at := front.flags_at;
  scan.flags_id := front.flags_id;
  scan.read_until := began + case when terms.receiver then interval '6 ms' else interval '30 ms' end;
  scan.together := terms.receiver and limits.followers > 0 and terms.group_id is null;
  scan.reading := '0';
  scan.full_keys := '{}';
  for round in 1..1000 loop
    locked := {schema}.lock_next(terms, scan, wanted.slots, until_at);
    scan := locked.scan;
    last := locked.last;
    held := coalesce(cardinality(locked.turns), 0);
    brought := 0;
    if cardinality(locked.turns) > 0 then
      locked.turns := {schema}.read_heads(terms, locked.turns);
    end if;
    if cardinality(locked.turns) > 0 then
      wanted.followers := case when not terms.receiver then limits.followers - cardinality(answer.jobs)
        when last or scan.together then wanted.slots else 0 end;
      started := {schema}.start_turns(terms, wanted, locked.turns, scan.full_keys, per_key);
      scan.full_keys := started.full_keys;
      if cardinality(started.turns) > 0 then
        perform {schema}.defer_turns(terms, started.turns);
      end if;
      brought := cardinality(started.jobs);
      held := held - started.heads;
      answer.jobs := answer.jobs || started.jobs;
      answer.size := answer.size + started.size;
      answer.more := started.more;
      wanted.slots := wanted.slots - case when terms.receiver then brought else started.heads end;
      wanted.bytes := wanted.bytes - started.size;
      wanted.in_flight := wanted.in_flight - brought;
      -- A round that brings jobs does not use the time up.
      scan.read_until := scan.read_until + brought * interval '0.3 ms';
      over_at := over_at + brought * interval '0.3 ms';
    end if;
    answer.others := answer.others or held > 0 or scan.others;
    exit when answer.more or wanted.slots < 1 or last and scan.late is not true;
    answer.more := wanted.bytes <= 0;
    exit when answer.more;
    if scan.part in ('flags', 'end') then
      answer.more := true;
      exit when scan.part = 'end' or not rows_left;
      scan.part := 'end';
      continue;
    end if;
    scan.groups_at := scan.rows_until;
    if last or round >= 8 and clock_timestamp() > over_at
      or scan.full_keys <> '{}' and clock_timestamp() > over_at + (over_at - began)
    then
      answer.more := true;
      exit when lapsed or terms.group_id is not null;
      rows_left := not last;
      scan.part := case when scan.flags_at is null then 'end' else 'flags' end;
    else
      scan.page := case when brought > 0 or locked.filled is not true or terms.receiver then wanted.slots
        else least(greatest(scan.page, 8) * 4, 256) end;
    end if;
  end loop;
  -- Other transactions hold what else is due in line, perhaps for hours.
  answer.groups_at := case when last and not answer.more then until_at else scan.groups_at end;
  -- Few flags cost a read less than a write: those of jobs that run go with the ends of these.
  -- Other flags would call a worker again, and many would be read by each claim.
  many := scan.passed >= 256 or scan.passed > 0 and scan.reading > interval '2 ms';
  if not terms.receiver and (many or scan.passed > 0 and answer.jobs = '{}') then
    -- The jobs that were claimed here do not wait long for it.
    perform {schema}.tidy_flags(terms.queue, scan.idle, scan.resting,
      clock_timestamp() + case when answer.jobs = '{}' then interval '50 ms' else interval '5 ms' end, many);
  end if;
  answer.slots := limits.slots - wanted.slots;
  answer.reading := scan.reading;
  answer.late := scan.late;
  answer.more := answer.more or scan.more_flags is true
    or scan.reached_at is not null and scan.flags_at is not null;
  -- Null: it has read all.
  answer.flags_id := case when scan.flags_at is not null or scan.more_flags then scan.reached_id end;
  answer.flags_at := case when scan.reached_at is null or scan.flags_at is not null or scan.more_flags
    then scan.reached_at else until_at end;
  return answer;
end $$;

-- Claims jobs of a queue: of groups and without one, in turn which first, and before both what
-- lapsed. One short transaction for all free slots of a queue, bounded in rows, bytes and time.
--
-- Under a pinned vacuum horizon, or with many groups held, a claim reads past all dead or locked
-- entries to what is due, and to what will be due next. So it says how long it read, and the front
-- up to which it has left nothing that it could take. The next claims may begin there. They miss
-- what comes in below: a late commit, a priority, a released claim. They do not ask what will be
-- due. A claim from the beginning finds it, now and then. Beginning a little lower makes missed
-- late commits rare: enqueues have the time of their transaction's begin, turns that of their end.
create or replace function {schema}.claim(terms {schema}.claim_terms, limits {schema}.claim_limits,
  behind {schema}.claim_front, ungrouped_first boolean) returns {schema}.claim_answer
language plpgsql volatile as $$
declare
  answer {schema}.claim_answer; began constant timestamptz := clock_timestamp(); at timestamptz;
  due record; front {schema}.claim_front; room record; paused boolean := false; kind text;
  part {schema}.claim_answer; wanted {schema}.claim_limits; starts bigint;
  waits boolean := false; simple boolean := false; per_key integer; woken_at timestamptz;
  freed_at timestamptz; looks_from timestamptz;
begin
  answer.jobs := '{}';
  answer.more := false;
  answer.others := false;
  -- Whatever has moved to the front is read again. A receiver ages no more than it may take.
  for pass in 1..3 loop
    due := {schema}.read_front(terms, behind, began);
    exit when due.bound = 'paused' or not due.aging or terms.group_id is not null
      or pass > case when terms.receiver then 1 else 2 end;
    answer.others := true;
    answer.more := {schema}.age_priorities(terms.queue, began, case when terms.receiver
      then least(limits.slots, 256) else 256 end);
    -- It may be before where this claim begins to read.
    behind := row('-infinity', '-infinity', 0, '-infinity')::{schema}.claim_front;
  end loop;
  -- The stored limit of the queue goes before its worker's.
  terms.default_attempts := coalesce(due.max_attempts, terms.default_attempts);
  -- The look has locked one of these.
  answer.others := answer.others or due.lapsed;
  answer.reading := clock_timestamp() - began;
  if due.bound = 'limited' then
    room := {schema}.queue_room(terms.queue);
    if room.busy then
      answer.more := true;
      return answer;
    end if;
    paused := room.paused is true;
    limits.in_flight := room.in_flight;
    starts := room.starts;
    per_key := room.per_key;
    answer.limited := coalesce(starts, room.in_flight, per_key) is not null;
    if starts = 0 and not paused then
      answer.more := false;
      answer.next := room.wait;
      return answer;
    end if;
    limits.slots := least(limits.slots, starts);
    if room.spaced or coalesce(starts, room.in_flight) is not null and not terms.receiver then
      -- Followers are in flight, or started, and would only wait.
      terms.per_turn := 1;
    end if;
  end if;
  if due.bound = 'paused' or paused then
    answer.more := false;
    answer.next := {schema}.due_in(terms.queue);
    return answer;
  end if;
  if per_key = 0 and terms.receiver and terms.group_id is not null and not exists (
    select from {schema}.key_limit l where l.queue = terms.queue)
  then
    -- The limit was removed. Groups that waited for it are woken by claims of all groups.
    per_key := null;
  end if;
  if per_key is not null then
    answer.others := answer.others or per_key > 0 or exists (
      select from {schema}.freed_slot f
      where f.queue = terms.queue and f.freed_at >= behind.groups_at limit 1);
    -- These groups are in line before where this claim begins to read.
    woken_at := {schema}.wake_gated(terms.queue, per_key, least(limits.slots, limits.in_flight),
      behind.groups_at);
    due.groups_at := least(due.groups_at, woken_at);
    -- If it woke none, other transactions have all keys of before.
    looks_from := case when woken_at is null then greatest(behind.groups_at, began)
      else behind.groups_at end;
  end if;
  front := row(due.groups_at, due.flags_at,
    case when due.flags_at = behind.flags_at then behind.flags_id else 0 end,
    due.ungrouped_at)::{schema}.claim_front;

  if due.bound is null and not (terms.receiver or due.lapsed) and due.ungrouped_at is null
    and terms.group_id is null and behind.groups_at = '-infinity' and behind.flags_at = '-infinity'
  then
    simple := due.groups_at is null and due.flags_at is null;
    if not simple then
      part := {schema}.claim_simply(terms, limits, due.flags_at is not null, began);
      simple := part.jobs is not null;
    end if;
    if part.jobs is not null then
      answer.jobs := part.jobs;
      answer.more := answer.more or part.more;
      answer.reading := answer.reading + part.reading;
      answer.groups_at := part.groups_at;
      answer.flags_at := part.flags_at;
      limits.slots := limits.slots - part.slots;
    end if;
  end if;
  -- A lapsed claim is rare, and first: behind busy groups there would never be room for it. It is
  -- in flight, and goes on if the limit is reached.
  foreach kind in array case when simple then '{}'::text[] when ungrouped_first
    then array['lapsed jobs', 'lapsed groups', 'jobs', 'groups', 'woken groups']
    else array['lapsed jobs', 'lapsed groups', 'groups', 'jobs', 'woken groups'] end
  loop
    wanted := limits;
    if kind in ('jobs', 'groups', 'woken groups') then
      wanted.slots := least(limits.slots, limits.in_flight);
    end if;
    continue when wanted.slots < 1;
    answer.more := answer.more or limits.bytes < 1;
    exit when limits.bytes < 1;
    if kind = 'lapsed jobs' then
      continue when not due.lapsed;
      perform {schema}.suspect_ungrouped(terms.queue, began,
        case when terms.receiver then limits.slots else 1000 end);
      part := {schema}.claim_ungrouped(terms, wanted, null, began);
    elsif kind = 'jobs' then
      continue when front.ungrouped_at is null or terms.group_id is not null;
      part := {schema}.claim_ungrouped(terms, wanted, front.ungrouped_at, began);
    elsif kind = 'woken groups' then
      -- Slots that came free meanwhile, or that a woken group has passed on.
      continue when per_key is null;
      woken_at := {schema}.wake_gated(terms.queue, per_key, wanted.slots, looks_from);
      continue when woken_at is null;
      answer.others := true;
      part := {schema}.claim_groups(terms, wanted,
        row(woken_at, null, 0, null)::{schema}.claim_front, false, began, per_key);
    elsif kind = 'lapsed groups' then
      continue when limits.in_flight is null or front.groups_at is null;
      part := {schema}.claim_groups(terms, wanted,
        row(front.groups_at, null, 0, null)::{schema}.claim_front, true, began, per_key);
    else
      continue when front.groups_at is null and front.flags_at is null;
      part := {schema}.claim_groups(terms, wanted, front, false, began, per_key);
      answer.groups_at := part.groups_at;
      answer.flags_at := part.flags_at;
      answer.flags_id := part.flags_id;
      answer.late := part.late;
    end if;
    answer.reading := answer.reading + coalesce(part.reading, '0');
    answer.more := answer.more or part.more;
    answer.others := answer.others or part.others;
    answer.jobs := answer.jobs || part.jobs;
    limits.bytes := limits.bytes - part.size;
    limits.slots := limits.slots - part.slots;
    if kind in ('jobs', 'groups', 'woken groups') then
      limits.in_flight := limits.in_flight - cardinality(part.jobs);
    end if;
  end loop;

  if per_key is not null and not answer.more then
    -- A slot that this claim could not pass on, or that came free in it.
    freed_at := {schema}.freed_at(terms.queue, behind.groups_at);
    answer.more := coalesce(freed_at <= clock_timestamp(), false);
  end if;
  if starts is not null then
    answer.next := {schema}.count_starts(terms.queue,
      (select count(*) from unnest(answer.jobs) c where c.disposition = 'run'));
    waits := answer.next is not null;
    answer.more := answer.more and not waits;
  end if;
  if not answer.more and limits.slots < 1 and not waits then
    -- Not taken, for want of a slot or because other transactions have them.
    answer.more := (select f.ready_at from {schema}.first_group(terms.queue,
          coalesce(answer.groups_at, front.groups_at), began) f) is not null
      or (select f.turn_at from {schema}.first_ungrouped(terms.queue, front.ungrouped_at, began) f)
        is not null
      or answer.flags_at is null and (
        select {flag_at} from {schema}.job j
        where j.queue = terms.queue and j.flagged and {flag_at} <= began and {flag_at} >= front.flags_at
          -- The flags of what it has claimed go with the ends of those jobs.
          and j.id <> all (array(select c.id from unnest(answer.jobs) c))
        order by {flag_at} limit 1) is not null;
  end if;
  if behind.groups_at = '-infinity' and not answer.more and not terms.receiver and not waits then
    at := clock_timestamp();
    if not simple or part.jobs is not null then
      -- The leases of this claim count as well: one poll too many.
      due.next_at := least(freed_at, (select n.next_at from {schema}.next_due(terms.queue, began) n));
    end if;
    answer.next := extract(epoch from due.next_at - clock_timestamp());
    answer.reading := answer.reading + (clock_timestamp() - at);
  end if;
  -- A client may not read times before Christ.
  answer.groups_at := greatest(
    least(coalesce(answer.groups_at, front.groups_at), began - interval '0.25 s'), 'epoch');
  if answer.flags_at is null and front.flags_at is not null then
    -- It has read none.
    answer.flags_at := front.flags_at;
    answer.flags_id := front.flags_id;
  end if;
  if answer.late is not true and coalesce(answer.flags_at > began - interval '1 s', true) then
    answer.flags_at := began - interval '1 s';
    answer.flags_id := answer.flags_id * 0;
  end if;
  answer.flags_at := greatest(answer.flags_at, 'epoch');
  answer.ungrouped_at := greatest(least(front.ungrouped_at, began - interval '1 s'), 'epoch');
  return answer;
end $$;

-- A worker's claim: a row for each job with what its handler needs, and a last row without an id
-- that says how the claim ended.
create or replace function {schema}.claim_jobs(terms {schema}.claim_terms, limits {schema}.claim_limits,
  behind {schema}.claim_front, ungrouped_first boolean)
returns table (
  id bigint, data text, payload bytea, content_type text, attempts integer, attempts_forgiven integer,
  snoozes smallint, max_attempts integer, timeout_ms bigint, lease_ms bigint, created_at timestamptz,
  run_at timestamptz, name text, reference text, priority smallint, headers text, cancel_requested boolean,
  group_id text, expires_at timestamptz, claim uuid, disposition text, ready_at timestamptz, lost_by text,
  answer text)
language plpgsql volatile as $$
#variable_conflict use_column
declare
  claimed {schema}.claim_answer;
begin
  if current_setting('transaction_isolation') <> 'read committed'
    or current_setting('transaction_read_only') <> 'off'
  then
    -- Each statement needs a snapshot of its own: a last row without an answer asks for another
    -- transaction, whatever the caller's session has decided.
    return next;
    return;
  end if;
  -- The answer is text, in the form that the library reads.
  perform {pin}, set_config('synchronous_commit', 'on', true), set_config('DateStyle', 'ISO, MDY', true),
    set_config('TimeZone', 'UTC', true), set_config('bytea_output', 'hex', true);
  claimed := {schema}.claim(terms, limits, behind, ungrouped_first);
  if claimed.jobs <> '{}' then
    return query
      -- Large data is left to the attempt. With `bytes` of 1 all data is: it may not be readable.
      select j.id, case when {is_small} then j.data::text end, case when {is_small} then j.payload end,
        j.content_type,
        -- The row of a job without a group counts it already.
        j.attempts + (j.group_id is not null and c.disposition = 'run')::integer,
        j.attempts_forgiven, j.snoozes,
        coalesce(j.max_attempts, (
          select q.max_attempts from {schema}.queue q where q.name = terms.queue))::integer,
        j.timeout_ms::bigint, j.lease_ms::bigint, j.created_at, j.run_at, j.name, j.reference,
        j.priority::smallint, j.headers::text, c.disposition = 'cancelled',
        j.group_id, j.expires_at, c.token, c.disposition, c.ready_at, c.lost_by, null::text
      from unnest(claimed.jobs) c join {schema}.job j on j.id = any (array[c.id]);
  end if;
  claimed.jobs := null;
  answer := to_jsonb(claimed) || jsonb_build_object('claimed_at', clock_timestamp(),
    'reading', extract(epoch from claimed.reading));
  return next;
end $$;
