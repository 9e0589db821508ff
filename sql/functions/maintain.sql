-- Maintenance in SQL, for all queues of the schema: what a processor does for its own queues.
-- `maintain` is for a timer such as pg_cron, for `seriatim maintain`, and for servers. Each step
-- takes a bounded batch of rows, and skips what another transaction has locked. All rows of the
-- table `maintenance` are written under the lock of maintenance, so no write waits there for long.

-- How many milliseconds the ended jobs of a queue stay: the succeeded, the failed and the cancelled
-- ones. Null: for ever. A processor of the queue notes its own; otherwise the defaults count.
create or replace function retention_ms(of_queue text) returns bigint[]
language sql stable set search_path from current as $$
  select coalesce((select m.keep_ms from maintenance m where m.queue = of_queue), {keep_ms})
$$;

-- Notes how long the ended jobs of a queue stay, as its processor says: maintenance by any process
-- keeps them as long, even while no processor runs.
--
-- Locks: its row of `maintenance`: waits for a call of `maintain`, 0.1 s at most.
create or replace function note_retention(of_queue text, keep_ms bigint[]) returns void
language sql volatile set search_path from current as $$
  insert into maintenance as m (queue, keep_ms)
  select of_queue, note_retention.keep_ms
  where not exists (
    select from maintenance m where m.queue = of_queue and m.keep_ms = note_retention.keep_ms)
  on conflict (queue) do update set keep_ms = excluded.keep_ms
$$;

-- Deletes up to `n` jobs of a queue that ended with a status longer ago than `keep_seconds`. Never
-- a flagged one: its group is not adopted yet. Nor the job that halted a group, or that others are
-- parked with: an operator needs it to decide. Returns how many.
--
-- Locks: the jobs FOR UPDATE, skips.
create or replace function prune_jobs(of_queue text, of_status job_status, keep_seconds float8, n bigint)
returns bigint
language plpgsql volatile set search_path from current {pinned} as $$
declare
  deleted bigint;
begin
  with old as materialized (
    select j.id from job j
    where j.queue = of_queue and j.status = of_status and j.status in ('succeeded', 'failed', 'cancelled')
      and j.finished_at < clock_timestamp() - make_interval(secs => keep_seconds) and not j.flagged
      and not exists (
        select from queue_group g
        where g.queue = j.queue and g.group_id = j.group_id and g.halt_job_id = j.id)
      and not exists (
        select from job u
        where u.queue = j.queue and u.group_id = j.group_id and u.parked_with = j.id and u.status = 'parked')
    order by j.finished_at limit n for update of j skip locked)
  delete from job j where j.id = any (array(select old.id from old));
  get diagnostics deleted = row_count;
  return deleted;
end $$;

-- Deletes up to `n` deduplication ids whose window has ended, as many old receive attempts, and
-- unique keys of jobs that have ended. A row that a transaction is renewing stays. Returns the
-- largest number.
--
-- Locks: the rows FOR UPDATE, skips.
create or replace function forget_expired(n bigint) returns bigint
language plpgsql volatile set search_path from current {pinned} as $$
declare
  ids bigint; attempts bigint;
begin
  delete from dedup d where d.ctid = any (array(
    select d.ctid from dedup d where d.expires_at <= clock_timestamp()
    order by d.expires_at limit n for update skip locked));
  get diagnostics ids = row_count;
  delete from receive_attempt a where a.ctid = any (array(
    select a.ctid from receive_attempt a where a.expires_at <= clock_timestamp()
    order by a.expires_at limit n for update skip locked));
  get diagnostics attempts = row_count;
  return greatest(ids, attempts, forget_unique_keys(n));
end $$;

-- Carries out requests to cancel jobs that no handler will see, as they are queued or parked, and
-- that met a locked row. Forgets requests whose job has ended or is gone. Returns how many jobs it
-- cancelled.
--
-- Locks: the jobs NO KEY UPDATE, then the requests FOR UPDATE, skips.
create or replace function settle_requests() returns bigint
language plpgsql volatile set search_path from current {pinned} as $$
declare
  requested bigint[]; cancelled bigint;
