-- Returns the turn of the first group that is due and that no other transaction has locked, without
-- locking it for longer than that takes. A receiver must not keep a group that it does not take.
create or replace function {schema}.next_free_turn(of_queue text, from_at timestamptz, until_at timestamptz) returns timestamptz
language plpgsql volatile
as $$
declare
  turn_at timestamptz;
begin
  select g.ready_at into turn_at from {schema}.queue_group g
  where g.queue = of_queue and g.ready_at <= until_at and g.ready_at < 'infinity' and g.ready_at >= from_at
  order by g.ready_at limit 1 for no key update skip locked;
  raise sqlstate 'SQ000';
exception when sqlstate 'SQ000' then
  return turn_at;
end $$;

-- Returns how many turns from the beginning of the line on have `want` jobs together, at most
-- `per_turn` of a group. It locks nothing. Jobs that are not due count, so there may be too few
-- turns, which costs another round. A group that another transaction has locked counts as well, so
-- there may be too many: then the answer has a group more.
create or replace function {schema}.turns_to_fill(of_queue text, want integer, per_turn integer, line_at timestamptz, flags_from timestamptz,
  until_at timestamptz) returns integer
language plpgsql volatile
as $$
declare
  turn record; turns integer := 0; jobs bigint := 0;
begin
  if want = 1 then
    return 1;
  end if;
  for turn in
    select l.name, l.from_id from (
      (select g.group_id as name, g.head_id as from_id, g.ready_at as due_at
        from {schema}.queue_group g
        where g.queue = of_queue and g.ready_at <= until_at and g.ready_at < 'infinity' and g.ready_at >= line_at
        order by g.ready_at limit want)
      union all
      select f.name, min(f.id), min(f.due_at)
      from (select j.group_id as name, j.id, {flag_at} as due_at from {schema}.job j
        where j.queue = of_queue and j.flagged and {flag_at} <= until_at and {flag_at} >= flags_from
        order by {flag_at} limit want) f
      where (select g.group_id from {schema}.queue_group g
        where g.queue = of_queue and g.group_id between f.name and f.name
        order by g.group_id desc limit 1) is null
      group by f.name) l
    order by l.due_at
  loop
    turns := turns + 1;
    jobs := jobs + (
      select count(*) from (select j.id from {schema}.job j
        where j.queue = of_queue and (j.group_id, j.id) >= (turn.name, turn.from_id) and j.group_id <= turn.name
          and j.group_id is not null and j.status in ('queued', 'started')
        order by j.group_id, j.id limit per_turn) j);
    exit when jobs >= want;
  end loop;
  return greatest(turns, 1);
end $$;

-- Locks the rows of up to `n` groups that are due, from the end of the line on: a turn that has just
-- been passed on, behind more turns that start nothing than a claim can look at.
--
-- Locks: group rows NO KEY UPDATE, skips.
create or replace function {schema}.lock_last_turns(of_queue text, n integer, from_at timestamptz,
  until_at timestamptz,
  out turns {schema}.locked_turns, out ready_ats timestamptz[], out owners text[])
language plpgsql volatile
as $$
begin
  select array_agg(g.group_id), array_agg(g.head_id), array_agg(g.job_id),
      array_agg(g.suspected), array_agg(g.line), max(g.ready_at), array_agg(g.aged_at), array_agg(g.owner)
    into turns.names, turns.heads, turns.jobs, turns.suspected, turns.lines, turns.last_at,
      ready_ats, owners
  from (select g.group_id, g.head_id, g.job_id, g.ready_at, g.ctid as line,
      g.ready_at - g.aging_priority * {priority_aging} as aged_at,
      case when g.job_id is not null then
        case when g.claimed_by is null then 'receiver' else 'worker' end end as owner,
      case when g.job_id is not null then
        g.strict is true or {schema}.is_suspected(g.suspect, g.claim, g.ready_at) end as suspected
    from {schema}.queue_group g
    where g.queue = of_queue and g.ready_at <= until_at and g.ready_at < 'infinity' and g.ready_at > from_at
    order by g.ready_at desc limit n for no key update skip locked) g;
