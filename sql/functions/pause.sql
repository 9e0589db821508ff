-- Pauses a queue, or one group of it: no job of it starts. Running jobs go on. With `until` the
-- pause ends by itself then. A queue or group that is paused already keeps the time of its pause,
-- and takes the new reason and end.
--
-- A row of the group that rests until another end is looked at again.
--
-- Locks: the row of the queue, or of the group's setting. Waits for a claim's milliseconds. Touches
-- no group's row: a handler may have that.
create or replace function pause(queue text, group_id text default null, reason text default null,
  actor text default session_user, until timestamptz default null) returns void
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  ends_at constant timestamptz := nullif(until, 'infinity');
begin
  perform check_queue(queue);
  perform check_name('group', group_id, {group_limit});
  if ends_at <= clock_timestamp() then
    raise exception 'the pause would end at %, it is % already', ends_at, clock_timestamp()
      using errcode = '22023', hint = 'resume ends a pause at once.';
  end if;
  perform set_pause(queue, group_id, reason, ends_at, null);
  if group_id is not null and ends_at is not null then
    perform flag_next(queue, group_id);
  end if;
  perform record_operation(actor, 'pause', queue, group_id, null, reason, 1);
end $$;

-- Lets the group of a receipt's job rest, or the whole queue: a pause that the job asks for, as its
-- partner takes no more requests for a while. Receipts of receivers count, and so do the claims of
-- workers. It never shortens a pause: one that ends later, or by an operator alone, stays as it is.
-- A pause that ends sooner takes the reason and the end of the rest.
--
-- Returns `done`; `kept` (a pause that lasts as long stands already, or `until` is over), `stale`
-- (the claim was taken over, or has ended); or `busy`: another transaction has had the row of the
-- pause for half a second. With the rights of its owner, as workers may pause nothing else.
--
-- It changes no row of the group: a handler may have that. Nor does it flag a job: a row that rests
-- until a sooner end finds the later one when it is due.
--
-- Locks: the row of the queue, or of the group's setting; waits.
create or replace function rest(receipt text, until timestamptz, reason text default null,
  whole_queue boolean default false) returns text
language plpgsql volatile security definer
set search_path from current {pinned} set lock_timeout = '500ms' as $$
declare
  shown record; held record;
begin
  perform check_isolation('rest');
  shown := parse_receipt(receipt);
  if until is null or whole_queue is null then
    raise exception 'until is %, and whole_queue %', coalesce(until::text, 'null'),
        coalesce(whole_queue::text, 'null')
      using errcode = '22023', hint = 'Pass the time when the rest ends, and for whole_queue true or false.';
  end if;
  select h.queue, h.group_id into held from held_job(shown.job, shown.token, false) h;
  if not found then
    return 'stale';
  elsif held.group_id is null and not whole_queue then
    raise exception 'job % has no group that could rest', shown.job
      using errcode = '22023', hint = 'Let its queue rest: pass whole_queue => true.';
  elsif until <= clock_timestamp() then
    return 'kept';
  end if;
  return case when set_pause(held.queue, case when not whole_queue then held.group_id end,
    left(nullif(reason, ''), {reason_limit}), until, shown.job) then 'done' else 'kept' end;
exception when lock_not_available then
  return 'busy';
end $$;

-- Writes a pause, of an operator or for a job (`by_job`), and returns whether it counts: what a job
-- asks for shortens none. A pause that stands keeps the time of its begin. Workers are told of an
-- end: they wait until then.
--
-- Locks: the row of the queue, or of the group's setting; waits.
create or replace function set_pause(of_queue text, of_group text, why text, ends_at timestamptz,
  by_job bigint) returns boolean
language plpgsql volatile set search_path from current as $$
declare
  done boolean;
