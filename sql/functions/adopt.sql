-- Adoption: flags become groups in line.
--
-- A flag is read without a lock. It goes only with a row that this transaction has inserted; or has
-- locked while it was free, as the next read of its head comes later; or has share-locked while it
-- was claimed, as its settle has not passed its exclusive lock, and a later read sees the job. That
-- is why nothing strands (P3). The end of an attempt clears its job's flag as well.
--
-- A row is inserted behind its group's lock (`lock_new_groups`), held until the commit, by a
-- statement whose snapshot is younger than that lock. So a group has one row, any number of
-- adopters work side by side, and an open transaction keeps only the groups that it adopted. What
-- is locked for a group must never change, or two versions of the library would give it two rows.
--
-- What is found by id says `coalesce(flagged, false)`: by the words of its partial index, that
-- could be read as a whole. A group's row is looked up from the end of the index: of several
-- versions with one key the newest
-- is the last as a rule.

-- Locks groups that have no row, for the insert of one. Returns those that no other transaction has
-- locked, in any order.
--
-- A group's lock is that of a row of `adoption_lock`, by the group's hash. Names are quoted: a queue
-- `a` with a group `b c` is not the queue `a b` with a group `c`. Advisory locks would fill the
-- server's lock table: an open transaction may adopt any number of groups.
--
-- Locks: rows of `adoption_lock` NO KEY UPDATE, skips.
create or replace function {schema}.lock_new_groups(of_queue text, groups text[]) returns text[]
language plpgsql volatile
as $$
declare
  locked text[];
begin
  with wanted as materialized (
    select f.name,
      (hashtextextended(quote_literal(of_queue) || quote_literal(f.name), 0) & 65535)::integer as hash
    from unnest(groups) f(name))
  select array_agg(m.name) into locked
  from (select wanted.name from wanted join {schema}.adoption_lock l on l.hash = any (array[wanted.hash])
    for no key update of l skip locked) m;
  if locked is null and groups <> '{}' and (select l.hash from {schema}.adoption_lock l limit 1) is null then
    raise exception 'the table adoption_lock is empty: no group can be adopted' using errcode = '55000',
      hint = 'It came without its rows: insert into adoption_lock select generate_series(0, 65535)';
  end if;
  return locked;
end $$;

-- Adopts up to `want` groups with flags behind `from_at`, `from_id` and up to `until_at`, in the
-- order of the line, or the flags of one group. Reads on behind flags that call for nothing, with
-- pages that grow, until `read_until` and the time that adopted groups take (P8); the next claim goes
-- on there. With `from_end` it reads the last page of all: what has just come in, behind more flags
-- than a claim can read.
--
-- Returns how many groups it put in line, whether there may be more flags that call for something,
-- since when the first of its groups is due, and up to which flag it has read: one transaction may
-- leave any number of flags with one time. `late`: it ended for want of time.
--
-- `idle` are groups whose flags called for nothing and that have a row, `resting` are those that
-- have none, as they are paused or their heads are not due: 1,024 of each at most (`tidy_flags`).
-- `crowded` says that they filled a page. `turns` are the rows that it has inserted, if it has done
-- nothing else, or all that it put in line from the end: they are locked, and ready since
-- `ready_ats`.
--
-- Rows that are due by `due_by` the claim reads itself. One that falls due later it does not: by
-- the clock of this function a flag of its group would be passed by both.
--
-- A receiver's transaction may stay open: it adopts only groups whose heads it can start, and locks
-- those heads first. A worker's first page gets rows whatever has the heads, so that operators see
-- them. Behind that it does the same: thousands of rows of locked heads would be looked at again and
-- again.
--
-- Locks: new groups, rows that it wakes, heads, jobs whose flags go: tries, skips.
create or replace function {schema}.adopt(of_queue text, of_group text, want integer, from_at timestamptz,
  from_id bigint, until_at timestamptz, receiver boolean, due_by timestamptz, read_until timestamptz,
  from_end boolean,
  out adopted integer, out more boolean, out late boolean, out first_at timestamptz,
  out reached timestamptz, out reached_id bigint, out idle text[], out resting text[], out crowded boolean,
  out turns {schema}.locked_turns, out ready_ats timestamptz[])