end $$;

-- Claims heads of up to `want` groups: ready rows from `line_at` on, and flags behind `flag_at`,
-- `flag_id`, in the order of the line; null: there are none. `lapsed`: only those whose claims
-- lapsed.
--
-- Turns that start nothing do not use the claim up: it takes further ones, for 8 rounds, and for
-- 50 ms if those took less; flags it reads for 30 ms. A receiver has a fifth of that. If the time is
-- over first, and slots are free, it looks at the end of the line as well: what has just become due
-- starts behind any number of groups that cannot start (P8). What is between is for the next claims,
-- which go on behind `flags_at`, `flags_id`. Rows that other transactions have locked hide no flag.
--
-- A worker locks rows first, and adopts flags that are before the last of them. A receiver may
-- leave its transaction open: it adopts only flags that are before the next free row, and so takes
-- all that it has adopted. It clears no flags of other groups. It takes followers when no other
-- group is due. With `at_most` above 0 it fills up from one group before it takes the next.
-- `room` is how many jobs may begin.
create or replace function {schema}.claim_groups(of_queue text, of_group text, want integer, room bigint, lapsed boolean,
  line_at timestamptz, flag_at timestamptz, flag_id bigint, until_at timestamptz,
  default_attempts integer, lease_seconds float8, own_lease boolean, processor bigint,
  ignore_before timestamptz, per_turn integer, at_most integer, max_bytes bigint, worker boolean,
  may_retire boolean,
  out jobs bigint[], out tokens uuid[], out dispositions text[], out more boolean,
  out groups_at timestamptz, out flags_at timestamptz, out flags_id bigint, out late boolean,
  out reading interval, out size bigint, out ready_ats timestamptz[], out lost_by text[])
language plpgsql volatile
as $$
declare
  began constant timestamptz := clock_timestamp();
  read_until timestamptz := began + case when worker then interval '30 ms' else interval '6 ms' end;
  over_at timestamptz := began + case when worker then interval '50 ms' else interval '10 ms' end;
  together constant boolean := not worker and at_most > 0 and of_group is null;
  at timestamptz; segment timestamptz := until_at; free_at timestamptz; part text := 'line';
  adopts boolean; in_hand boolean; last boolean; crowded boolean := false; more_flags boolean := false;
  rows_left boolean := false; idle text[] := '{}'; resting text[] := '{}'; first_at timestamptz;
  page integer := want;
  taken integer; ready integer; started integer; brought integer;
  adoption record; came record; locked record; turn_ats timestamptz[]; owners text[];
  turns {schema}.locked_turns; heads {schema}.turn_heads;
