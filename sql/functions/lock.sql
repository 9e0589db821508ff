-- The claim's step *lock*: rows of groups in line, and groups that flags call for.

-- Returns a locked row of a group as a turn. If its claim lapsed, it says whose that was, and
-- whether it may be taken over: it was suspected a grace ago, or is strict.
create or replace function {schema}.locked_turn(g {schema}.queue_group, line tid) returns {schema}.turn
language sql stable as $$
  select row(g.group_id, line, g.head_id, g.ready_at, null, g.job_id,
    case when g.job_id is not null then case when g.claimed_by is null then 'receiver' else 'worker' end end,
    case when g.job_id is not null then
      g.strict is true or {schema}.is_suspected(g.suspect, g.claim, g.ready_at) end,
    null, null, null, null, g.spaced_until, null, g.limit_key, null)::{schema}.turn
$$;

-- Locks the rows of up to `n` groups that are due by `until_at`, the one served least recently
-- first (P8); or the one group's of the terms. `part`: the line from `from_at` on; its end, up to
-- that place, for what has just come behind more turns than a claim can look at; or those whose
-- claim lapsed. In the order of the one index that has only claimed groups, no plan reads a backlog
-- for these.
--
-- Locks: group rows NO KEY UPDATE, skips.
create or replace function {schema}.lock_turns(terms {schema}.claim_terms, part text, n integer,
  from_at timestamptz, until_at timestamptz) returns {schema}.turn[]
language plpgsql volatile as $$
declare
  turns {schema}.turn[];
begin
  if terms.group_id is not null then
    select array_agg(l.turn) into turns
    from (select {schema}.locked_turn(g, g.ctid) as turn from {schema}.queue_group g
      where g.queue = any (array[terms.queue]) and g.group_id between terms.group_id and terms.group_id
        and g.ready_at <= until_at and (g.job_id is not null or part <> 'lapsed')
      limit 1 for no key update skip locked) l;
  elsif part = 'lapsed' then
    select array_agg(l.turn) into turns
    from (select {schema}.locked_turn(g, g.ctid) as turn from {schema}.queue_group g
      where g.queue = terms.queue and g.job_id is not null and g.ready_at <= until_at
      order by g.claimed_by limit n for no key update skip locked) l;
  elsif part = 'end' then
    select array_agg(l.turn) into turns
    from (select {schema}.locked_turn(g, g.ctid) as turn from {schema}.queue_group g
      where g.queue = terms.queue and g.ready_at <= until_at and g.ready_at < 'infinity'
        and g.ready_at > from_at
      order by g.ready_at desc limit n for no key update skip locked) l;
  else
    select array_agg(l.turn) into turns
    from (select {schema}.locked_turn(g, g.ctid) as turn from {schema}.queue_group g
      where g.queue = terms.queue and g.ready_at <= until_at and g.ready_at < 'infinity'
        and g.ready_at >= from_at
      order by g.ready_at limit n for no key update skip locked) l;
  end if;
  return turns;
end $$;

-- Returns the place of the first group that is due and that no other transaction has locked,
-- without locking it for longer than that takes. A receiver must not keep a group that it does not
-- take.
create or replace function {schema}.next_free_turn(of_queue text, from_at timestamptz, until_at timestamptz)
returns timestamptz
language plpgsql volatile as $$
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
create or replace function {schema}.turns_to_fill(terms {schema}.claim_terms, want integer,
  groups_at timestamptz, flags_at timestamptz, until_at timestamptz) returns integer
language plpgsql volatile as $$
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
        where g.queue = terms.queue and g.ready_at <= until_at and g.ready_at < 'infinity'
          and g.ready_at >= groups_at
        order by g.ready_at limit want)
      union all
      select f.name, min(f.id), min(f.due_at)
      from (select j.group_id as name, j.id, {flag_at} as due_at from {schema}.job j
        where j.queue = terms.queue and j.flagged and {flag_at} <= until_at and {flag_at} >= flags_at
        order by {flag_at} limit want) f
      where (select g.group_id from {schema}.queue_group g
        where g.queue = terms.queue and g.group_id between f.name and f.name
        order by g.group_id desc limit 1) is null
      group by f.name) l
    order by l.due_at
  loop
    turns := turns + 1;
    jobs := jobs + (
      select count(*) from (select j.id from {schema}.job j
        where j.queue = terms.queue and (j.group_id, j.id) >= (turn.name, turn.from_id)
          and j.group_id <= turn.name
          and j.group_id is not null and j.status in ('queued', 'started')
        order by j.group_id, j.id limit terms.per_turn) j);
    exit when jobs >= want;
  end loop;
  return greatest(turns, 1);
end $$;

-- Locks the next turns of a scan, as many as its page or those wanted. `filled`: the page is full.
-- `last`: nothing else is due.
--
-- A worker locks rows first, and adopts flags that are before the last of them. A receiver may
-- leave its transaction open: it adopts only flags that are before the next free row, and locks no
-- more than it takes; of whole groups one at the end of a line. It clears no flags of other groups.
-- Rows that other transactions have locked hide no flag.
create or replace function {schema}.lock_next(terms {schema}.claim_terms, inout scan {schema}.claim_scan,
  want integer, until_at timestamptz, out turns {schema}.turn[], out filled boolean, out last boolean)