begin
  requested := array(
    select j.id from cancel_request r join job j on j.id = any (array[r.job_id])
    where j.status in ('queued', 'parked')
    for no key update of j skip locked);
  with ended as (
    update job j set {cancelled}, flagged = j.group_id is not null where j.id = any (unclaimed(requested))
    returning case when j.batch_id is not null
      then mark_end(j.batch_id, j.id, j.queue, j.group_id, j.status, null) end)
  select count(*) into cancelled from ended;
  delete from cancel_request r where r.ctid = any (array(
    select r.ctid from cancel_request r
    where not exists (
      select from job j where j.id = r.job_id and j.status in ('queued', 'started'))
    for update of r skip locked));
  return cancelled;
end $$;

-- Ends the halts of up to `n` groups whose deadline has passed, and parks jobs of groups that step
-- aside, in batches. The groups are taken at random, so that a large one delays no other. Returns
-- how many groups got further.
--
-- Locks: rows of halted groups NO KEY UPDATE, then jobs; skips.
create or replace function end_halts(n integer) returns integer
language plpgsql volatile set search_path from current {pinned} as $$
declare
  due record; parks record; failed bigint; is_there boolean; ended integer := 0;
begin
  for due in
    select g.queue, g.group_id, g.halt_job_id, coalesce(g.halt_then = 'park', false) as park, g.park_to
    from queue_group g
    where (g.halt_until is not null or g.park_to is not null)
      and (g.halt_until <= clock_timestamp() or g.park_to is not null)
    order by random() limit n for no key update of g skip locked
  loop
    failed := case when due.park_to is not null then due.halt_job_id end;
    if due.park and due.park_to is null and due.halt_job_id is not null then
      -- If an operator deleted the failed job, there is nothing to park with.
      is_there := exists (select from job j where j.id = due.halt_job_id and j.status = 'failed');
      with locked as materialized (
        select j.id from job j where j.id = due.halt_job_id and j.status = 'failed'
        for no key update skip locked)
      update job p set parked_with = p.id from locked l where p.id = l.id returning p.id into failed;
      -- A retry or a skip has locked it, and waits for the row of the group.
      continue when is_there and failed is null;
    end if;
    parks := row(null::bigint, false);
    if failed is not null then
      select b.rest, b.moved into parks from park_batch(due.queue, due.group_id, failed, due.park_to) b;
      if parks.rest is not null then
        update queue_group g set park_to = parks.rest, halt_until = null, halt_then = null
        where g.queue = due.queue and g.group_id = due.group_id and g.halted_at is not null;
        -- Another transaction may have locked the rest: the next call is soon enough.
        ended := ended + parks.moved::integer;
        continue;
      end if;
    end if;
    update queue_group g set {unhalted}
    where g.queue = due.queue and g.group_id = due.group_id and g.halted_at is not null;
    ended := ended + 1;
  end loop;
  return ended;
end $$;

-- Fires up to `n` schedules that are due `at` a time, of the kinds `every` and `once_at`. SQL
-- cannot read cron expressions: a processor or `seriatim maintain` fires those. Returns how many
-- jobs it made. A schedule whose job the database refuses is a warning, and delays no other: after
-- one, up to `n` more are fired.
--
-- Locks: as `fire_due`.
create or replace function fire_simple_schedules(n integer, at timestamptz) returns bigint
language plpgsql volatile set search_path from current as $$
declare
  one schedule; begins timestamptz; made bigint := 0;
  seconds bigint; last bigint; most integer; due timestamptz[]; next timestamptz;
  at_random boolean; refused boolean := false;
