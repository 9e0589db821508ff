-- Adoption: flags become groups in line.
--
-- A flag is read without a lock. It goes only with a row that this transaction has inserted; or has
-- locked while it was free, as the next read of its head comes later; or has share-locked while it
-- was claimed, as its settle has not passed its exclusive lock, and a later read sees the job. That
-- is why nothing strands (P3). The end of an attempt clears its job's flag as well.
--
-- A row is inserted under an advisory lock of its group, held until the commit, by a statement
-- whose snapshot is younger than that lock. So a group has one row, any number of adopters work
-- side by side, and an open transaction keeps only the groups that it adopted. What the lock is
-- called must never change, or two versions of the library would give a group two rows.
--
-- What is found by id says `coalesce(flagged, false)`: by the words of its partial index, that
-- could be read as a whole. A group's row is looked up from the end of the index: of several
-- versions with one key the newest
-- is the last as a rule.

-- Adopts up to `want` groups with flags behind `from_at`, `from_id` and up to `until_at`, in the
-- order of the line, or the flags of one group. Reads on behind flags that call for nothing, with
-- pages that grow (P8). A worker's claim ends that after a tenth of a second, and
-- the next one goes on there.
--
-- Returns how many groups it put in line, whether there may be more flags that call for something,
-- since when the first of its groups is due, and up to which flag it has read: one transaction may
-- leave any number of flags with one time. `idle` are groups whose
-- flags called for nothing, 1,024 at most, and `crowded` says that they filled a page. `turns` are
-- the rows that it has inserted, if it has done nothing else: they are locked, and ready since
-- `ready_ats`.
--
-- Rows that are due by `due_by` the claim reads itself. One that falls due later it does not: by
-- the clock of this function a flag of its group would be passed by both.
--
-- A receiver's transaction may stay open: it adopts only groups whose heads it can start, and locks
-- those heads.
--
-- Locks: groups' advisory locks, rows that it wakes, jobs whose flags go: tries, skips.
create or replace function {schema}.adopt(of_queue text, of_group text, want integer, from_at timestamptz,
  from_id bigint, until_at timestamptz, receiver boolean, due_by timestamptz,
  out adopted integer, out more boolean, out first_at timestamptz, out reached timestamptz, out reached_id bigint,
  out idle text[], out crowded boolean, out turns {schema}.locked_turns, out ready_ats timestamptz[])
language plpgsql volatile
as $$
declare
  began constant timestamptz := clock_timestamp();
  after_at timestamptz := from_at; after_id bigint := from_id; page integer := least(want, 256) + 32;
  n integer; ids bigint[]; groups text[]; ats timestamptz[]; ended boolean[];
  names text[]; firsts bigint[]; flag_ats timestamptz[]; is_new boolean[]; head_ids bigint[]; drained text[]; still text[];
  new_names text[]; new_ids bigint[]; new_ats timestamptz[];
  new_lines tid[]; new_at timestamptz; last_at timestamptz; lines tid[]; line tid; woken text[]; woken_ids bigint[]; woken_ats timestamptz[]; clear bigint[];
  resting text[]; resting_ids bigint[]; resting_ats timestamptz[]; given_rest integer := 0;
  seen text[] := '{}'; looked boolean := false; all_new boolean;
