-- Claims up to `slots` jobs: adopt, take turns, read heads, write. Returns a row for each with what
-- its handler needs, and a last row without an id. That says `thorough` if something is left that
-- only the claim in Rust does (a limit, a pause, a lease that ran out, a head that is not to be
-- started, flags to be paged past); `more` if there may be more right now; or else in how many
-- seconds the next group or job will be due. With each head come up to `per_turn` - 1 followers,
-- and `at_most` of all those: rows of their own, without a token.
--
-- Under a pinned vacuum horizon, or with many groups held, a claim reads past all dead or locked
-- entries to what is due, and to what will be due next. So it says how long it read, and up to when
-- it has left nothing that it could take (`groups_at`, `flags_at`, `ungrouped_at`). The next claims
-- may begin there. They miss what comes in below: a late commit, a priority, a released claim. They
-- do not ask what will be due. A claim from the beginning finds it, now and then.
-- Beginning a little lower makes missed late commits rare: enqueues have the time of their
-- transaction's begin, turns that of their end.
create or replace function {schema}.claim_jobs(of_queue text, slots integer, ungrouped_first boolean, default_attempts integer,
  lease_seconds float8, own_lease boolean, processor bigint, ignore_before timestamptz, wake_channel text,
  groups_from timestamptz, flags_from timestamptz, ungrouped_from timestamptz, per_turn integer, at_most integer)
returns table (
  suspected boolean, id bigint, data text, attempts integer, attempts_forgiven integer, max_attempts integer,
  timeout_ms bigint, created_at timestamptz, run_at timestamptz, cancel_requested boolean, followed boolean,
  pid integer, since timestamptz, lease_ms bigint, payload bytea, content_type text, name text, reference text,
  priority smallint, group_id text, claim uuid, disposition text, expires_at timestamptz,
  thorough boolean, more boolean, next float8, read_s float8, groups_at timestamptz, flags_at timestamptz,
  ungrouped_at timestamptz)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  is_thorough boolean := false; is_more boolean := false; next_in float8;
  flag_at timestamptz; due_at timestamptz; few boolean;
  at timestamptz; reading interval; line_at timestamptz; group_at timestamptz;
  whole constant boolean := groups_from = '-infinity';
  n integer := 0; ran integer; want integer; taken integer; readied integer := 0;
  names text[]; heads bigint[]; leases bigint[]; tokens uuid[];
  words text[]; fresh boolean[]; ends bigint[]; sizes smallint[]; lines tid[]; each integer;