begin
  jobs := '{}';
  tokens := '{}';
  dispositions := '{}';
  more := false;
  late := false;
  reading := '0';
  size := 0;
  groups_at := line_at;
  for round in 1..1000 loop
    first_at := null;
    in_hand := false;
    if part = 'flags' then
      adoption := {schema}.adopt(of_queue, null, least(case when together then page else want end, 256),
        flag_at, flag_id, until_at, not worker, until_at, read_until, true);
      turns := adoption.turns;
      turn_ats := adoption.ready_ats;
      owners := null;
    elsif part = 'rows' then
      locked := {schema}.lock_last_turns(of_queue,
        case when worker then least(greatest(want, 8) * 4, 256) else want end, groups_at, until_at);
      turns := locked.turns;
      turn_ats := locked.ready_ats;
      owners := locked.owners;
    else
      if together then
        page := {schema}.turns_to_fill(of_queue, want, per_turn, groups_at, flag_at, until_at);
      end if;
      adopts := flag_at is not null and not late;
      if flag_at is not null and not worker and of_group is null then
        free_at := {schema}.next_free_turn(of_queue, groups_at, until_at);
        adopts := adopts and coalesce(flag_at < free_at, true);
        segment := case when late then until_at when adopts then coalesce(free_at, until_at) else flag_at end;
      elsif groups_at is not null then
        at := clock_timestamp();
        locked := {schema}.lock_turns(of_queue, of_group, page, groups_at, until_at, lapsed);
        turns := locked.turns;
        turn_ats := locked.ready_ats;
        owners := locked.owners;
        reading := reading + (clock_timestamp() - at);
        taken := coalesce(cardinality(turns.names), 0);
        adopts := adopts and (taken < page or flag_at < turns.last_at or of_group is not null);
        segment := case when taken < page then until_at else turns.last_at end;
      end if;
      if adopts then
        at := clock_timestamp();
        adoption := {schema}.adopt(of_queue, of_group, least(page, 256), flag_at, flag_id,
          case when of_group is null then segment else until_at end, not worker, until_at, read_until, false);
        if adoption.crowded then
          -- Flags that call for nothing are read past, like dead rows.
          crowded := true;
          reading := reading + (clock_timestamp() - at);
        end if;
        late := adoption.late;
        idle := idle || adoption.idle;
        resting := resting || adoption.resting;
        first_at := adoption.first_at;
        if groups_at is null then
          turns := adoption.turns;
          turn_ats := adoption.ready_ats;
          owners := null;
          in_hand := turns.names is not null;
        end if;
        groups_at := least(groups_at, first_at);
        flags_at := adoption.reached;
        flags_id := adoption.reached_id;
        -- Producers that saw many new jobs in other idle groups have woken no worker for theirs.
        if worker and adoption.more and adoption.adopted >= want
          and flags_at > until_at - interval '50 ms'
        then
          perform pg_notify({schema_text} || '.wake', of_queue);
        end if;
        more_flags := adoption.more;
        flag_at := case when of_group is null and (more_flags or segment < until_at) then (
          select {flag_at} from {schema}.job j
          where j.queue = of_queue and j.flagged and {flag_at} <= until_at
            and ({flag_at}, j.id) > (case when more_flags then flags_at else segment end,
              case when more_flags then flags_id else 9223372036854775807 end)
          order by {flag_at} limit 1) end;
        flag_id := case when more_flags and flag_at = flags_at then flags_id else 0 end;
      end if;
      if not in_hand and groups_at is not null and (not worker or first_at is not null) then
        locked := {schema}.lock_turns(of_queue, of_group, page, groups_at,
          case when worker then until_at else segment end, lapsed);
        turns := locked.turns;
        turn_ats := locked.ready_ats;
        owners := locked.owners;
      end if;
    end if;
    taken := coalesce(cardinality(turns.names), 0);
    -- Nothing else is due. A receiver has read up to `segment` only.
    last := part = 'line' and taken < page and (flag_at is null or late)
      and (worker or of_group is not null or segment >= until_at
        or {schema}.next_free_turn(of_queue, segment + interval '1 us', until_at) is null);
    ready := 0;
    started := 0;
    brought := 0;
    if taken > 0 then
      heads := {schema}.read_heads(of_queue, turns, default_attempts, ignore_before);
      ready := heads.ready;
      if ready > 0 then
        came := {schema}.start_turns(of_queue, turns, heads, want, default_attempts, lease_seconds, own_lease,
          processor, ignore_before, per_turn,
          least(case when worker then at_most - cardinality(jobs) when last or together then want - ready else 0 end, room - ready)::integer, max_bytes - size, not worker, turn_ats, owners);
        started := cardinality(array_remove(came.tokens, null));
        brought := cardinality(came.jobs);
        jobs := jobs || came.jobs;
        tokens := tokens || came.tokens;
        dispositions := dispositions || came.dispositions;
        ready_ats := ready_ats || came.ready_ats;
        lost_by := lost_by || came.lost_by;
        size := size + came.size;
      end if;
      if ready < taken then
        perform {schema}.defer_turns(of_queue, turns, heads, may_retire);
      end if;
      -- A worker's followers wait for their head's slot; a receiver gets them now.
      want := want - case when worker then started else brought end;
      room := room - brought;
      -- What brings jobs does not use the time up.
      read_until := read_until + brought * interval '0.3 ms';
      over_at := over_at + brought * interval '0.3 ms';
    end if;
    -- Some are left for want of slots or bytes, or of time.
    more := started < ready;
    exit when more or want < 1 or last and not late;
    more := size >= max_bytes;
    exit when more;
    if part <> 'line' then
      more := true;
      exit when part = 'rows' or not rows_left;
      part := 'rows';
    elsif last or round >= 8 and clock_timestamp() > over_at then
      more := true;
      exit when of_group is not null or lapsed;
      rows_left := not last;
      groups_at := case when taken < page then segment else turns.last_at end;
      part := case when flag_at is null then 'rows' else 'flags' end;
    else
      groups_at := case when taken < page then segment else turns.last_at end;
      page := case when started > 0 or taken < page or not worker then want
        else least(greatest(page, 8) * 4, 256) end;
    end if;
  end loop;
  if part = 'line' and taken < page and not more then
    -- Other transactions hold what else is due, perhaps for hours.
    groups_at := until_at;
  end if;
  if worker and greatest(cardinality(idle), cardinality(resting)) > 0 and (crowded or jobs = '{}') then
    -- Or each claim would read them. Those that were claimed here do not wait for it.
    perform {schema}.tidy_flags(of_queue, idle, resting,
      clock_timestamp() + case when jobs = '{}' then interval '50 ms' else interval '5 ms' end);
  end if;
  more := more or more_flags or (flags_at is not null and flag_at is not null);
  if flag_at is null and not more_flags and flags_at is not null then
    -- It has read all.
    flags_at := until_at;
    flags_id := null;
  end if;
