-- Adoption: flags become turns.
--
-- A flag is read without a lock. It goes only with one of three rows: a row that this transaction
-- has inserted; a free row that it has locked, as the next read of its head comes later; or a
-- claimed row that it has share-locked, as its settle has not passed its exclusive lock, and a
-- later read sees the job. So nothing strands (P3). The end of an attempt clears its job's flag as
-- well.
--
-- A row is inserted behind its group's lock (`lock_new_groups`), held until the commit, after a
-- look by a snapshot that is younger than that lock (`read_heads`). So a group has one row, any
-- number of adopters work side by side, and an open transaction keeps only the groups that it
-- adopted. A group's lock must never change, or two versions of the library would give it two rows.
--
-- A look-up by id says `coalesce(flagged, false)`: by the words of its partial index, that could be
-- read as a whole. A group's row is looked up from the end of the index: of several versions with
-- one key the newest is the last as a rule.

-- Returns the hash of a group. Names are quoted: a queue `a` with a group `b c` is not the queue
-- `a b` with a group `c`.
create or replace function {schema}.group_hash(of_queue text, of_group text) returns integer
language sql immutable as $$
  select (hashtextextended(quote_literal(of_queue) || quote_literal(of_group), 0) & 65535)::integer
$$;

-- Locks groups that have no row, for the insert of one. Returns those that no other transaction has
-- locked, in any order, and each once: the rounds of a claim may have read the same group.
--
-- A group's lock is that of a row of `adoption_lock`, by the group's hash. Advisory locks would
-- fill the server's lock table: an open transaction may adopt any number of groups.
--
-- Locks: rows of `adoption_lock` NO KEY UPDATE, skips.
create or replace function {schema}.lock_new_groups(of_queue text, groups text[]) returns text[]
language plpgsql volatile as $$
declare
  locked text[];
begin
  with wanted as materialized (
    select f.name, {schema}.group_hash(of_queue, f.name) as hash
    from (select distinct f.name from unnest(groups) f(name)) f)
  select array_agg(m.name) into locked
  from (select wanted.name from wanted join {schema}.adoption_lock l on l.hash = any (array[wanted.hash])
    for no key update of l skip locked) m;
  if locked is null and groups <> '{}' then
    perform from {schema}.adoption_lock l limit 1;
    if not found then
      raise exception 'the table adoption_lock is empty: no group can be adopted' using errcode = '55000',
        hint = format('Its rows are missing: insert into %I.adoption_lock select generate_series(0, 65535)',
          {schema_text});
    end if;
  end if;
  return locked;
end $$;

-- Returns the next `n` flags in the order of the line; of groups that were `seen` none. Or those of
-- one group, in its order; or the last ones of the line.
create or replace function {schema}.read_flags(terms {schema}.claim_terms, flags {schema}.flag_range,
  n integer, seen text[]) returns {schema}.flag[]
language plpgsql stable as $$
declare
  page {schema}.flag[];
begin
  if terms.group_id is not null then
    select array_agg(f.flag) into page
    from (select row(j.id, j.group_id, {flag_at}, j.finished_at is not null)::{schema}.flag as flag
      from {schema}.job j
      where j.queue = terms.queue and j.group_id between terms.group_id and terms.group_id and j.flagged
        and {flag_at} <= flags.until_at
      order by j.group_id, j.id limit n) f;
  elsif flags.from_end then
    select array_agg(f.flag) into page
    from (select row(j.id, j.group_id, {flag_at}, j.finished_at is not null)::{schema}.flag as flag
      from {schema}.job j
      where j.queue = terms.queue and j.flagged and {flag_at} <= flags.until_at
        and ({flag_at}, j.id) > (flags.from_at, flags.from_id)
      order by {flag_at} desc, j.id desc limit n) f;
  else
    select array_agg(f.flag) into page
    from (select row(j.id, j.group_id, {flag_at}, j.finished_at is not null)::{schema}.flag as flag
      from {schema}.job j
      where j.queue = terms.queue and j.flagged and {flag_at} <= flags.until_at
        and ({flag_at}, j.id) > (flags.from_at, flags.from_id)
        and (j.group_id in (select unnest(seen))) is not true
      order by {flag_at}, j.id limit n) f;
  end if;
  return page;