begin
  -- Each statement needs a snapshot of its own, whatever the caller's session has decided.
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
      where g.queue = of_queue and g.aging_priority > 0 and g.ready_at <= now() and g.ready_at >= groups_from
      order by g.ready_at limit 1) is not null
    or (select j.lease_until from {schema}.job j
      where j.queue = of_queue and j.group_id is null and j.status = 'started'
        and j.lease_until <= now() and j.lease_until >= ungrouped_from
      -- A handler by transaction has it locked as long as it runs.
      order by j.lease_until limit 1 for no key update skip locked) is not null
    or (select j.run_at from {schema}.job j
      where j.queue = of_queue and j.group_id is null and j.status = 'queued' and j.priority > 0
        and j.turn_at >= j.run_at and j.run_at <= now() and j.run_at >= ungrouped_from
      order by j.run_at limit 1) is not null;
  select
    (select j.turn_at from {schema}.job j
      where j.queue = of_queue and j.group_id is null and j.status = 'queued'
        and j.turn_at <= now() and j.turn_at >= ungrouped_from
      order by j.turn_at limit 1),
    (select g.ready_at from {schema}.queue_group g
      where g.queue = of_queue and g.ready_at <= now() and g.ready_at < 'infinity' and g.ready_at >= groups_from
      order by g.ready_at limit 1),
    (select {flag_due_at} from {schema}.job j
      where j.queue = of_queue and j.flagged
        and {flag_due_at} <= now() and {flag_due_at} >= flags_from
      order by {flag_due_at} limit 1)
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
        from (select j.id, j.group_id, {flag_due_at} as at, j.lease_ms::bigint from {schema}.job j
          where j.queue = of_queue and j.flagged and {flag_due_at} <= now() and {flag_due_at} >= flag_at
          order by {flag_due_at}, j.id limit slots + 1) f
        left join lateral (
          select true as there from {schema}.queue_group g
          where g.queue = of_queue and g.group_id between f.group_id and f.group_id
          order by g.group_id desc limit 1) g on true;
      end if;
      if few then
        -- There is a slot for each of them: put in line and claimed in one statement.
        with inserted as (
          insert into {schema}.queue_group (queue, group_id, ready_at, head_id, claim, job_id, claimed_by)
          select of_queue, f.name, clock_timestamp() + make_interval(
            secs => coalesce(case when own_lease then f.lease_ms / 1000.0 end, lease_seconds)),
            f.id, gen_random_uuid(), f.id, processor
          from unnest(names, heads, leases) f(name, id, lease_ms)
          returning queue_group.group_id, queue_group.job_id, queue_group.claim)
        select array_agg(i.group_id), array_agg(i.job_id), array_agg(i.claim) into names, heads, tokens from inserted i;
        -- A younger snapshot than the inserts': another flag may have come, below.
        return query
        with turn as materialized (
          select of_queue as queue, t.group_id, t.id, t.token from unnest(names, heads, tokens) t(group_id, id, token)),
        locked as materialized (
          select j.id, {disposition} as disposition, turn.token from turn join {schema}.job j on j.id = any (array[turn.id])
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
          -- They are claimed like any other group.
          is_thorough := true;
          update {schema}.queue_group g set claim = null, job_id = null, claimed_by = null,
            ready_at = now() - {priority_aging} * coalesce((select j.priority from {schema}.job j where j.id = t.id), 0)
          from unnest(names, heads) t(group_id, id)
          where g.queue = any (array[of_queue]) and g.group_id between t.group_id and t.group_id
            and (select j.flagged from {schema}.job j where j.id = t.id) is not false;
        end if;
      else
        -- More than there are slots, and not many more: those that run do not wait for the others.
        select a.readied, a.more, least(line_at, a.first_at) into readied, is_more, line_at
        from {schema}.adopt(of_queue, null, greatest(64, least(slots * 2, 256), slots + 32), flag_at) a;
      end if;
    else
      is_more := true;
    end if;
  end if;

  for part in 1..2 loop
    continue when is_thorough or n >= slots;
    want := slots - n;
    if (part = 1) = ungrouped_first then
      continue when due_at is null;
      return query
      with due as materialized (
        select j.id, {disposition} as disposition from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued'
          and j.turn_at <= now() and j.turn_at >= due_at
        order by j.turn_at, j.id limit want for no key update skip locked),
      started as (
        update {schema}.job j set
          status = 'started', attempts = j.attempts + (due.disposition = 'run')::integer,
          last_started_at = case when due.disposition = 'run' then clock_timestamp() else j.last_started_at end,
          claim = gen_random_uuid(), suspect = null, claimed_by = processor,
          lease_until = clock_timestamp() + make_interval(
            secs => coalesce(case when own_lease then j.lease_ms / 1000.0 end, lease_seconds))
        from due where j.id = any (array[due.id])
        returning j.*, due.disposition, j.claim as token)
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
        -- Other transactions hold what else is due, perhaps for hours.
        group_at := now();
      end if;
      continue when taken = 0;
      -- A younger snapshot than the locks'.
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
        select head.place, j.group_id, j.id, {disposition} as disposition, j.attempts = j.attempts_forgiven as fresh
        from head join {schema}.job j on j.id = any (array[head.id])
        where j.finished_at is null and j.status <> 'started' and least(j.run_at, j.expires_at) <= now()
          and (select s.group_id from {schema}.group_setting s
            where s.queue = head.queue and s.group_id = head.group_id and s.paused_at is not null limit 1) is null
        for no key update of j skip locked)
      select count(*), array_agg(l.group_id), array_agg(l.id), array_agg(l.disposition), array_agg(l.fresh and l.disposition = 'run'),
          array_agg(null::bigint), array_agg(1::smallint), array_agg(lines[l.place]),
          least(per_turn - 1, at_most / greatest(count(*) filter (where l.fresh and l.disposition = 'run'), 1))
        into ran, names, heads, words, fresh, ends, sizes, lines, each
      -- Some may have to wait for a slot: in the order of their turns (P8).
      from (select locked.* from locked order by locked.place) l;
      n := n + ran;
      is_thorough := is_thorough or ran < taken;
      if taken = want and readied > want then
        perform pg_notify(wake_channel, of_queue);
      end if;
      continue when ran = 0;
      if each > 0 then
        -- The followers: next in order, due, and never begun. Such a job loses nothing if its
        -- worker dies before it comes to run; one whose attempts are limited to 1 would. By the
        -- time its turn comes it may have expired, and only a claim sees that. The first that
        -- cannot be had ends the line.
        with turn as materialized (
          select of_queue as queue, t.*
          from unnest(names, heads, words, fresh) with ordinality t(group_id, id, disposition, fresh, place)),
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
            select turn.group_id, turn.place, turn.id, turn.disposition, true as first, true as ours from turn
            union all
            select next.group_id, next.place, next.id, 'run', false, (next.id in (select locked.id from locked)) is true from next) m),
        ours as (
          select l.place, l.id, l.disposition, l.first, max(l.id) over w as last, count(*) over w as size
          from line l where coalesce(l.id < l.gap, true) window w as (partition by l.group_id))
        select array_agg(o.id), array_agg(o.disposition), array_agg(case when o.first and o.size > 1 then o.last end),
            array_agg(case when o.first then o.size::smallint end), array_agg(case when o.first then lines[o.place] end)
          into heads, words, ends, sizes, lines from (select ours.* from ours order by ours.place, ours.id) o;
      end if;
      return query
      with locked as materialized (
        select t.* from unnest(heads, words, ends, sizes, lines) t(id, disposition, batch_end, batch_size, line)),
      started as (
        {start}, locked.batch_end as turn_end, locked.batch_size as turn_size, locked.line),
      claimed as (
        update {schema}.queue_group g set
          claim = gen_random_uuid(), job_id = started.id, head_id = started.id, suspect = null, claimed_by = processor,
          aging_priority = 0, batch_end = started.turn_end, batch_size = started.turn_size,
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
      -- No group was taken, for want of a slot or because other transactions have them.
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
      -- An adopter skips what another transaction has locked.
      is_more := (
        select {flag_due_at} from {schema}.job j
        where j.queue = of_queue and j.flagged and {flag_due_at} <= now() and {flag_due_at} >= flag_at
        order by {flag_due_at} limit 1) is not null;
    end if;
  end if;
  if whole and not is_more then
    at := clock_timestamp();
    -- The leases of this claim count as well: one poll too many.
    next_in := extract(epoch from nullif(least(
      (select g.ready_at from {schema}.queue_group g
        where g.queue = of_queue and g.ready_at > now() and g.ready_at < 'infinity'
        order by g.ready_at limit 1),
      (select j.turn_at from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued' and j.turn_at > now()
        order by j.turn_at limit 1),
      (select {flag_due_at}
        from {schema}.job j
        where j.queue = of_queue and j.flagged
          and {flag_due_at} > now()
        order by {flag_due_at} limit 1)),
      'infinity') - clock_timestamp());
    reading := reading + (clock_timestamp() - at);
  end if;
  return query select null::boolean, null::bigint, null, null::integer, null::integer, null::integer, null::bigint,
    null::timestamptz, null::timestamptz, null::boolean, null::boolean, null::integer, null::timestamptz, null::bigint,
    null::bytea, null, null, null, null::smallint, null, null::uuid, null, null::timestamptz,
    is_thorough, is_more, next_in, extract(epoch from reading)::float8,
    least(coalesce(group_at, line_at), now() - interval '0.25 s'), least(flag_at, now() - interval '1 s'),
    least(due_at, now() - interval '1 s');
end $$;