language plpgsql volatile
as $$
declare
  began constant timestamptz := clock_timestamp();
  after_at timestamptz := from_at; after_id bigint := from_id;
  page integer := case when from_end then 256 else least(want, 256) + 32 end;
  n integer; ids bigint[]; groups text[]; ats timestamptz[]; ended boolean[];
  names text[]; firsts bigint[]; flag_ats timestamptz[]; is_new boolean[]; head_ids bigint[]; places bigint[];
  drained text[]; still text[]; rests text[]; got text[]; before integer; room integer; first integer;
  last integer; unseen bigint;
  new_names text[]; new_ids bigint[]; new_ats timestamptz[]; new_lines tid[]; new_at timestamptz;
  last_at timestamptz;
  due_names text[]; due_ids bigint[]; due_lines tid[]; due_ats timestamptz[];
  lines tid[]; woken text[]; woken_ids bigint[]; woken_ats timestamptz[]; clear bigint[];
  seen text[] := '{}'; looked boolean := false; all_new boolean; tried boolean;
begin
  adopted := 0;
  more := false;
  late := false;
  crowded := false;
  reached := from_at;
  reached_id := from_id;
  idle := '{}';
  resting := '{}';
  loop
    if of_group is not null then
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.flag_at), array_agg(f.ended)
        into ids, groups, ats, ended
      from (
        select j.id, j.group_id, {flag_at} as flag_at, j.finished_at is not null as ended
        from {schema}.job j
        where j.queue = of_queue and j.group_id between of_group and of_group and j.flagged
          and {flag_at} <= until_at
        order by j.group_id, j.id limit page) f;
    elsif from_end then
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.flag_at), array_agg(f.ended)
        into ids, groups, ats, ended
      from (
        select j.id, j.group_id, {flag_at} as flag_at, j.finished_at is not null as ended
        from {schema}.job j
        where j.queue = of_queue and j.flagged and {flag_at} <= until_at
          and ({flag_at}, j.id) > (after_at, after_id)
        order by {flag_at} desc, j.id desc limit page) f;
    else
      -- Of a group whose flags call for nothing, one is read.
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.flag_at), array_agg(f.ended)
        into ids, groups, ats, ended
      from (
        select j.id, j.group_id, {flag_at} as flag_at, j.finished_at is not null as ended
        from {schema}.job j
        where j.queue = of_queue and j.flagged and {flag_at} <= until_at
          and ({flag_at}, j.id) > (after_at, after_id)
          and (j.group_id in (select unnest(seen))) is not true
        order by {flag_at}, j.id limit page) f;
    end if;
    n := coalesce(cardinality(ids), 0);
    exit when n = 0;
    -- A few flags are mostly of new groups, one each. If not, they are looked at again.
    all_new := not receiver and not looked and n <= least(want, 8) and not true = any (ended)
      and (n = 1 or n = (select count(distinct f.name) from unnest(groups) f(name)));
    looked := true;
    tried := receiver or not all_new and (from_end or crowded or from_id > 0);

    if all_new then
      names := groups;
      firsts := ids;
      flag_ats := ats;
      is_new := array_fill(true, array[n]);
    else
      -- What each group's first flag calls for, in the order of the line.
      with flagged as materialized (
        select of_queue as queue, f.name, min(f.id) as id, (array_agg(f.flag_at order by f.id))[1] as flag_at,
          bool_or(f.ended) as ended, min(f.place) as place
        from unnest(groups, ids, ats, ended) with ordinality f(name, id, flag_at, ended, place)
        group by f.name),
      call as materialized (
        -- A new group's place is that of its head, whatever the priorities of those behind it.
        select f.name, f.id, f.place, head.id as head_id,
          case when head.turn_at <= began then head.turn_at else f.flag_at end as flag_at, case
          when g.free is null then case
            when head.id is null then 'drained'
            when head.due_at > began or (
              select s.group_id from {schema}.group_setting s
              where s.queue = f.queue and s.group_id = f.name and {paused_s} limit 1) is not null then 'resting'
            else 'new' end
          when not g.free then 'idle'
          when f.id < g.head_id then 'woken'
          when g.halted or g.ready_at <= due_by then 'idle'
          -- Asleep for its head, or paused: a job behind the head changes nothing. A head that
          -- another transaction has locked is looked at again by itself.
          when f.ended or f.id - (g.rechecks = 0)::integer < coalesce((
              select j.id from {schema}.job j
              where j.queue = f.queue and (j.group_id, j.id) >= (f.name, g.head_id) and j.group_id <= f.name
                and j.group_id is not null and j.status in ('queued', 'started')
              order by j.group_id, j.id limit 1), f.id + 1) then 'woken'
          else 'idle' end as what
        from flagged f left join lateral (
          select g.job_id is null as free, g.halted_at is not null as halted, g.ready_at, g.head_id, g.rechecks
          from {schema}.queue_group g
          where g.queue = f.queue and g.group_id between f.name and f.name
          order by g.group_id desc limit 1) g on true
        left join lateral (
          select j.id, j.turn_at, least(j.run_at, j.expires_at) as due_at from {schema}.job j
          where g.free is null and j.queue = f.queue and j.group_id between f.name and f.name
            and j.group_id is not null and j.status in ('queued', 'started')
          order by j.group_id, j.id limit 1) head on true)
      select array_agg(c.name) filter (where c.what in ('new', 'woken')),
          array_agg(c.id) filter (where c.what in ('new', 'woken')),
          array_agg(c.flag_at) filter (where c.what in ('new', 'woken')),
          array_agg(c.what = 'new') filter (where c.what in ('new', 'woken')),
          array_agg(c.head_id) filter (where c.what in ('new', 'woken')),
          array_agg(c.place) filter (where c.what in ('new', 'woken')),
          array_agg(c.name) filter (where c.what = 'drained'), array_agg(c.name) filter (where c.what = 'idle'),
          array_agg(c.name) filter (where c.what = 'resting')
        into names, firsts, flag_ats, is_new, head_ids, places, drained, still, rests
      from (select call.* from call order by call.flag_at, call.id) c;
    end if;

    -- As many at once as are still wanted: one that another transaction has uses up nothing.
    new_names := '{}';
    new_ids := '{}';
    new_ats := '{}';
    lines := '{}';
    woken := '{}';
    woken_ids := '{}';
    woken_ats := '{}';
    before := adopted;
    first := 1;
    while first <= cardinality(names) and adopted < want loop
      room := want - adopted;
      -- The next of one kind.
      last := coalesce((
        select min(f.place) - 1 from unnest(is_new) with ordinality f(kind, place)
        where f.place > first and f.kind <> is_new[first]), cardinality(names));
      if not is_new[first] then
        select lines || array_agg(w.line), woken || array_agg(w.name), woken_ids || array_agg(w.id),
            woken_ats || array_agg(w.flag_at),
            case when count(*) = room then first + max(w.place) - 1 else last end
          into lines, woken, woken_ids, woken_ats, last
        from (select g.line, f.name, f.id, f.flag_at, f.place
          from unnest(names[first:last], firsts[first:last], flag_ats[first:last])
            with ordinality f(name, id, flag_at, place)
          join lateral (
            select g.ctid as line from {schema}.queue_group g
            where g.queue = any (array[of_queue]) and g.group_id between f.name and f.name and g.claim is null
            order by g.group_id desc limit 1 for no key update skip locked) g on true
          -- A receiver adopts only what it takes.
          where not receiver or f.flag_at <= until_at limit room) w;
        -- A claim may have ended since the flags were read, which took that of its job with it. Its
        -- group would go before those that have waited longer (P8).
        select coalesce(array_agg(w.line), '{}'), coalesce(array_agg(w.name), '{}'),
            coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.flag_at), '{}')
          into lines, woken, woken_ids, woken_ats
        from unnest(lines, woken, woken_ids, woken_ats) w(line, name, id, flag_at)
        where (select j.id from {schema}.job j
          where j.id = any (array[w.id]) and coalesce(j.flagged, false) limit 1) is not null;
      else
        if tried then
          select array_agg(h.name), case when count(*) = room then first + max(h.place) - 1 else last end
            into got, last
          from (select f.name, f.place
            from unnest(names[first:last], head_ids[first:last], flag_ats[first:last])
              with ordinality f(name, head_id, flag_at, place)
            join {schema}.job j on j.id = any (array[f.head_id])
            where not receiver or f.flag_at <= until_at
            limit room for no key update of j skip locked) h;
        else
          last := least(last, first + room - 1);
          got := names[first:last];
        end if;
        if got is not null then
          got := {schema}.lock_new_groups(of_queue, got);
        end if;
        if got is not null then
          select new_names || array_agg(f.name), new_ids || array_agg(f.id), new_ats || array_agg(f.flag_at)
            into new_names, new_ids, new_ats
          from unnest(names[first:last], firsts[first:last], flag_ats[first:last]) f(name, id, flag_at)
          where (f.name in (select unnest(got))) is true;
        end if;
      end if;
      adopted := before + cardinality(new_names) + cardinality(woken);
      first := last + 1;
    end loop;
    reached := null;
    if first <= cardinality(names) and want > 0 then
      -- The next one goes on before the first flag of those.
      unseen := case when all_new then first else (
        select min(f.place) from unnest(places[first:]) f(place)) end;
      reached := ats[unseen];
      reached_id := ids[unseen] - 1;
    end if;
    if new_names <> '{}' then
      -- A younger snapshot than the locks'.
      with flag as materialized (
        select of_queue as queue, f.* from unnest(new_names, new_ids, new_ats) f(name, id, flag_at)),
      inserted as (
        insert into {schema}.queue_group (queue, group_id, ready_at, head_id)
        select of_queue, f.name, case when f.flag_at > 'epoch' then f.flag_at else until_at end, f.id from flag f
        where (select g.group_id from {schema}.queue_group g
          where g.queue = f.queue and g.group_id between f.name and f.name
          order by g.group_id desc limit 1) is null
        returning queue_group.group_id, queue_group.head_id, queue_group.ready_at, queue_group.ctid)
      select array_agg(i.group_id), array_agg(i.head_id), array_agg(i.ctid), adopted - cardinality(new_names) + count(*),
          min(i.ready_at), max(i.ready_at), array_agg(i.ready_at)
        into new_names, new_ids, new_lines, adopted, new_at, last_at, ready_ats from inserted i;
      first_at := least(first_at, new_at);
    end if;
    if woken <> '{}' then
      with flag as materialized (
        select * from unnest(lines, woken_ids, woken_ats) f(line, id, flag_at)),
      earlier as (
        update {schema}.queue_group g set
          ready_at = case when g.halted_at is null
            then least(g.ready_at, case when flag.flag_at > 'epoch' then flag.flag_at else until_at end) else g.ready_at end,
          head_id = least(g.head_id, flag.id), aging_priority = 0, rechecks = 0
        from flag where g.ctid = flag.line returning g.group_id, g.head_id, g.ready_at, g.ctid)
      select least(first_at, min(e.ready_at) filter (where e.ready_at < 'infinity')),
          array_agg(e.group_id) filter (where e.ready_at <= until_at),
          array_agg(e.head_id) filter (where e.ready_at <= until_at),
          array_agg(e.ctid) filter (where e.ready_at <= until_at),
          array_agg(e.ready_at) filter (where e.ready_at <= until_at)
        into first_at, due_names, due_ids, due_lines, due_ats from earlier e;
      if from_end then
        turns := row(new_names || due_names, new_ids || due_ids, null, null, null,
          new_lines || due_lines, until_at);
        ready_ats := ready_ats || due_ats;
      end if;
    elsif from_end and new_names <> '{}' then
      turns := row(new_names, new_ids, null, null, new_lines, last_at);
    end if;

    if all_new then
      if cardinality(new_names) = n then
        reached := ats[n];
        reached_id := ids[n];
        more := false;
        turns := row(new_names, new_ids, null, null, new_lines, last_at);
        exit;
      end if;
      seen := seen || new_names;
      continue;
    end if;
    -- The flags of what was adopted go, but for a new group's first, which goes with its end. So do
    -- those of ended jobs that nothing is behind; one that was queued again meanwhile keeps its
    -- own.
    if new_names <> '{}' or woken <> '{}' or drained is not null then
      clear := array(
        select f.id from unnest(groups, ids, ended) f(name, id, ended)
        where (f.name in (select unnest(woken || drained))) is true
          or (f.name in (select unnest(new_names))) is true and (f.ended or (f.id in (select unnest(new_ids))) is not true));
      if clear <> '{}' then
        with flag as materialized (
          select j.id from {schema}.job j
          -- Of this queue still: a job that was moved has its flag for another one.
          where j.id = any (clear) and coalesce(j.flagged, false) and j.queue = any (array[of_queue])
            and (j.finished_at is not null or (j.group_id in (select unnest(drained))) is not true)
          for no key update skip locked)
        update {schema}.job j set flagged = false from flag where j.id = any (array[flag.id]);
      end if;
    end if;
    if cardinality(idle) < 1024 then
      idle := (idle || still)[1:1024];
    end if;
    if cardinality(resting) < 1024 then
      resting := (resting || rests)[1:1024];
    end if;
    more := reached is not null;
    exit when more or from_end;
    reached := ats[n];
    reached_id := ids[n];
    exit when n < page or of_group is not null;
    crowded := true;
    more := want > 0 and adopted >= want;
    late := not more and clock_timestamp() > read_until + adopted * interval '0.2 ms';
    more := more or late;
    exit when more;
    after_at := ats[n];
    after_id := ids[n];
    if cardinality(seen) < 1024 then
      seen := seen || still || rests;
    end if;
    page := least(page * 8, case when receiver then 256 else 1024 end);
  end loop;