begin
  -- Refused schedules stay due, and so first in line. After one, others get a turn at random.
  foreach at_random in array array[false, true] loop
    exit when at_random and not refused;
    for one in
      select s.* from schedule s
      where s.paused_at is null and s.next_fire <= at and s.kind in ('every', 'once_at')
      order by case when at_random then random() end, s.next_fire, s.name limit n
    loop
      begin
        -- Due times up to `counts_from` make no job. One that is a minute late is not skipped.
        begins := greatest(one.next_fire - interval '1 us', one.counts_from,
          case when one.missed = 'skip' then at - interval '1 min' end);
        most := case one.missed when 'last' then 1 when 'all' then least(one.missed_at_most, 1000)
          else 1000 end;
        if one.kind = 'every' then
          seconds := one.spec::bigint;
          last := floor(extract(epoch from at) / seconds);
          due := array(
            select to_timestamp(k * seconds)
            from generate_series(
              greatest(floor(extract(epoch from begins) / seconds)::bigint + 1, last - most + 1), last) k);
          next := to_timestamp((last + 1) * seconds);
        else
          due := case when one.spec::timestamptz > begins and one.spec::timestamptz <= at
            then array[one.spec::timestamptz] else '{}' end;
          next := case when one.spec::timestamptz > at then one.spec::timestamptz end;
        end if;
        made := made + coalesce(fire_due(one.name, one.next_fire, one.counts_from, due, next), 0);
      exception
        when lock_not_available then null;
        when others then
          refused := true;
          raise warning 'schedule % could not be fired: %', quote_literal(one.name), sqlerrm;
      end;
    end loop;
  end loop;
  return made;
end $$;

-- Flags the next job of a group if nothing would wake it, and returns whether it did: there is no
-- flag at or below that job, no row that would come to it, and no pause, whose end flags it. One
-- snapshot: in each, a flag or a row covers every job that the library wrote. A gated group is
-- left to `wake_stranded`.
--
-- Locks: the job NO KEY UPDATE: gives up after 0.1 s.
create or replace function rescue(of_queue text, of_group text) returns boolean
language plpgsql volatile set search_path from current {pinned} as $$
declare
  stranded bigint;
begin
  with lowest as materialized (
    select j.id, j.run_at from job j
    where j.queue = of_queue and j.group_id >= of_group and j.group_id <= of_group
      and j.group_id is not null and j.status in ('queued', 'started')
    order by j.group_id, j.id limit 1)
  select l.id into stranded from lowest l
  where coalesce((
      select f.id from job f
      where f.queue = of_queue and f.group_id >= of_group and f.group_id <= of_group and f.flagged
        -- A flag that comes up later than its job is due wakes nobody in time.
        and (f.finished_at is not null or f.turn_at <= f.run_at)
      order by f.group_id, f.id limit 1) > l.id, true)
    -- A free row must come up by the time its head may start; a claimed row does by its lease.
    and not exists (
      select from queue_group g
      where g.queue = of_queue and g.group_id = of_group and (
        g.halted_at is not null or g.claim is not null
        or g.head_id <= l.id and (g.gated_by is not null
          or g.ready_at <= greatest(l.run_at, g.spaced_until, clock_timestamp()) + interval '5 s')))
    and not exists (
      select from group_setting s where s.queue = of_queue and s.group_id = of_group and {paused_s});
  if stranded is null then
    return false;
  end if;
  update job j set flagged = true, turn_at = least(j.turn_at, j.run_at)
  where j.id = stranded and j.group_id is not null and (not j.flagged or j.turn_at > j.run_at)
    and j.status::text in ('queued', 'started');
  return found;
end $$;

-- Visits up to `n` groups with unfinished jobs after the group `after`, and flags the next job of
-- each that nothing would wake: its table was written by hand. Wakes gated groups whose limit key
-- has a slot, of the keys after `after_key`. Returns how many groups and keys nothing would have
-- woken (`repaired`), and the last group and key that it visited; empty: it begins again.
--
-- Locks: the jobs that it flags NO KEY UPDATE: gives up after 0.1 s. As `wake_stranded`.
create or replace function sweep(of_queue text, after text, after_key text, n integer,
  out repaired bigint, out swept_to text, out swept_key text)