begin
  if ends_at > clock_timestamp() + interval '100 years' then
    raise exception 'the pause would end at %, in more than 100 years', ends_at
      using errcode = '22023', hint = 'pause without an end is ended by an operator.';
  end if;
  if of_group is null then
    insert into queue as old (name, paused_at, pause_reason, paused_until, rested_by)
    select of_queue, clock_timestamp(), why, ends_at, by_job
    on conflict (name) do update set
      paused_at = case when {paused_old} then old.paused_at else excluded.paused_at end,
      pause_reason = excluded.pause_reason, paused_until = excluded.paused_until,
      rested_by = excluded.rested_by
    where by_job is null or not {paused_old} or old.paused_until < excluded.paused_until;
  else
    insert into group_setting as old (queue, group_id, paused_at, pause_reason, paused_until, rested_by)
    select of_queue, of_group, clock_timestamp(), why, ends_at, by_job
    on conflict (queue, group_id) do update set
      paused_at = case when {paused_old} then old.paused_at else excluded.paused_at end,
      pause_reason = excluded.pause_reason, paused_until = excluded.paused_until,
      rested_by = excluded.rested_by
    where by_job is null or not {paused_old} or old.paused_until < excluded.paused_until;
  end if;
  done := found;
  if done and ends_at is not null then
    perform wake(of_queue);
  end if;
  return done;
end $$;

-- Flags the next job of a group whose pause this transaction has changed, if it is queued.
--
-- By a snapshot younger than the setting's lock. A claim that saw the group paused has either
-- written that already, and the flag wakes the group; or it will find the setting locked or
-- changed.
--
-- Locks: the job NO KEY UPDATE, skips.
create or replace function flag_next(of_queue text, of_group text) returns void
language plpgsql volatile set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  update job j set flagged = true
  where j.id = (
      select f.id from job f
      where f.queue = of_queue and f.group_id >= of_group and f.group_id <= of_group
        and f.group_id is not null and f.status in ('queued', 'started') and f.status = 'queued'
      order by f.group_id, f.id limit 1 for no key update skip locked)
    and j.status::text in ('queued');
end $$;

-- Ends the pause of a queue, or of one group of it, and wakes its workers. Returns whether it was
-- paused.
create or replace function resume(queue text, group_id text default null, reason text default null,
  actor text default session_user) returns boolean
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  done boolean;
begin
  if group_id is null then
    -- A pause that has ended by itself leaves its row.
    select {paused_q} into done from queue q where q.name = resume.queue for no key update;
    update queue q set paused_at = null, pause_reason = null, paused_until = null, rested_by = null
    where q.name = resume.queue and q.paused_at is not null;
    -- A row that says nothing any more would list a queue that was only mistyped.
    delete from queue q
    where q.name = resume.queue and jsonb_strip_nulls(to_jsonb(q)) = jsonb_build_object(
      'name', q.name, 'dedup_scope', 'queue', 'dedup_by_content', false, 'strict_visibility', false);
  else
    select {paused_s} into done from group_setting s
    where s.queue = resume.queue and s.group_id = resume.group_id for no key update;
    delete from group_setting s
    where s.queue = resume.queue and s.group_id = resume.group_id and s.out_of_attempts is null;
    update group_setting s set paused_at = null, pause_reason = null, paused_until = null, rested_by = null
    where s.queue = resume.queue and s.group_id = resume.group_id and s.paused_at is not null;
    perform flag_next(queue, group_id);
  end if;
  done := coalesce(done, false);
  if done then
    perform wake(queue);
  end if;
  perform record_operation(actor, 'resume', queue, group_id, null, reason, done::integer);
  return done;
end $$;

-- Deletes settings of groups that say nothing any more, as a pause has ended by itself: every count
-- of paused groups would read them. It looks at `batch` settings behind a place in their order, and
-- returns the next place; no row: there is no other setting. With the rights of its owner, as
-- workers do maintenance and may change no setting.
--
-- A pause that is set meanwhile is not lost: its row is locked, or is read again under this lock;
-- or it waits for this delete, and makes a new row.
--
-- Locks: the settings FOR UPDATE, skips.
create or replace function forget_pauses(after_queue text, after_group text, batch bigint)
returns table (queue text, group_id text)
language sql volatile security definer set search_path from current as $$
  with looked as materialized (
      select s.queue, s.group_id from group_setting s
      where (s.queue, s.group_id) > (after_queue, after_group)
      order by s.queue, s.group_id limit batch),
    over as materialized (
      select s.ctid as row from looked l
        join group_setting s on s.queue = l.queue and s.group_id = l.group_id
      where s.out_of_attempts is null and not {paused_s} for update of s skip locked),
    gone as (delete from group_setting s using over o where s.ctid = o.row)
  select l.queue, l.group_id from looked l order by l.queue, l.group_id offset batch - 1
$$;