end $$;

-- Clears flags of groups from `from_ids` on, ten of each: the rows of the groups stand for them, and
-- this transaction has locked those.
--
-- Locks: jobs NO KEY UPDATE, skips.
create or replace function {schema}.clear_flags_from(of_queue text, groups text[], from_ids bigint[]) returns void
language plpgsql volatile
as $$
begin
  with flag as materialized (
    select f.id from unnest(groups, from_ids) g(name, from_id) join lateral (
      select j.id from {schema}.job j
      where j.queue = of_queue and j.group_id between g.name and g.name and j.flagged and j.id >= g.from_id
        and {flag_at} <= clock_timestamp()
      order by j.group_id, j.id limit 10 for no key update skip locked) f on true)
  update {schema}.job j set flagged = false from flag where j.id = any (array[flag.id]);
end $$;

-- Gives rows to groups without one that are paused, or whose heads are not due, so that their flags
-- go. Returns how many.
--
-- A change of a pause waits for the setting's lock, so its flag comes after the rest is written. The
-- head is read by a snapshot younger than the group's lock, and what comes below it is flagged. The
-- flag of a head that sleeps stays: it may have been set since, to wake the group.
--
-- Locks: new groups, settings of paused ones SHARE, jobs NO KEY UPDATE, skips.
create or replace function {schema}.give_rest(of_queue text, groups text[]) returns integer
language plpgsql volatile
as $$
declare
  mine text[]; paused text[]; ends timestamptz[]; from_ids bigint[]; given integer;