end $$;

-- The claim of workers and receivers: limits and pauses, aging, take-overs, groups, jobs without a
-- group. One short transaction for all free slots of a queue. It is bounded in rows (`slots`,
-- `at_most`), in bytes (`max_bytes`) and in time.
--
-- Returns the claimed jobs in the order of their turns. Behind each head, which has a token, come
-- its followers, without one. `ready_ats` and `lost_by` are those of `start_turns`. `more`: there
-- may be more to claim right now. Else `next` is in how many seconds the next group or job will be
-- due, as far as is known.
--
-- Under a pinned vacuum horizon, or with many groups held, a claim reads past all dead or locked
-- entries to what is due, and to what will be due next. So it says how long it read, and up to when
-- it has left nothing that it could take (`groups_at`, `flags_at`, `ungrouped_at`). The next claims
-- may begin there. They miss what comes in below: a late commit, a priority, a released claim. They
-- do not ask what will be due. A claim from the beginning finds it, now and then.
-- Beginning a little lower makes missed late commits rare: enqueues have the time of their
-- transaction's begin, turns that of their end.
--
-- `flags_id`: there may be further flags, behind `flags_at` and this id; null: it has read all. `late`:
-- for want of time. A claim that goes on there has `flags_from_id` above 0.
create or replace function {schema}.claim(of_queue text, of_group text, slots integer, ungrouped_first boolean,
  default_attempts integer, lease_seconds float8, own_lease boolean, processor bigint, ignore_before timestamptz,
  groups_from timestamptz, flags_from timestamptz, flags_from_id bigint, ungrouped_from timestamptz,
  per_turn integer, at_most integer, max_bytes bigint, worker boolean, may_retire boolean,
  out jobs bigint[], out tokens uuid[], out dispositions text[], out more boolean, out next float8, out read_s float8,
  out groups_at timestamptz, out flags_at timestamptz, out flags_id bigint, out late boolean,
  out ungrouped_at timestamptz,
  out ready_ats timestamptz[], out lost_by text[])
