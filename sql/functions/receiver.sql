-- Signs of life of receivers. They have no session of their own, as processors have.

-- Notes that a receive asks a queue. It writes once in 10 s, and waits for no other transaction.
-- Queues that no receive has asked for a day are forgotten.
create or replace function note_receiver(of_queue text) returns void
language plpgsql volatile as $$
declare
  asked_at constant timestamptz := (select max(r.asked_at) from receiver r where r.queue = of_queue);
begin
  if asked_at is null then
    delete from receiver r where r.ctid in (
      select r.ctid from receiver r where r.asked_at < clock_timestamp() - interval '1 day'
      limit 10 for update skip locked);
    insert into receiver (queue, asked_at) select of_queue, clock_timestamp();
  elsif asked_at < clock_timestamp() - interval '10 s' then
    update receiver r set asked_at = clock_timestamp() where r.ctid in (
      select r.ctid from receiver r where r.queue = of_queue limit 1 for no key update skip locked);
  end if;
end $$;

-- Returns from where on a receive reads the flags of a queue: nulls, from the first one on. It has
-- less time than many flags of groups that cannot start may take, and goes on where the one before
-- ended. Once all were read, it leaves them for ten times as long as that took, 2 s at most.
create or replace function flags_to_read(of_queue text) returns flag_scan
language plpgsql volatile as $$
declare
  scan flag_scan;
begin
  select s.* into scan from flag_scan s where s.queue = of_queue order by s.noted_at desc limit 1;
  if scan.again_at <= clock_timestamp() then
    scan.flags_at := null;
    scan.flags_id := null;
    scan.read_ms := 0;
    scan.unread := false;
  end if;
  return scan;
end $$;

-- Notes how far a receive has read the flags of a queue, from where `scan` says on. It writes only
-- where there are more than one receive can read, and waits for no other transaction: beside one
-- that is left open it inserts another row.
create or replace function note_flags_read(of_queue text, scan flag_scan, answer claim_answer) returns void
language plpgsql volatile as $$
declare
  line tid;
begin
  if answer.late is not true
    and (scan.queue is null or scan.unread is not true and scan.flags_at is not null)
  then
    return;
  end if;
  if answer.late is not true and scan.flags_at is null then
    -- Few are left.
    delete from flag_scan s where s.ctid in (
      select s.ctid from flag_scan s where s.queue = of_queue limit 10 for update skip locked);
    return;
  end if;
  if answer.flags_at is null then
    -- It has read none: the queue is paused, or at its limit.
    return;
  end if;
  scan.queue := of_queue;
  scan.noted_at := clock_timestamp();
  scan.read_ms := coalesce(scan.read_ms, 0) + coalesce(extract(epoch from answer.reading), 0) * 1000;
  scan.unread := answer.flags_id is not null;
  scan.flags_at := answer.flags_at;
  scan.flags_id := coalesce(answer.flags_id, 0);
  scan.again_at := scan.noted_at + case when scan.unread then interval '1 min'
    else interval '1 ms' * least(greatest(scan.read_ms * 10, 200), 2000) end;
  select s.ctid into line from flag_scan s where s.queue = of_queue
  order by s.noted_at desc limit 1 for no key update skip locked;
  if line is null then
    insert into flag_scan select scan.*;
  else
    update flag_scan s set flags_at = scan.flags_at, flags_id = scan.flags_id, unread = scan.unread,
      read_ms = scan.read_ms, again_at = scan.again_at, noted_at = scan.noted_at
    where s.ctid = line;
  end if;
end $$;

-- Clears flags that call for nothing, where a receive has found more than it can read: they are of
-- groups that are paused, halted, asleep or in flight. Receives leave them, as their transactions
-- may stay open. Workers clear those of their own queues; maintenance and servers call this, in a
-- transaction of its own. Returns how many groups, and whether it would find more to do at once.
--
-- A pass that finds nothing to do is followed by half a minute of rest: those flags are locked.
--
-- Locks: an advisory lock, or returns; then as `adopt`, `clear_flags` and `give_rest`.
create or replace function tidy(out groups integer, out more boolean)
language plpgsql volatile set search_path from current {pinned} as $$
declare
  began constant timestamptz := clock_timestamp(); terms claim_terms; scan tidy_scan; adoption adoption;
  tidied integer;
begin
  perform check_isolation('tidy');
  groups := 0;
  more := false;
  if (select s.queue from flag_scan s limit 1) is null
    or not pg_try_advisory_xact_lock(hashtextextended('seriatim tidy ' || quote_literal(current_schema()), 0))
  then
    return;
  end if;
  insert into tidy_scan (queue, flags_at, flags_id, due_at)
  select distinct s.queue, timestamptz '-infinity', 0, began from flag_scan s
  where (select t.queue from tidy_scan t where t.queue = s.queue) is null;
  for scan in
    select t.* from tidy_scan t where t.due_at <= began order by t.due_at for no key update skip locked
  loop
    terms.queue := scan.queue;
    adoption := adopt(terms, row(scan.flags_at, scan.flags_id, began, false, null)::flag_range, 0, began,
      clock_timestamp() + interval '30 ms');
    tidied := tidy_flags(scan.queue, adoption.idle, adoption.resting, clock_timestamp() + interval '50 ms');
    groups := groups + tidied;
    scan.tidied := scan.tidied + tidied;
    if adoption.more then
      more := true;
      update tidy_scan t set
        flags_at = adoption.reached_at, flags_id = adoption.reached_id, tidied = scan.tidied
      where t.queue = scan.queue;
    elsif scan.tidied > 0 then
      more := true;
      update tidy_scan t set flags_at = '-infinity', flags_id = 0, tidied = 0 where t.queue = scan.queue;
    else
      update tidy_scan t set flags_at = '-infinity', flags_id = 0,
        due_at = clock_timestamp() + interval '30 s'
      where t.queue = scan.queue;
      -- Receives read from the first flag on, and note what they find.
      delete from flag_scan s where s.ctid in (
        select s.ctid from flag_scan s
        where s.queue = scan.queue and s.noted_at < clock_timestamp() - interval '1 min'
        limit 100 for update skip locked);
      delete from tidy_scan t
      where t.queue = scan.queue
        and (select s.queue from flag_scan s where s.queue = t.queue limit 1) is null;
    end if;
    exit when clock_timestamp() > began + interval '0.1 s';
  end loop;
end $$;

-- Returns whether receivers serve a queue: one asked in the last five minutes (programs may sleep
-- for that long between two polls), or has a job of it that is still invisible. It reads up to 100
-- jobs in flight with a group, and up to 100 without.
create or replace function receivers_serve(of_queue text) returns boolean
language sql stable set search_path from current as $$
  select exists (select from receiver r where r.queue = of_queue and r.asked_at > now() - interval '5 min')
    or exists (
      select from (
        select g.claimed_by, g.ready_at from queue_group g
        where g.queue = of_queue and g.job_id is not null limit 100) g
      where g.claimed_by is null and g.ready_at > now())
    or exists (
      select from (
        select j.claimed_by, j.lease_until from job j
        where j.queue = of_queue and j.group_id is null and j.status = 'started' limit 100) j
      where j.claimed_by is null and j.lease_until > now())
$$;