begin
  mine := {schema}.lock_new_groups(of_queue, groups);
  if mine is null then
    return 0;
  end if;
  with flag as materialized (select of_queue as queue, f.name from unnest(mine) f(name))
  select array_agg(s.group_id), array_agg(coalesce(s.paused_until, 'infinity')) into paused, ends
  from (select s.group_id, s.paused_until from flag
      join {schema}.group_setting s on s.queue = flag.queue and s.group_id = flag.name
    where {paused_s} for share of s skip locked) s;
  -- A younger snapshot than the locks'.
  with new as materialized (
    select of_queue as queue, f.name, ends[array_position(paused, f.name)] as ends_at
    from unnest(mine) f(name)),
  rest as materialized (
    select new.name, new.ends_at, j.id, j.due_at, j.priority from new
    join lateral (select h.id from {schema}.head(new.queue, new.name, 0, null) h) head on true
    join lateral (
      select j.id, least(j.run_at, j.expires_at) as due_at, j.priority::smallint from {schema}.job j
      where j.id = any (array[head.id])) j on true
    where (new.ends_at is not null or j.due_at > clock_timestamp())
      and (select g.group_id from {schema}.queue_group g
        where g.queue = new.queue and g.group_id between new.name and new.name
        order by g.group_id desc limit 1) is null),
  inserted as (
    insert into {schema}.queue_group (queue, group_id, ready_at, head_id, aging_priority)
    select of_queue, rest.name, coalesce(rest.ends_at, rest.due_at), rest.id,
      case when rest.ends_at is null then coalesce(rest.priority, 0) else 0 end
    from rest)
  select array_agg(rest.name), array_agg(case when rest.ends_at is null then rest.id + 1 else rest.id end)
    into mine, from_ids from rest;
  given := coalesce(cardinality(mine), 0);
  if given > 0 then
    perform {schema}.clear_flags_from(of_queue, mine, from_ids);
  end if;
  return given;