language plpgsql volatile
as $$
declare
  began constant timestamptz := clock_timestamp(); at timestamptz; reading interval;
  bound text; flight record; room bigint; n integer := 0; want integer; came record;
  due_at timestamptz; line_at timestamptz; flag_at timestamptz; lapsed boolean; aging boolean;
begin
  jobs := '{}';
  tokens := '{}';
  dispositions := '{}';
  more := false;
  for pass in 1..3 loop
    select
      (select j.turn_at from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued'
          and j.turn_at <= began and j.turn_at >= ungrouped_from
        order by j.turn_at limit 1),
      (select g.ready_at from {schema}.queue_group g
        where g.queue = of_queue and g.ready_at <= began and g.ready_at < 'infinity' and g.ready_at >= groups_from
        order by g.ready_at limit 1),
      least((
        select {flag_at} from {schema}.job j
        where j.queue = of_queue and j.flagged
          and {flag_at} <= began and ({flag_at}, j.id) > (flags_from, flags_from_id)
        order by {flag_at} limit 1),
        case when flags_from > '-infinity' and flags_from_id = 0 then (
          select j.turn_at from {schema}.job j
          where j.queue = of_queue and j.flagged and j.priority > 0 and j.turn_at <= began
          order by j.turn_at limit 1) end),
      (select j.lease_until from {schema}.job j
        -- A claim of one group leaves others' jobs unlocked.
        where of_group is null and j.queue = of_queue and j.group_id is null and j.status = 'started'
          and j.lease_until <= began and j.lease_until >= ungrouped_from
        -- A handler by transaction has it locked as long as it runs.
        order by j.lease_until limit 1 for no key update skip locked) is not null,
      (select g.ready_at from {schema}.queue_group g
        where g.queue = of_queue and g.aging_priority > 0 and g.ready_at <= began and g.ready_at >= groups_from
        order by g.ready_at limit 1) is not null
      or (select j.run_at from {schema}.job j
        where j.queue = of_queue and j.status = 'queued' and j.priority > 0 and j.turn_at >= j.run_at
          and (j.group_id is null or j.flagged) and j.run_at <= began and j.run_at >= ungrouped_from
        order by j.run_at limit 1) is not null,
      (select case when {paused_q} then 'paused' when q.in_flight_limit is not null then 'limited' end
        from {schema}.queue q where q.name = of_queue)
      into due_at, line_at, flag_at, lapsed, aging, bound;
    reading := clock_timestamp() - began;
    -- What has moved to the front is read again. A receiver ages no more than it may take.
    exit when bound = 'paused' or not aging or of_group is not null or pass > case when worker then 2 else 1 end;
    more := {schema}.age_priorities(of_queue, began, case when worker then 256 else least(slots, 256) end);
    -- It may be before where this claim begins to read.
    groups_from := '-infinity';
    flags_from := '-infinity';
    flags_from_id := 0;
    ungrouped_from := '-infinity';
  end loop;
  if bound = 'limited' then
    flight := {schema}.in_flight_room(of_queue);
    room := flight.room;
    if flight.busy then
      more := true;
      return;
    end if;
    if flight.paused then
      bound := 'paused';
    end if;
    if room is not null and worker then
      -- Followers are in flight, and would only wait.
      per_turn := 1;
    end if;
  end if;
  if bound = 'paused' then
    more := false;
    next := extract(epoch from (select q.paused_until from {schema}.queue q where q.name = of_queue) - clock_timestamp());
    return;
  end if;

  if lapsed then
    -- Rare, and first: behind busy groups there would never be room for them. They are in flight.
    perform {schema}.suspect_ungrouped(of_queue, began, case when worker then 1000 else slots end);
    select * into came from {schema}.claim_ungrouped(of_queue, slots, null, began, true, default_attempts,
      lease_seconds, own_lease, processor, ignore_before, max_bytes, not worker);
    max_bytes := max_bytes - came.size;
    more := more or came.more;
    jobs := jobs || came.jobs;
    tokens := tokens || came.tokens;
    dispositions := dispositions || came.dispositions;
    ready_ats := ready_ats || came.ready_ats;
    lost_by := lost_by || came.lost_by;
    n := cardinality(jobs);
  end if;
  -- So are groups whose claims lapsed: they go on if the limit is reached (part 0).
  for part in case when room is null then 1 else 0 end..2 loop
    want := slots - n;
    if part > 0 then
      want := least(want, room);
    end if;
    continue when want < 1;
    more := more or max_bytes < 1;
    exit when max_bytes < 1;
    if part > 0 and (part = 1) = ungrouped_first then
      continue when due_at is null or of_group is not null;
      select * into came from {schema}.claim_ungrouped(of_queue, want, due_at, began, false, default_attempts,
        lease_seconds, own_lease, processor, ignore_before, max_bytes, not worker);
    else
      continue when line_at is null and (part = 0 or flag_at is null);
      came := {schema}.claim_groups(of_queue, of_group, want, room, part = 0, line_at,
        case when part > 0 then flag_at end, case when flag_at = flags_from then flags_from_id else 0 end,
        began, default_attempts, lease_seconds, own_lease, processor, ignore_before, per_turn, at_most,
        max_bytes, worker, may_retire);
      groups_at := came.groups_at;
      flags_at := came.flags_at;
      flags_id := came.flags_id;
      late := came.late;
      reading := reading + came.reading;
    end if;
    more := more or came.more;
    max_bytes := max_bytes - came.size;
    jobs := jobs || came.jobs;
    tokens := tokens || came.tokens;
    dispositions := dispositions || came.dispositions;
    ready_ats := ready_ats || came.ready_ats;
    lost_by := lost_by || came.lost_by;
    n := n + coalesce(cardinality(case when worker then array_remove(came.tokens, null) else came.tokens end), 0);
    if part > 0 then
      room := room - coalesce(cardinality(came.jobs), 0);
    end if;
  end loop;

  if not more and n >= slots then
    -- Not taken, for want of a slot or because other transactions have them.
    more := line_at is not null and (
        select g.ready_at from {schema}.queue_group g
        where g.queue = of_queue and g.ready_at <= began and g.ready_at < 'infinity' and g.ready_at >= coalesce(groups_at, line_at)
        order by g.ready_at limit 1) is not null
      or due_at is not null and (
        select j.turn_at from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued' and j.turn_at <= began and j.turn_at >= due_at
        order by j.turn_at limit 1) is not null
      or flag_at is not null and flags_at is null and (
        select {flag_at} from {schema}.job j
        where j.queue = of_queue and j.flagged and {flag_at} <= began and {flag_at} >= flag_at
          -- The flags of what it has claimed go with the ends of those jobs.
          and j.id <> all (jobs)
        order by {flag_at} limit 1) is not null;
  end if;
  if groups_from = '-infinity' and not more and worker then
    at := clock_timestamp();
    -- The leases of this claim count as well: one poll too many.
    next := extract(epoch from nullif(least(
      (select g.ready_at from {schema}.queue_group g
        where g.queue = of_queue and g.ready_at > began and g.ready_at < 'infinity'
        order by g.ready_at limit 1),
      (select j.turn_at from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued' and j.turn_at > began
        order by j.turn_at limit 1),
      (select {flag_at} from {schema}.job j
        where j.queue = of_queue and j.flagged and {flag_at} > began
        order by {flag_at} limit 1)),
      'infinity') - clock_timestamp());
    reading := reading + (clock_timestamp() - at);
  end if;
  read_s := extract(epoch from reading);
  -- A client may not read times before Christ.
  groups_at := greatest(least(coalesce(groups_at, line_at), began - interval '0.25 s'), 'epoch');
  if flags_at is null and flag_at is not null then
    -- It has read none.
    flags_at := flag_at;
    flags_id := case when flag_at = flags_from then flags_from_id else 0 end;
  end if;
  if late is not true and coalesce(flags_at > began - interval '1 s', true) then
    flags_at := began - interval '1 s';
    flags_id := flags_id * 0;
  end if;
  flags_at := greatest(flags_at, 'epoch');
  ungrouped_at := greatest(least(due_at, began - interval '1 s'), 'epoch');