end $$;

-- Returns what flags call for in each of their groups, in the order of the line: a row (new), a row
-- that sleeps but has work (woken), or nothing: the group has a row (idle), cannot start yet
-- (resting), or has no unfinished job (drained).
--
-- Rows that are due by `due_by` the claim reads itself, with the flags of their groups. One that
-- falls due later it does not: by the clock of this function a flag of its group would be passed by
-- both.
create or replace function {schema}.read_calls(terms {schema}.claim_terms, flags {schema}.flag[],
  due_by timestamptz, without_keys text[]) returns {schema}.flag_call[]
language plpgsql stable as $$
declare
  began constant timestamptz := clock_timestamp(); calls {schema}.flag_call[];
begin
  with flagged as materialized (
    select terms.queue as queue, f.name, min(f.id) as id, (array_agg(f.flag_at order by f.id))[1] as flag_at,
      bool_or(f.ended) as ended, min(f.ordinality) as place, count(*) as flags
    from unnest(flags) with ordinality f
    group by f.name)
  select array_agg(row(c.call, c.name, c.id, c.flag_at, c.head, c.place, c.flags)::{schema}.flag_call)
    into calls
  from (
    -- A new group's place is that of its head, whatever the priorities of those behind it.
    select f.name, f.id, f.place, f.flags, head.id as head,
      case when head.turn_at <= began then head.turn_at else f.flag_at end as flag_at, case
      when g.free is null then case
        when head.id is null then 'drained'
        when head.due_at > began or head.limit_key = any (without_keys) or (
          select s.group_id from {schema}.group_setting s
          where s.queue = f.queue and s.group_id = f.name and {paused_s} limit 1) is not null then 'resting'
        else 'new' end
      when not g.free or g.halted or g.ready_at <= due_by then 'idle'
      when f.id < g.head_id then 'woken'
      -- Spaced: it can start nothing before its row comes up by itself.
      when g.ready_at <= g.spaced_until then 'idle'
      -- Asleep for its head, or paused: a job behind the head changes nothing. A head that another
      -- transaction has locked is looked at again by itself.
      when f.ended or f.id - (g.rechecks = 0)::integer < coalesce((
          select j.id from {schema}.job j
          where j.queue = f.queue and (j.group_id, j.id) >= (f.name, g.head_id) and j.group_id <= f.name
            and j.group_id is not null and j.status in ('queued', 'started')
          order by j.group_id, j.id limit 1), f.id + 1) then 'woken'
      else 'idle' end as call
    from flagged f left join lateral (
      select g.job_id is null as free, g.halted_at is not null as halted, g.ready_at, g.head_id, g.rechecks,
        g.spaced_until
      from {schema}.queue_group g
      where g.queue = f.queue and g.group_id between f.name and f.name
      order by g.group_id desc limit 1) g on true
    left join lateral (
      select j.id, j.turn_at, j.limit_key, least(j.run_at, j.expires_at) as due_at from {schema}.job j
      where g.free is null and j.queue = f.queue and j.group_id between f.name and f.name
        and j.group_id is not null and j.status in ('queued', 'started')
      order by j.group_id, j.id limit 1) head on true
    order by flag_at, id) c;
  return calls;
end $$;

-- Returns the turn of a group that is adopted. `flags` are how many of it were read. A row that is
-- woken may have a slot of its key.
create or replace function {schema}.adopted_turn(name text, line tid, head_id bigint, ready_at timestamptz,
  flags bigint, spaced_until timestamptz default null, held_key text default null) returns {schema}.turn
language sql immutable as $$
  select row(name, line, head_id, ready_at, flags,
    null, null, null, null, null, null, null, spaced_until, null, held_key, null)::{schema}.turn
$$;