language plpgsql volatile set search_path from current {pinned} as $$
declare
  name text;
begin
  select w.stranded, coalesce(w.last_key, '') into repaired, swept_key
  from wake_stranded(of_queue, after_key) w;
  swept_to := after;
  for i in 1..n loop
    select min(j.group_id) into name from job j
    where j.queue = of_queue and j.group_id > swept_to
      and j.group_id is not null and j.status in ('queued', 'started');
    if name is null then
      swept_to := '';
      return;
    end if;
    repaired := repaired + rescue(of_queue, name)::integer;
    swept_to := name;
  end loop;
end $$;

-- Runs a round of maintenance for a queue: deletes ended jobs, and sweeps up to 200 groups. Does
-- nothing after `until_at`, and begins no step of it then. `keep_ms`: how long ended jobs stay, as
-- its processor says, which is noted; null: as was noted last.
--
-- Returns how many jobs it deleted, how many groups and keys nothing would have woken, whether
-- there is `more` to do at once, and why it `failed`: nothing was done then, and a queue that
-- cannot be maintained delays no other.
--
-- Locks: under the lock of maintenance: as `note_retention`, `prune_jobs` and `sweep`, and the row
-- of `maintenance`.
create or replace function maintain_queue(of_queue text, keep_ms bigint[], until_at timestamptz,
  out deleted bigint, out repaired bigint, out more boolean, out failed text)
language plpgsql volatile set search_path from current {pinned} as $$
declare
  statuses constant job_status[] := array['succeeded', 'failed', 'cancelled'];
  number bigint; place maintenance; swept record;
begin
  deleted := 0;
  repaired := 0;
  more := clock_timestamp() > until_at;
  if more then
    return;
  end if;
  if keep_ms is null then
    keep_ms := retention_ms(of_queue);
  else
    perform note_retention(of_queue, keep_ms);
  end if;
  for i in 1..3 loop
    loop
      exit when keep_ms[i] is null or more;
      number := prune_jobs(of_queue, statuses[i], keep_ms[i] / 1000.0::float8, 500);
      deleted := deleted + number;
      exit when number < 500;
      more := clock_timestamp() > until_at;
    end loop;
  end loop;
  select m.* into place from maintenance m where m.queue = of_queue;
  swept := sweep(of_queue, coalesce(place.swept_to, ''), coalesce(place.swept_key, ''), 200);
  repaired := swept.repaired;
  if (swept.swept_to, swept.swept_key)
    is distinct from (coalesce(place.swept_to, ''), coalesce(place.swept_key, ''))
  then
    insert into maintenance as m (queue, swept_to, swept_key)
    select of_queue, swept.swept_to, swept.swept_key
    on conflict (queue) do update set swept_to = excluded.swept_to, swept_key = excluded.swept_key;
  end if;
exception
  when lock_not_available then
    deleted := 0;
    repaired := 0;
  when others then
    deleted := 0;
    repaired := 0;
    failed := sqlerrm;
end $$;

-- Runs maintenance for all queues of the schema, once; what is left is for the next call. In each
-- call: requests to cancel, halts with an end, schedules by `every` and `once_at`, batches, move
-- tasks, flags and `upkeep` of queues that receivers serve. Every 10 s, by whichever process calls:
-- retention, and the sweep. It stops after a quarter of a second, or after the step that takes
-- longer.
--
-- Returns how many jobs it deleted, cancelled, moved and made by schedules, how many halts and
-- batches it ended, how many groups it found that nothing would have woken, and whether there is
-- `more` to do at once. All are 0 while another process does maintenance.
--
-- Locks: the lock of maintenance, or returns; then as its steps. Call it in a transaction of its
-- own.
create or replace function maintain(out deleted bigint, out cancelled bigint, out moved bigint,
  out scheduled bigint, out halts_ended bigint, out batches_ended bigint, out repaired bigint,
  out more boolean)
