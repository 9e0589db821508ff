-- Adoption, and a worker's claim in one round trip: made like the functions of the file before, and for the same reasons.

do $make$
declare
  function text;
begin
  foreach function in array array[

-- Adopts a page of flags that are due, from a time on, or of one group all of its flags; further pages while some had to
-- stay, each without the groups that those before met, so that no number of one group's flags hides another group (P8). How
-- many groups are in line now, whether there are more flags, and since when the first of those is due. Needs the adopter's
-- lock.
--
-- That lock is also what a group has one row for: who has it looks by snapshots that are newer than the last adopter's commit.
-- Its key must never change, or two versions of the library that run side by side would be two adopters.
--
-- A flag goes only together with a row that this transaction has inserted, or has locked while it was free (the next look comes
-- later), or has share-locked while it was claimed (its settle has not passed its exclusive lock, so a later look sees the job).
-- That is why nothing strands (P3).
--
-- A group's row is looked up from the end of the index: of several versions with one key the newest is the last as a rule. Those
-- before it are read only where there is none, or somebody changes it at that moment.
$f$
create function {schema}.adopt(of_queue text, of_group text, page integer, flags_from timestamptz,
  out in_line integer, out more boolean, out first_at timestamptz)
language plpgsql volatile
as $$
declare
  after_at timestamptz := flags_from; after_id bigint := 0; skipped text[] := '{}';
  ids bigint[]; groups text[]; ats timestamptz[]; priorities smallint[];
  names text[]; firsts bigint[]; heads smallint[]; frees boolean[]; new_names text[]; new_firsts bigint[]; new_heads smallint[];
  safe text[]; held text[]; held_from bigint[];
  woken tid[]; woken_from bigint[];
  clear bigint[]; cleared integer;
begin
  in_line := 0;
  more := false;
  for n in 1..16 loop
    if of_group is null then
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.look_at), array_agg(f.priority)
        into ids, groups, ats, priorities
      from (select j.id, j.group_id, {look_at} as look_at, j.priority::smallint from {schema}.job j
        where j.queue = of_queue and j.flagged and j.group_id <> all (skipped) and {look_at} <= now()
          and ({look_at}, j.id) > (after_at, after_id)
        order by {look_at}, j.id
        limit page for no key update skip locked) f;
    else
      select array_agg(f.id), array_agg(f.group_id), array_agg(f.look_at), array_agg(f.priority)
        into ids, groups, ats, priorities
      from (select j.id, j.group_id, {look_at} as look_at, j.priority::smallint from {schema}.job j
        where j.queue = of_queue and j.group_id between of_group and of_group and j.flagged
        order by j.group_id, j.id limit page for no key update skip locked) f;
    end if;
    more := coalesce(cardinality(ids), 0) >= page;
    exit when ids is null;
    after_at := ats[cardinality(ats)];
    after_id := ids[cardinality(ids)];
    -- Most groups have no row, and nobody else adds one now. Whether one stays that is there is not known before it is locked.
    with flag as materialized (
      select distinct on (f.name) of_queue as queue, f.name, f.id, f.priority
      from unnest(groups, ids, priorities) f(name, id, priority) order by f.name, f.id)
    select array_agg(flag.name) filter (where g.free is not null), array_agg(flag.id) filter (where g.free is not null),
        array_agg(flag.priority) filter (where g.free is not null), array_agg(g.free) filter (where g.free is not null),
        array_agg(flag.name) filter (where g.free is null), array_agg(flag.id) filter (where g.free is null),
        array_agg(flag.priority) filter (where g.free is null)
      into names, firsts, heads, frees, new_names, new_firsts, new_heads
    from flag left join lateral (
      select g.job_id is null as free from {schema}.queue_group g
      where g.queue = flag.queue and g.group_id between flag.name and flag.name
      order by g.group_id desc limit 1) g on true;

    safe := '{}';
    held := null;
    if names is not null then
      -- Free rows: locked, and woken unless halted. Every flag may go.
      with flag as materialized (
        select of_queue as queue, f.group_id, f.first_id
        from unnest(names, firsts, frees) f(group_id, first_id, free) where f.free)
      select array_agg(g.group_id), array_agg(g.ctid) filter (where g.to_wake),
          array_agg(flag.first_id) filter (where g.to_wake), least(first_at, min(g.ready_at) filter (where g.ready_at <= now()))
        into safe, woken, woken_from, first_at
      from flag join lateral (
        select g.group_id, g.ctid, g.ready_at, g.halted_at is null and g.ready_at > now() or g.head_id > flag.first_id as to_wake
        from {schema}.queue_group g
        where g.queue = flag.queue and g.group_id between flag.group_id and flag.group_id and g.claim is null
        order by g.group_id desc limit 1 for no key update skip locked) g on true;
      safe := coalesce(safe, '{}');
      if woken is not null then
        with free as materialized (
          select f.line, f.first_id from unnest(woken, woken_from) f(line, first_id)),
        earlier as (update {schema}.queue_group g set
          ready_at = case when g.halted_at is null then least(g.ready_at, now() - interval '10 s' * coalesce((
            select h.priority from {schema}.job h
            where h.queue = g.queue and (h.group_id, h.id) >= (g.group_id, least(g.head_id, free.first_id))
              and h.group_id <= g.group_id and h.status in ('queued', 'started')
            order by h.group_id, h.id limit 1), 0)) else g.ready_at end,
          head_id = least(g.head_id, free.first_id), boost = 0
        from free where g.ctid = free.line returning g.ready_at)
        select least(first_at, min(e.ready_at) filter (where e.ready_at <= now())) into first_at from earlier e;
      end if;
    end if;
    if cardinality(safe) < cardinality(names) then
      -- Claimed rows: shared with whoever has the group. An id below head_id keeps its flag: nothing else brings it in. (Not
      -- `claim is not null`, by which all claims could be read.)
      with flag as materialized (
        select of_queue as queue, f.group_id from unnest(names) f(group_id)
        where (f.group_id in (select unnest(safe))) is not true)
      select array_agg(g.group_id), array_agg(g.head_id) into held, held_from from flag join lateral (
        select g.group_id, g.head_id from {schema}.queue_group g
        where g.queue = flag.queue and g.group_id between flag.group_id and flag.group_id and coalesce(g.job_id, 0) > 0
        order by g.group_id desc limit 1 for key share skip locked) g on true;
    end if;
    if cardinality(safe) + coalesce(cardinality(held), 0) < cardinality(names) then
      -- Somebody has the row, or it has gone meanwhile.
      with flag as materialized (
        select of_queue as queue, f.name, f.id, f.priority from unnest(names, firsts, heads) f(name, id, priority))
      select new_names || array_agg(flag.name), new_firsts || array_agg(flag.id), new_heads || array_agg(flag.priority)
        into new_names, new_firsts, new_heads
      from flag
      where (select g.group_id from {schema}.queue_group g
        where g.queue = flag.queue and g.group_id between flag.name and flag.name
        order by g.group_id desc limit 1) is null;
    end if;
    if new_names is not null then
      with inserted as (
        insert into {schema}.queue_group (queue, group_id, ready_at, head_id)
        select of_queue, f.name, now() - interval '10 s' * f.priority, f.id
        from unnest(new_names, new_firsts, new_heads) f(name, id, priority)
        returning queue_group.group_id, queue_group.ready_at)
      select safe || array_agg(i.group_id), least(first_at, min(i.ready_at)) into safe, first_at from inserted i;
    end if;

    in_line := in_line + cardinality(safe) + coalesce(cardinality(held), 0);
    -- By a hash: a join would compare each flag with each group.
    clear := array(select f.id from unnest(groups, ids) f(name, id)
      where (f.name in (select unnest(safe))) is true);
    if held is not null then
      clear := clear || array(select f.id from unnest(groups, ids) f(name, id)
        join unnest(held, held_from) s(name, from_id) on s.name = f.name and f.id >= s.from_id);
    end if;
    update {schema}.job j set flagged = false where j.id = any (clear);
    get diagnostics cleared = row_count;
    exit when of_group is not null or not more or cleared = cardinality(ids);
    skipped := skipped || array(select distinct f.name from unnest(groups, ids) f(name, id)
      where (f.id in (select unnest(clear))) is not true);
  end loop;