begin
  adopted := 0;
  more := false;
  crowded := false;
  reached := from_at;
  reached_id := from_id;
  idle := '{}';
  loop
    if of_group is null then
      -- Of a group whose flags call for nothing, one is read.
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.flag_at), array_agg(f.ended)
        into ids, groups, ats, ended
      from (select j.id, j.group_id, {flag_at} as flag_at, j.finished_at is not null as ended from {schema}.job j
        where j.queue = of_queue and j.flagged and {flag_at} <= until_at and ({flag_at}, j.id) > (after_at, after_id)
          and (j.group_id in (select unnest(seen))) is not true
        order by {flag_at}, j.id limit page) f;
    else
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.flag_at), array_agg(f.ended)
        into ids, groups, ats, ended
      from (select j.id, j.group_id, {flag_at} as flag_at, j.finished_at is not null as ended from {schema}.job j
        where j.queue = of_queue and j.group_id between of_group and of_group and j.flagged and {flag_at} <= until_at
        order by j.group_id, j.id limit page) f;
    end if;
    n := coalesce(cardinality(ids), 0);
    exit when n = 0;
    -- A few flags are mostly of new groups, one each. If not, they are looked at again.
    all_new := not receiver and not looked and n <= least(want, 8) and not true = any (ended)
      and (n = 1 or n = (select count(distinct f.name) from unnest(groups) f(name)));
    looked := true;

    if all_new then
      names := groups;
      firsts := ids;
      flag_ats := ats;
      is_new := array_fill(true, array[n]);
    else
      -- What each group's first flag calls for, in the order of the line.
      with flagged as materialized (
        select of_queue as queue, f.name, min(f.id) as id, (array_agg(f.flag_at order by f.id))[1] as flag_at, bool_or(f.ended) as ended
        from unnest(groups, ids, ats, ended) f(name, id, flag_at, ended) group by f.name),
      call as materialized (
        -- A new group's place is that of its head, whatever the priorities of those behind it.
        select f.name, f.id, head.id as head_id, case when head.turn_at <= began then head.turn_at else f.flag_at end as flag_at, case
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
      select array_agg(c.name) filter (where c.what in ('new', 'woken')), array_agg(c.id) filter (where c.what in ('new', 'woken')),
          array_agg(c.flag_at) filter (where c.what in ('new', 'woken')), array_agg(c.what = 'new') filter (where c.what in ('new', 'woken')),
          array_agg(c.head_id) filter (where c.what in ('new', 'woken')),
          array_agg(c.name) filter (where c.what = 'drained'), array_agg(c.name) filter (where c.what = 'idle'),
          array_agg(c.name) filter (where c.what = 'resting'), array_agg(c.id) filter (where c.what = 'resting'),
          array_agg(c.flag_at) filter (where c.what = 'resting')
        into names, firsts, flag_ats, is_new, head_ids, drained, still, resting, resting_ids, resting_ats
      from (select call.* from call order by call.flag_at, call.id) c;
    end if;

    -- One by one, up to as many as are wanted: one that another transaction has uses up nothing.
    new_names := '{}';
    new_ids := '{}';
    new_ats := '{}';
    lines := '{}';
    woken := '{}';
    woken_ids := '{}';
    woken_ats := '{}';
    reached := null;
    for i in 1..coalesce(cardinality(names), 0) loop
      if adopted >= want then
        reached := flag_ats[i];
        reached_id := 0;
        exit;
      end if;
      -- A receiver adopts only what it takes.
      continue when receiver and flag_ats[i] > until_at;
      if is_new[i] then
        if receiver then
          perform from {schema}.job j where j.id = head_ids[i] for no key update skip locked;
          continue when not found;
        end if;
        continue when not pg_try_advisory_xact_lock(hashtextextended(
          'seriatim adopt ' || {schema_text} || ' ' || of_queue || ' ' || names[i], 0));
        new_names := new_names || names[i];
        new_ids := new_ids || firsts[i];
        new_ats := new_ats || flag_ats[i];
      else
        select g.ctid into line from {schema}.queue_group g
        where g.queue = any (array[of_queue]) and g.group_id between names[i] and names[i] and g.claim is null
        order by g.group_id desc limit 1 for no key update skip locked;
        continue when line is null;
        -- A claim may have ended since the flags were read, which took that of its job with it. Its
        -- group would go before those that have waited longer (P8).
        perform from {schema}.job j where j.id = firsts[i] and coalesce(j.flagged, false);
        continue when not found;
        lines := lines || line;
        woken := woken || names[i];
        woken_ids := woken_ids || firsts[i];
        woken_ats := woken_ats || flag_ats[i];
      end if;
      adopted := adopted + 1;
    end loop;
    -- A group that is paused, or whose head is not due, uses up nothing either. A worker gives some
    -- of them their rows, so that their flags go.
    for i in 1..coalesce(cardinality(resting), 0) loop
      exit when receiver or given_rest >= 64;
      if pg_try_advisory_xact_lock(hashtextextended(
        'seriatim adopt ' || {schema_text} || ' ' || of_queue || ' ' || resting[i], 0))
      then
        new_names := new_names || resting[i];
        new_ids := new_ids || resting_ids[i];
        new_ats := new_ats || resting_ats[i];
        given_rest := given_rest + 1;
      end if;
    end loop;
    still := still || resting;
    resting := null;
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
        from flag where g.ctid = flag.line returning g.ready_at)
      select least(first_at, min(e.ready_at) filter (where e.ready_at < 'infinity')) into first_at from earlier e;
    end if;

    if all_new then
      if cardinality(new_names) = n then
        reached := ats[n];
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
    more := reached is not null;
    exit when more;
    reached := ats[n];
    reached_id := ids[n];
    exit when n < page or of_group is not null;
    crowded := true;
    more := adopted >= want or not receiver and clock_timestamp() > began + interval '0.1 s';
    exit when more;
    after_at := ats[n];
    after_id := ids[n];
    if cardinality(seen) < 4096 then
      seen := seen || still;
    end if;
    page := least(page * 8, 4096);
  end loop;
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