-- Adopts up to `want` groups that flags call for, in the order of the line. Reads on behind flags
-- that call for nothing, with pages that grow, until `read_until` and the time that adopted groups
-- take (P8); the next claim goes on there. From the end it reads one page: what has just come in,
-- behind more flags than a claim can read.
--
-- Writes no row of a group: the claim starts each turn, or defers it. `idle` and `resting` groups
-- are 1,024 of each at most (`tidy_flags`). One transaction may leave any number of flags with one
-- time: so it says up to which id it has read.
--
-- A receiver's transaction may stay open: it adopts only groups whose heads it can start, and locks
-- those heads first. A worker's first page gets rows whatever has the heads, so that operators see
-- them. Behind that it does the same: thousands of rows of locked heads would be looked at again
-- and again.
--
-- Locks: new groups, rows that it wakes, heads, jobs whose flags go: tries, skips.
create or replace function {schema}.adopt(terms {schema}.claim_terms, flags {schema}.flag_range, want integer,
  due_by timestamptz, read_until timestamptz) returns {schema}.adoption
language plpgsql volatile as $$
declare
  adoption {schema}.adoption; page {schema}.flag[]; calls {schema}.flag_call[]; turns {schema}.turn[];
  page_size integer := case when flags.from_end then 256 else least(want, 256) + 32 end;
  tries boolean := terms.receiver or flags.from_end or flags.from_id > 0;
  seen text[] := '{}'; woken text[]; still text[]; rests text[]; drained text[]; names text[];
  passed bigint;
  first integer; last integer; room integer; place bigint; had integer; held integer;