end $$;

-- A worker's claim: a row for each job with what its handler needs, and a last row without an id
-- that says how the claim ended.
--
-- The last row also has when the claim ended (`claimed_at`), and its `ready_ats` and `lost_by`.
create or replace function {schema}.claim_jobs(of_queue text, slots integer, ungrouped_first boolean, default_attempts integer,
  lease_seconds float8, own_lease boolean, processor bigint, ignore_before timestamptz,
  groups_from timestamptz, flags_from timestamptz, flags_from_id bigint, ungrouped_from timestamptz,
  per_turn integer, at_most integer, max_bytes bigint)
returns table (
  suspected boolean, id bigint, data text, attempts integer, attempts_forgiven integer, max_attempts integer,
  timeout_ms bigint, created_at timestamptz, run_at timestamptz, cancel_requested boolean, followed boolean,
  pid integer, since timestamptz, lease_ms bigint, payload bytea, content_type text, name text, reference text,
  priority smallint, headers text, group_id text, claim uuid, disposition text, expires_at timestamptz,
  more boolean, next float8, read_s float8, groups_at timestamptz, flags_at timestamptz, flags_id bigint,
  late boolean, ungrouped_at timestamptz, claimed_at timestamptz, ready_ats timestamptz[], lost_by text[])
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  -- What the queue stores goes before what its worker says.
  queue_attempts constant integer := (select q.max_attempts from {schema}.queue q where q.name = of_queue);
  claimed record;