language plpgsql volatile as $$
declare
  rows {schema}.turn[]; adoption {schema}.adoption; room integer; free_at timestamptz; at timestamptz;
  adopts boolean := scan.flags_at is not null and scan.late is not true;
begin
  last := false;
  filled := false;
  if scan.part = 'flags' then
    adoption := {schema}.adopt(terms,
      row(scan.flags_at, scan.flags_id, until_at, true, scan.full_keys)::{schema}.flag_range,
      case when scan.together then 1 else least(want, 256) end, until_at, scan.read_until);
    turns := adoption.turns;
    scan.others := scan.others or adoption.others;
    return;
  elsif scan.part = 'end' then
    turns := {schema}.lock_turns(terms, scan.part,
      case when scan.together then 1 when terms.receiver then want
        else least(greatest(want, 8) * 4, 256) end,
      scan.groups_at, until_at);
    return;
  end if;
  scan.rows_until := until_at;
  if scan.together then
    scan.page := {schema}.turns_to_fill(terms, want, scan.groups_at, scan.flags_at, until_at);
  end if;
  if not terms.receiver and scan.groups_at is not null then
    at := clock_timestamp();
    turns := {schema}.lock_turns(terms, scan.part, scan.page, scan.groups_at, until_at);
    scan.reading := scan.reading + (clock_timestamp() - at);
    if cardinality(turns) >= scan.page then
      scan.rows_until := turns[scan.page].ready_at;
      adopts := adopts and (scan.flags_at < scan.rows_until or terms.group_id is not null);
    end if;
  elsif terms.receiver and scan.flags_at is not null and terms.group_id is null then
    free_at := {schema}.next_free_turn(terms.queue, scan.groups_at, until_at);
    adopts := adopts and coalesce(scan.flags_at < free_at, true);
    scan.rows_until := case when scan.late then until_at when adopts then coalesce(free_at, until_at)
      else scan.flags_at end;
  end if;
  if adopts then
    at := clock_timestamp();
    adoption := {schema}.adopt(terms, row(scan.flags_at, scan.flags_id,
        case when terms.group_id is null then scan.rows_until else until_at end, false,
        null)::{schema}.flag_range,
      least(scan.page, 256), until_at, scan.read_until);
    if adoption.crowded then
      -- Flags that call for nothing are read past, like dead rows.
      scan.reading := scan.reading + (clock_timestamp() - at);
    end if;
    -- Producers that saw many new jobs in other idle groups have woken no worker for theirs.
    if not terms.receiver and adoption.more and cardinality(adoption.turns) >= want
      and adoption.reached_at > until_at - interval '50 ms'
    then
      perform {schema}.wake(terms.queue);
    end if;
    scan.others := scan.others or adoption.others;
    scan.idle := scan.idle || adoption.idle;
    scan.resting := scan.resting || adoption.resting;
    scan.passed := coalesce(scan.passed, 0) + adoption.passed;
    scan.more_flags := adoption.more;
    scan.late := adoption.late;
    scan.reached_at := adoption.reached_at;
    scan.reached_id := adoption.reached_id;
    scan.flags_at := null;
    if terms.group_id is null and (adoption.more or scan.rows_until < until_at) then
      select f.flag_at into scan.flags_at from {schema}.first_flag(terms.queue,
        case when adoption.more then adoption.reached_at else scan.rows_until end,
        case when adoption.more then adoption.reached_id else 9223372036854775807 end, until_at) f;
    end if;
    scan.flags_id := case when adoption.more and scan.flags_at = adoption.reached_at
      then adoption.reached_id else 0 end;
    if turns is null then
      turns := adoption.turns;
    elsif cardinality(adoption.turns) > 0 then
      -- In the order of the line.
      turns := array(select t from unnest(turns || adoption.turns) t order by t.ready_at);
    end if;
  end if;
  if terms.receiver and scan.groups_at is not null then
    room := scan.page - coalesce(cardinality(turns), 0);
    rows := case when room > 0 then
      {schema}.lock_turns(terms, scan.part, room, scan.groups_at, scan.rows_until) end;
    turns := turns || rows;
    if room < 1 then
      scan.rows_until := scan.groups_at;
    elsif cardinality(rows) >= room then
      scan.rows_until := rows[room].ready_at;
    end if;
  end if;
  filled := coalesce(cardinality(turns) >= scan.page, false);
  -- A receiver has read up to `rows_until` only.
  last := not filled and (scan.flags_at is null or scan.late is true)
    and (not terms.receiver or terms.group_id is not null or scan.rows_until >= until_at
      or {schema}.next_free_turn(terms.queue, scan.rows_until + interval '1 us', until_at) is null);
  if cardinality(adoption.turns) > 0 then
    -- Groups that do not start are in line here.
    scan.groups_at := least(scan.groups_at, (select min(t.ready_at) from unnest(adoption.turns) t));
  end if;
end $$;