begin
  adoption.turns := '{}';
  adoption.idle := '{}';
  adoption.resting := '{}';
  adoption.more := false;
  adoption.late := false;
  adoption.crowded := false;
  adoption.passed := 0;
  adoption.others := false;
  adoption.reached_at := flags.from_at;
  adoption.reached_id := flags.from_id;
  loop
    page := {schema}.read_flags(terms, flags, page_size, seen);
    exit when page is null;
    had := cardinality(adoption.turns);
    calls := {schema}.read_calls(terms, page, due_by, flags.without_keys);
    select array_agg(c.name) filter (where c.call = 'idle'),
        array_agg(c.name) filter (where c.call = 'resting'),
        array_agg(c.name) filter (where c.call = 'drained'),
        coalesce(sum(c.flags) filter (where c.call in ('idle', 'resting')), 0),
        coalesce(array_agg(c) filter (where c.call in ('new', 'woken')), '{}')
      into still, rests, drained, passed, calls
    from unnest(calls) c;

    -- As many at once as are still wanted: one that another transaction has uses up nothing.
    woken := '{}';
    first := 1;
    while first <= cardinality(calls) and cardinality(adoption.turns) < want loop
      room := want - cardinality(adoption.turns);
      -- The next of one kind.
      last := coalesce((
        select min(c.ordinality) - 1 from unnest(calls) with ordinality c
        where c.ordinality > first and c.call <> calls[first].call), cardinality(calls));
      if calls[first].call = 'woken' then
        select array_agg({schema}.adopted_turn(w.name, w.line, least(w.head_id, w.id), w.due_at, w.flags,
              w.spaced_until, w.limit_key)),
            case when count(*) = room then first + max(w.ordinality) - 1 else last end
          into turns, last
        from (select c.*, g.line, g.head_id, g.spaced_until, g.limit_key,
            case when c.flag_at > 'epoch' then c.flag_at else flags.until_at end as due_at
          from unnest(calls[first:last]) with ordinality c
          join lateral (
            select g.ctid as line, g.head_id, g.spaced_until, g.limit_key from {schema}.queue_group g
            where g.queue = any (array[terms.queue]) and g.group_id between c.name and c.name
              and g.claim is null and g.halted_at is null and g.ready_at > due_by
            order by g.group_id desc limit 1 for no key update skip locked) g on true
          where not terms.receiver or c.flag_at <= flags.until_at limit room) w;
        -- A claim may have ended since the flags were read, which took that of its job with it. Its
        -- group would go before those that have waited longer (P8).
        held := cardinality(turns);
        turns := array(
          select t from unnest(turns) t join unnest(calls) c on c.name = t.name
          where (select j.id from {schema}.job j
            where j.id = any (array[c.id]) and coalesce(j.flagged, false) limit 1) is not null);
        woken := woken || array(select t.name from unnest(turns) t);
        adoption.others := adoption.others or held > cardinality(turns);
      else
        if tries then
          select array_agg(h.name), case when count(*) = room then first + max(h.ordinality) - 1 else last end
            into names, last
          from (select c.name, c.ordinality
            from unnest(calls[first:last]) with ordinality c join {schema}.job j on j.id = any (array[c.head])
            where not terms.receiver or c.flag_at <= flags.until_at
            limit room for no key update of j skip locked) h;
        else
          last := least(last, first + room - 1);
          names := array(select c.name from unnest(calls[first:last]) c);
        end if;
        held := case when tries then cardinality(names) end;
        names := {schema}.lock_new_groups(terms.queue, names);
        adoption.others := adoption.others or coalesce(held > coalesce(cardinality(names), 0), false);
        turns := array(
          select {schema}.adopted_turn(c.name, null, c.id,
            case when c.flag_at > 'epoch' then c.flag_at else flags.until_at end, c.flags)
          from unnest(calls[first:last]) c where (c.name in (select unnest(names))) is true);
      end if;
      adoption.turns := adoption.turns || turns;
      first := last + 1;
    end loop;

    -- The flags of what was woken go. So do those of ended jobs that nothing is behind; one that
    -- was queued again meanwhile keeps its own. The flags of a new group go when it has its row.
    if woken <> '{}' or drained is not null then
      with flag as materialized (
        select j.id from {schema}.job j
        where j.id in (select f.id from unnest(page) f where f.name = any (woken || drained))
          and coalesce(j.flagged, false) and (j.finished_at is not null or j.group_id = any (woken))
        for no key update skip locked)
      update {schema}.job j set flagged = false from flag where j.id = any (array[flag.id]);
      adoption.others := adoption.others or drained is not null;
    end if;
    adoption.passed := adoption.passed + passed;
    if cardinality(adoption.idle) < 1024 then
      adoption.idle := (adoption.idle || still)[1:1024];
    end if;
    if cardinality(adoption.resting) < 1024 then
      adoption.resting := (adoption.resting || rests)[1:1024];
    end if;
    if first <= cardinality(calls) and want > 0 then
      -- The next one goes on before the first flag of those.
      select min(c.place) into place from unnest(calls[first:]) c;
      adoption.reached_at := page[place].flag_at;
      adoption.reached_id := page[place].id - 1;
      adoption.more := true;
      exit;
    end if;
    exit when flags.from_end;
    flags.from_at := page[cardinality(page)].flag_at;
    flags.from_id := page[cardinality(page)].id;
    adoption.reached_at := flags.from_at;
    adoption.reached_id := flags.from_id;
    exit when cardinality(page) < page_size or terms.group_id is not null;
    adoption.crowded := true;
    adoption.more := want > 0 and cardinality(adoption.turns) >= want;
    adoption.late := not adoption.more
      and clock_timestamp() > read_until + cardinality(adoption.turns) * interval '0.2 ms';
    adoption.more := adoption.more or adoption.late;
    exit when adoption.more;
    tries := true;
    -- Not twice: what was adopted has no row yet.
    seen := seen || array(select t.name from unnest(adoption.turns) t);
    if cardinality(seen) < 1024 then
      seen := seen || still || rests;
    end if;
    -- A page that brought turns says how many flags those that are still wanted take.
    page_size := least(page_size * 8, case when terms.receiver then 256 else 1024 end,
      (want - cardinality(adoption.turns)) * page_size / nullif(cardinality(adoption.turns) - had, 0) + 32);
  end loop;
  return adoption;
end $$;