language plpgsql volatile set search_path from current {pinned} as $$
declare
  until_at constant timestamptz := clock_timestamp() + interval '0.25 s';
  round maintenance; at_queue text; ends record; one record; number bigint; place bigint;
  place_queue text := ''; place_group text := ''; name text;
begin
  perform check_isolation('maintain');
  deleted := 0;
  moved := 0;
  scheduled := 0;
  halts_ended := 0;
  batches_ended := 0;
  repaired := 0;
  cancelled := 0;
  more := false;
  if not pg_try_advisory_xact_lock(hashtextextended('seriatim maintenance ' || current_schema(), 0)) then
    return;
  end if;
  cancelled := settle_requests();
  loop
    number := end_halts(4);
    halts_ended := halts_ended + number;
    exit when number = 0;
    more := clock_timestamp() > until_at;
    exit when more;
  end loop;
  scheduled := fire_simple_schedules(100, clock_timestamp());
  for ends in select b.name, b.state, b.error from end_batches(100) b loop
    batches_ended := batches_ended + (ends.state = 'ended')::integer;
    if ends.state = 'refused' then
      raise warning 'the follow-up of batch % was refused: %', quote_literal(ends.name), ends.error;
    end if;
  end loop;
  moved := run_move_tasks();
  more := (select t.more from tidy() t) or more;
  for name in
    select r.queue from (
      select distinct r.queue from receiver r where r.asked_at > clock_timestamp() - interval '5 min') r
    order by random() limit 1000
  loop
    -- Half of the time is for the round.
    exit when clock_timestamp() > until_at - interval '0.12 s';
    begin
      -- Groups that have just come due are about to be received.
      perform upkeep(name, clock_timestamp() - interval '1 s');
    exception
      when lock_not_available then null;
      when others then
        raise warning 'the upkeep of queue % failed: %', quote_literal(name), sqlerrm;
    end;
  end loop;

  -- A round goes through the queues by name. One that is stopped by the time goes on in the next
  -- call.
  select m.* into round from maintenance m where m.queue = '';
  if round.seen_at > clock_timestamp() - interval '10 s' and round.swept_to = '' then
    return;
  end if;
  at_queue := coalesce(round.swept_to, '');
  if at_queue = '' then
    perform forget_expired(500);
    loop
      name := null;
      select p.queue, p.group_id into name, place_group from forget_pauses(place_queue, place_group, 500) p;
      exit when name is null or clock_timestamp() > until_at;
      place_queue := name;
    end loop;
    place := -9223372036854775808;
    loop
      place := forget_left_progress(place, 500);
      exit when place is null or clock_timestamp() > until_at;
    end loop;
    place := 0;
    loop
      place := note_batches(place, 500);
      exit when place is null or clock_timestamp() > until_at;
    end loop;
    place := 0;
    loop
      place := forget_batches(place, 500);
      exit when place is null or clock_timestamp() > until_at;
    end loop;
  end if;
  loop
    name := (select a.name from queue_after(at_queue) a);
    exit when name is null;
    one := maintain_queue(name, null, until_at);
    deleted := deleted + one.deleted;
    repaired := repaired + one.repaired;
    more := one.more;
    if one.failed is not null then
      raise warning 'queue % could not be maintained: %', quote_literal(name), one.failed;
    end if;
    -- The next call begins with a queue that has more to delete.
    exit when more;
    at_queue := name;
  end loop;
  insert into maintenance as m (queue, swept_to, seen_at)
  select '', case when name is null then '' else at_queue end,
    case when name is null then clock_timestamp() else '-infinity' end
  on conflict (queue) do update set swept_to = excluded.swept_to, seen_at = excluded.seen_at;
end $$;