begin
  if current_setting('transaction_isolation') <> 'read committed' or current_setting('transaction_read_only') <> 'off' then
    -- Each statement needs a snapshot of its own: a last row without `more` asks for another
    -- transaction, whatever the caller's session has decided.
    id := null;
    return next;
    return;
  end if;
  -- The answer is text, in the form that the library reads.
  perform {schema}.pin_plans(), set_config('synchronous_commit', 'on', true), set_config('DateStyle', 'ISO, MDY', true),
    set_config('TimeZone', 'UTC', true), set_config('bytea_output', 'hex', true);
  claimed := {schema}.claim(of_queue, null, slots, ungrouped_first,
    coalesce(queue_attempts, default_attempts), lease_seconds,
    own_lease, processor, ignore_before, groups_from, flags_from, flags_from_id, ungrouped_from, per_turn,
    at_most, max_bytes, true, true);
  return query
    select false, j.id, j.data::text,
      -- The row of a job without a group counts it already.
      j.attempts + (j.group_id is not null and c.disposition = 'run')::integer, j.attempts_forgiven,
      coalesce(j.max_attempts, queue_attempts)::integer, j.timeout_ms::bigint,
      j.created_at, j.run_at, c.disposition = 'cancelled', true, pg_backend_pid(), now(), j.lease_ms::bigint, j.payload,
      j.content_type, j.name, j.reference, j.priority::smallint, j.headers::text, j.group_id, c.token, c.disposition, j.expires_at,
      null::boolean, null::float8, null::float8, null::timestamptz, null::timestamptz, null::bigint,
      null::boolean,
      null::timestamptz, null::timestamptz, null::timestamptz[], null::text[]
    from unnest(claimed.jobs, claimed.tokens, claimed.dispositions) c(id, token, disposition)
    join {schema}.job j on j.id = any (array[c.id]);
  more := claimed.more;
  next := claimed.next;
  read_s := claimed.read_s;
  groups_at := claimed.groups_at;
  flags_at := claimed.flags_at;
  flags_id := claimed.flags_id;
  late := claimed.late;
  ungrouped_at := claimed.ungrouped_at;
  claimed_at := clock_timestamp();
  ready_ats := claimed.ready_ats;
  lost_by := claimed.lost_by;
  return next;
end $$;