end $$;

-- Clears flags that call for nothing, of groups that have a row and of those that get one here,
-- until `tidy_until`. Returns how many groups. A receiver calls none of this: its transaction may
-- stay open.
create or replace function {schema}.tidy_flags(of_queue text, idle text[], resting text[],
  tidy_until timestamptz) returns integer
language plpgsql volatile
as $$
declare
  tidied integer := 0; place integer := 1;
begin
  while place <= greatest(cardinality(idle), cardinality(resting)) loop
    if place <= cardinality(idle) then
      tidied := tidied + {schema}.clear_flags(of_queue, idle[place:place + 127]);
    end if;
    if place <= cardinality(resting) then
      tidied := tidied + {schema}.give_rest(of_queue, resting[place:place + 127]);
    end if;
    exit when clock_timestamp() > tidy_until;
    place := place + 128;
  end loop;
  return tidied;
end $$;

-- Clears flags of groups that have a row, 1,024 or so: the row must be free and be locked, or be
-- claimed and be shared. Returns how many groups. An id below head_id keeps its flag, as nothing
-- else brings that job in. So does the head of a group that sleeps: the flag may wake it.
--
-- Locks: free rows and the jobs NO KEY UPDATE, claimed rows KEY SHARE, skips; gives up after 5 ms.
create or replace function {schema}.clear_flags(of_queue text, groups text[]) returns integer
language plpgsql volatile
as $$
declare
  free text[]; claimed text[]; safe text[]; safe_from bigint[]; shared text[]; shared_from bigint[];