end $$
$f$,

-- In how many seconds a claim of the queue may find something; null: never, as far as it is known. Also where somebody else has
-- what is due. The caller has plans pinned.
$f$
create function {schema}.due_in(of_queue text) returns float8
language plpgsql volatile
as $$
begin
  return extract(epoch from nullif(least(
      (select g.ready_at from {schema}.queue_group g
        where g.queue = of_queue and g.ready_at < 'infinity'
        order by g.ready_at limit 1),
      (select {look_at} from {schema}.job j
        where j.queue = of_queue and j.flagged
        order by {look_at} limit 1),
      (select j.turn_at from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued'
        order by j.turn_at limit 1),
      (select j.lease_until from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'started'
          -- Behind that are the leases of the living, and those that many ended jobs had. A doubt's grace is shorter.
          and j.lease_until <= now() + interval '2 s'
        order by j.lease_until limit 1)),
    'infinity') - clock_timestamp());
end $$
$f$,

-- Claims up to `slots` jobs, as src/worker/claim.rs does: adopt, take turns, look, write. A row for each, with what its handler
-- needs; and a last one, without an id: `thorough` where something is left that only src/worker/claim.rs does (a limit, a pause, a
-- lease that ran out, a head that is not to be started, flags to be paged past), `more` where there may be more right now,
-- or else in how many seconds the next group or job will be due. With each head come up to `per_turn` - 1 jobs behind it, and
-- `at_most` of all those: rows of their own, without a token.
--
-- Where dead rows stay (somebody's transaction keeps vacuum from them), or many groups are held, a claim reads past all of
-- them to what is due, and to what will be due next. So it says how long it read, and before when it has left nothing that it
-- could take (`groups_at`, `flags_at`, `loose_at`): there the next ones may begin. Those see nothing that comes in below (a
-- late commit, a priority, a claim that is given back), and do not look for what will be due: a claim from the beginning finds
-- it, now and then. A little less makes late commits rare: enqueues have the time of their transaction's begin, turns that of
-- their end.
$f$
create function {schema}.claim_jobs(of_queue text, slots integer, loose_first boolean, default_attempts integer,
  lease_seconds float8, own_lease boolean, processor bigint, ignore_before timestamptz, wake_channel text,
  groups_from timestamptz, flags_from timestamptz, loose_from timestamptz, per_turn integer, at_most integer)
returns table (
  doubted boolean, id bigint, data text, attempts integer, attempts_forgiven integer, max_attempts integer,
  timeout_ms bigint, created_at timestamptz, run_at timestamptz, cancel_requested boolean, followed boolean,
  pid integer, since timestamptz, lease_ms bigint, payload bytea, content_type text, name text, reference text,
  priority smallint, group_id text, claim uuid, go text, expires_at timestamptz,
  thorough boolean, more boolean, next float8, read_s float8, groups_at timestamptz, flags_at timestamptz,
  loose_at timestamptz)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  is_thorough boolean := false; is_more boolean := false; next_in float8;
  flag_at timestamptz; due_at timestamptz; few boolean;
  at timestamptz; reading interval; line_at timestamptz; group_at timestamptz;
  whole constant boolean := groups_from = '-infinity';
  n integer := 0; ran integer; want integer; taken integer; in_line integer := 0;
  names text[]; heads bigint[]; leases bigint[]; tokens uuid[];
  words text[]; fresh boolean[]; ends bigint[]; sizes smallint[]; lines tid[]; each integer;
begin
  -- A snapshot of its own for each statement, as the caller's session may have decided otherwise.
  if current_setting('transaction_isolation') <> 'read committed' or current_setting('transaction_read_only') <> 'off' then
    return query select null::boolean, null::bigint, null, null::integer, null::integer, null::integer, null::bigint,
      null::timestamptz, null::timestamptz, null::boolean, null::boolean, null::integer, null::timestamptz, null::bigint,
      null::bytea, null, null, null, null::smallint, null, null::uuid, null, null::timestamptz, true, true, null::float8,
      null::float8, null::timestamptz, null::timestamptz, null::timestamptz;
    return;
  end if;
  -- The answer is text, in the form that the library reads.
  perform {schema}.pin_plans(), set_config('synchronous_commit', 'on', true), set_config('DateStyle', 'ISO, MDY', true),
    set_config('TimeZone', 'UTC', true), set_config('bytea_output', 'hex', true);
  at := clock_timestamp();
  is_thorough := (
      select q.paused_at is not null or q.in_flight_limit is not null from {schema}.queue q where q.name = of_queue) is true
    or (select g.ready_at from {schema}.queue_group g
      where g.queue = of_queue and g.boost > 0 and g.ready_at <= now() and g.ready_at >= groups_from
      order by g.ready_at limit 1) is not null
    or (select j.lease_until from {schema}.job j
      where j.queue = of_queue and j.group_id is null and j.status = 'started'
        and j.lease_until <= now() and j.lease_until >= loose_from
      -- A handler by transaction has it locked as long as it runs.
      order by j.lease_until limit 1 for no key update skip locked) is not null
    or (select j.run_at from {schema}.job j
      where j.queue = of_queue and j.group_id is null and j.status = 'queued' and j.priority > 0
        and j.turn_at >= j.run_at and j.run_at <= now() and j.run_at >= loose_from
      order by j.run_at limit 1) is not null;
  select
    (select j.turn_at from {schema}.job j
      where j.queue = of_queue and j.group_id is null and j.status = 'queued'
        and j.turn_at <= now() and j.turn_at >= loose_from
      order by j.turn_at limit 1),
    (select g.ready_at from {schema}.queue_group g
      where g.queue = of_queue and g.ready_at <= now() and g.ready_at < 'infinity' and g.ready_at >= groups_from
      order by g.ready_at limit 1),
    (select {look_at} from {schema}.job j
      where j.queue = of_queue and j.flagged
        and {look_at} <= now() and {look_at} >= flags_from
      order by {look_at} limit 1)
    into due_at, line_at, flag_at;
  reading := clock_timestamp() - at;

  if not is_thorough and flag_at is not null then
    if pg_try_advisory_xact_lock(hashtextextended('seriatim adopt ' || {schema_text} || ' ' || of_queue, 0)) then
      few := false;
      if line_at is null and due_at is null then
        -- Turns of several jobs are put together below.
        select count(*) <= slots and count(*) = count(distinct f.group_id)
              and bool_and(f.at > 'epoch' and g.there is null and (per_turn < 2 or (
                select h.id from {schema}.job h
                where h.queue = of_queue and (h.group_id, h.id) > (f.group_id, f.id) and h.group_id <= f.group_id
                  and h.status in ('queued', 'started')
                order by h.group_id, h.id limit 1) is null)),
            array_agg(f.group_id), array_agg(f.id), array_agg(f.lease_ms)
          into few, names, heads, leases
        from (select j.id, j.group_id, {look_at} as at, j.lease_ms::bigint from {schema}.job j
          where j.queue = of_queue and j.flagged and {look_at} <= now() and {look_at} >= flag_at
          order by {look_at}, j.id limit slots + 1) f
        left join lateral (
          select true as there from {schema}.queue_group g
          where g.queue = of_queue and g.group_id between f.group_id and f.group_id
          order by g.group_id desc limit 1) g on true;
      end if;
      if few then
        -- There is a slot for each of them: put in line and claimed at once.
        with inserted as (
          insert into {schema}.queue_group (queue, group_id, ready_at, head_id, claim, job_id, claimed_by)
          select of_queue, f.name, clock_timestamp() + make_interval(
            secs => coalesce(case when own_lease then f.lease_ms / 1000.0 end, lease_seconds)),
            f.id, gen_random_uuid(), f.id, processor
          from unnest(names, heads, leases) f(name, id, lease_ms)
          returning queue_group.group_id, queue_group.job_id, queue_group.claim)
        select array_agg(i.group_id), array_agg(i.job_id), array_agg(i.claim) into names, heads, tokens from inserted i;
        -- A newer snapshot than the inserts': another flag may have come, below.
        return query
        with turn as materialized (
          select of_queue as queue, t.group_id, t.id, t.token from unnest(names, heads, tokens) t(group_id, id, token)),
        locked as materialized (
          select j.id, {go} as go, turn.token from turn join {schema}.job j on j.id = any (array[turn.id])
          where j.status = 'queued' and least(j.run_at, j.expires_at) <= now()
            and (select f.id from {schema}.job f
              where f.queue = turn.queue and f.group_id between turn.group_id and turn.group_id and f.flagged
              order by f.group_id, f.id limit 1) = turn.id
            and (select s.group_id from {schema}.group_setting s
              where s.queue = turn.queue and s.group_id = turn.group_id and s.paused_at is not null limit 1) is null
          for no key update of j skip locked),
        started as (
          {start}, locked.token)
        select {claimed} from started j;
        get diagnostics n = row_count;
        if n < cardinality(names) then
          -- Looked at like any other.
          is_thorough := true;
          update {schema}.queue_group g set claim = null, job_id = null, claimed_by = null,
            ready_at = now() - interval '10 s' * coalesce((select j.priority from {schema}.job j where j.id = t.id), 0)
          from unnest(names, heads) t(group_id, id)
          where g.queue = any (array[of_queue]) and g.group_id between t.group_id and t.group_id
            and (select j.flagged from {schema}.job j where j.id = t.id) is not false;
        end if;
      else
        -- More than there are slots, and not many more: those that run do not wait for the others.
        select a.in_line, a.more, least(line_at, a.first_at) into in_line, is_more, line_at
        from {schema}.adopt(of_queue, null, greatest(64, least(slots * 2, 256), slots + 32), flag_at) a;
      end if;
    else
      is_more := true;
    end if;
  end if;

  for part in 1..2 loop
    continue when is_thorough or n >= slots;
    want := slots - n;
    if (part = 1) = loose_first then
      continue when due_at is null;
      return query
      with due as materialized (
        select j.id, {go} as go from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued'
          and j.turn_at <= now() and j.turn_at >= due_at
        order by j.turn_at, j.id limit want for no key update skip locked),
      started as (
        update {schema}.job j set
          status = 'started', attempts = j.attempts + (due.go = 'run')::integer,
          last_started_at = case when due.go = 'run' then clock_timestamp() else j.last_started_at end,
          claim = gen_random_uuid(), suspect = null, claimed_by = processor,
          lease_until = clock_timestamp() + make_interval(
            secs => coalesce(case when own_lease then j.lease_ms / 1000.0 end, lease_seconds))
        from due where j.id = any (array[due.id])
        returning j.*, due.go, j.claim as token)
      select {claimed} from started j;
      get diagnostics ran = row_count;
      n := n + ran;
    else
      continue when line_at is null;
      at := clock_timestamp();
      group_at := line_at;
      select count(*), array_agg(g.group_id) filter (where g.job_id is null),
        array_agg(g.head_id) filter (where g.job_id is null), array_agg(g.ctid) filter (where g.job_id is null), max(g.ready_at)
        into taken, names, heads, lines, group_at
      from (select g.group_id, g.head_id, g.job_id, g.ctid, g.ready_at from {schema}.queue_group g
        where g.queue = of_queue and g.ready_at <= now() and g.ready_at < 'infinity' and g.ready_at >= group_at
        order by g.ready_at limit want for no key update skip locked) g;
      reading := reading + (clock_timestamp() - at);
      if taken < want then
        -- What else is due, somebody holds, perhaps for hours.
        group_at := now();
      end if;
      continue when taken = 0;
      -- A newer snapshot than the locks'.
      with turn as materialized (
        select of_queue as queue, t.* from unnest(names, heads) with ordinality t(group_id, head_id, place)),
      candidate as materialized (
        select turn.queue, turn.group_id, turn.place, c.id from turn join lateral (
          select j.id from {schema}.job j
          where j.queue = turn.queue and (j.group_id, j.id) >= (turn.group_id, turn.head_id)
            and j.group_id <= turn.group_id and j.status in ('queued', 'started')
          order by j.group_id, j.id limit 1) c on true
        union all
        select turn.queue, turn.group_id, turn.place, c.id from turn join lateral (
          select f.id from {schema}.job f
          where f.queue = turn.queue and f.group_id between turn.group_id and turn.group_id and f.flagged
          order by f.group_id, f.id limit 1) f on true
        join lateral (
          select j.id from {schema}.job j
          where j.queue = turn.queue and (j.group_id, j.id) >= (turn.group_id, f.id)
            and j.group_id <= turn.group_id and j.status in ('queued', 'started')
          order by j.group_id, j.id limit 1) c on true),
      head as materialized (
        select distinct on (queue, group_id) queue, group_id, place, id from candidate order by queue, group_id, id),
      locked as materialized (
        select head.place, j.group_id, j.id, {go} as go, j.attempts = j.attempts_forgiven as fresh
        from head join {schema}.job j on j.id = any (array[head.id])
        where j.finished_at is null and j.status <> 'started' and least(j.run_at, j.expires_at) <= now()
          and (select s.group_id from {schema}.group_setting s
            where s.queue = head.queue and s.group_id = head.group_id and s.paused_at is not null limit 1) is null
        for no key update of j skip locked)
      select count(*), array_agg(l.group_id), array_agg(l.id), array_agg(l.go), array_agg(l.fresh and l.go = 'run'),
          array_agg(null::bigint), array_agg(1::smallint), array_agg(lines[l.place]),
          least(per_turn - 1, at_most / greatest(count(*) filter (where l.fresh and l.go = 'run'), 1))
        into ran, names, heads, words, fresh, ends, sizes, lines, each
      -- Some may have to wait for a slot: in the order of their turns (P8).
      from (select locked.* from locked order by locked.place) l;
      n := n + ran;
      is_thorough := is_thorough or ran < taken;
      if taken = want and in_line > want then
        perform pg_notify(wake_channel, of_queue);
      end if;
      continue when ran = 0;
      if each > 0 then
        -- What is to run in the same turns: next in order, due, and never begun. Such a job loses nothing if its worker dies
        -- before it comes to run; one whose attempts are limited to 1 would. By the time its turn comes it may have expired,
        -- and only a claim sees that. One that is not to be had ends the line.
        with turn as materialized (
          select of_queue as queue, t.*
          from unnest(names, heads, words, fresh) with ordinality t(group_id, id, go, fresh, place)),
        next as materialized (
          select turn.group_id, turn.place, f.id from turn join lateral (
            select j.id from {schema}.job j
            where j.queue = turn.queue and (j.group_id, j.id) > (turn.group_id, turn.id)
              and j.group_id <= turn.group_id and j.status in ('queued', 'started')
            order by j.group_id, j.id limit each) f on turn.fresh),
        locked as materialized (
          select j.id from next join {schema}.job j on j.id = any (array[next.id])
          where j.finished_at is null and j.status <> 'started' and j.run_at <= now() and j.expires_at is null
            and coalesce(j.created_at >= ignore_before, true)
            and j.attempts = j.attempts_forgiven and coalesce(j.max_attempts, default_attempts) > 1
            and (j.lease_ms is null or not own_lease)
          for no key update of j skip locked),
        line as (
          select m.*, min(m.id) filter (where not m.ours) over (partition by m.group_id) as gap
          from (
            select turn.group_id, turn.place, turn.id, turn.go, true as first, true as ours from turn
            union all
            select next.group_id, next.place, next.id, 'run', false, (next.id in (select locked.id from locked)) is true from next) m),
        ours as (
          select l.place, l.id, l.go, l.first, max(l.id) over w as last, count(*) over w as size
          from line l where coalesce(l.id < l.gap, true) window w as (partition by l.group_id))
        select array_agg(o.id), array_agg(o.go), array_agg(case when o.first and o.size > 1 then o.last end),
            array_agg(case when o.first then o.size::smallint end), array_agg(case when o.first then lines[o.place] end)
          into heads, words, ends, sizes, lines from (select ours.* from ours order by ours.place, ours.id) o;
      end if;
      return query
      with locked as materialized (
        select t.* from unnest(heads, words, ends, sizes, lines) t(id, go, batch_end, batch_size, line)),
      started as (
        {start}, locked.batch_end as turn_end, locked.batch_size as turn_size, locked.line),
      claimed as (
        update {schema}.queue_group g set
          claim = gen_random_uuid(), job_id = started.id, head_id = started.id, suspect = null, claimed_by = processor,
          boost = 0, batch_end = started.turn_end, batch_size = started.turn_size,
          ready_at = clock_timestamp() + make_interval(
            secs => coalesce(case when own_lease then started.lease_ms / 1000.0 end, lease_seconds))
        from started where g.ctid = started.line
        returning started.*, g.claim as token),
      behind as (
        select started.*, null::uuid as token from started where started.turn_size is null)
      select {claimed} from claimed j
      union all
      select {claimed} from behind j;
      get diagnostics taken = row_count;
      if taken < cardinality(heads) then
        raise 'the rows of groups are not as this claim has locked them' using errcode = 'no_data_found';
      end if;
    end if;
  end loop;

  is_more := is_more or is_thorough;
  if not is_more and n >= slots and few is not true then
    if group_at is null then
      -- No group was taken, for want of a slot or because somebody has them.
      is_more := line_at is not null;
    else
      is_more := (
        select g.ready_at from {schema}.queue_group g
        where g.queue = of_queue and g.ready_at <= now() and g.ready_at < 'infinity' and g.ready_at >= group_at
        order by g.ready_at limit 1) is not null;
    end if;
    if due_at is not null and not is_more then
      is_more := (
        select j.turn_at from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued'
          and j.turn_at <= now() and j.turn_at >= due_at
        order by j.turn_at limit 1) is not null;
    end if;
    if flag_at is not null and not is_more then
      -- An adopter skips what somebody has.
      is_more := (
        select {look_at} from {schema}.job j
        where j.queue = of_queue and j.flagged and {look_at} <= now() and {look_at} >= flag_at
        order by {look_at} limit 1) is not null;
    end if;
  end if;
  if whole and not is_more then
    at := clock_timestamp();
    -- The leases of this claim count as well: a look too many.
    next_in := extract(epoch from nullif(least(
      (select g.ready_at from {schema}.queue_group g
        where g.queue = of_queue and g.ready_at > now() and g.ready_at < 'infinity'
        order by g.ready_at limit 1),
      (select j.turn_at from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued' and j.turn_at > now()
        order by j.turn_at limit 1),
      (select {look_at}
        from {schema}.job j
        where j.queue = of_queue and j.flagged
          and {look_at} > now()
        order by {look_at} limit 1)),
      'infinity') - clock_timestamp());
    reading := reading + (clock_timestamp() - at);
  end if;
  return query select null::boolean, null::bigint, null, null::integer, null::integer, null::integer, null::bigint,
    null::timestamptz, null::timestamptz, null::boolean, null::boolean, null::integer, null::timestamptz, null::bigint,
    null::bytea, null, null, null, null::smallint, null, null::uuid, null, null::timestamptz,
    is_thorough, is_more, next_in, extract(epoch from reading)::float8,
    least(coalesce(group_at, line_at), now() - interval '0.25 s'), least(flag_at, now() - interval '1 s'),
    least(due_at, now() - interval '1 s');
end $$
$f$
  ] loop
    function := replace(function, '{start}', $start$update {schema}.job j set
          status = 'started', flagged = false, attempts = j.attempts + (locked.go = 'run')::integer,
          last_started_at = case when locked.go = 'run' then clock_timestamp() else j.last_started_at end
        from locked
        where j.id = any (array[locked.id]) and j.finished_at is null
        returning j.*, locked.go$start$);
    function := replace(function, '{claimed}', $claimed$
          false, j.id, j.data::text, j.attempts, j.attempts_forgiven, j.max_attempts::integer, j.timeout_ms::bigint,
          j.created_at, j.run_at, exists (select from {schema}.cancel_request r where r.job_id = j.id), true,
          pg_backend_pid(), now(), j.lease_ms::bigint, j.payload, j.content_type, j.name, j.reference, j.priority::smallint,
          j.group_id, j.token, j.go, j.expires_at,
          null::boolean, null::boolean, null::float8, null::float8, null::timestamptz, null::timestamptz, null::timestamptz$claimed$);
    execute replace(replace(replace(replace(function, '{schema}', quote_ident(current_schema())),
      '{schema_text}', quote_literal(current_schema())),
      '{look_at}', $look$case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end$look$),
      '{go}', $go$case when j.created_at < ignore_before then 'ignored'
          when j.attempts - j.attempts_forgiven >= coalesce(j.max_attempts, default_attempts) then 'exhausted'
          when j.expires_at <= now() then 'expired' else 'run' end$go$);
  end loop;
end $make$;