begin
  -- By the newest version: its filter would read on to older ones.
  with flag as materialized (select distinct of_queue as queue, f.name from unnest(groups) f(name))
  select array_agg(flag.name) filter (where g.free), array_agg(flag.name) filter (where not g.free) into free, claimed
  from flag join lateral (
    select g.job_id is null as free from {schema}.queue_group g
    where g.queue = flag.queue and g.group_id between flag.name and flag.name
    order by g.group_id desc limit 1) g on true;
  with flag as materialized (select of_queue as queue, f.name from unnest(free) f(name))
  select array_agg(g.group_id), array_agg(g.head_id + (g.halted_at is null and g.ready_at > clock_timestamp())::integer)
    into safe, safe_from
  from flag join lateral (
    select g.group_id, g.head_id, g.halted_at, g.ready_at from {schema}.queue_group g
    where g.queue = flag.queue and g.group_id between flag.name and flag.name and g.claim is null
    order by g.group_id desc limit 1 for no key update skip locked) g on true;
  begin
    -- A version that an open transaction has written and then deleted is waited for, not skipped.
    perform set_config('lock_timeout', '5ms', true);
    -- Not `claim is not null`, by which all claims could be read.
    with flag as materialized (select of_queue as queue, f.name from unnest(claimed) f(name))
    select array_agg(g.group_id), array_agg(g.head_id) into shared, shared_from from flag join lateral (
      select g.group_id, g.head_id from {schema}.queue_group g
      where g.queue = flag.queue and g.group_id between flag.name and flag.name and coalesce(g.job_id, 0) > 0
      order by g.group_id desc limit 1 for key share skip locked) g on true;
  exception when lock_not_available then
    shared := null;
  end;
  perform set_config('lock_timeout', {lock_timeout}, true);
  with flag as materialized (
    select f.id from unnest(safe || shared, safe_from || shared_from) g(name, from_id) join lateral (
      select j.id from {schema}.job j
      where j.queue = of_queue and j.group_id between g.name and g.name and j.flagged and j.id >= g.from_id
      order by j.group_id, j.id limit 1 + 1024 / cardinality(safe || shared) for no key update skip locked) f on true)
  update {schema}.job j set flagged = false from flag where j.id = any (array[flag.id]);
  return coalesce(cardinality(safe || shared), 0);
end $$;
