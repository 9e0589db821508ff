-- Pauses a queue, or one group of it: no job of it starts. Running jobs go on. What is paused stays
-- paused since then, with the new reason.
--
-- Locks: the row of the queue, or of the group's setting. Waits for a claim's milliseconds. Touches
-- no group's row: a handler may have that.
create or replace function pause(queue text, group_id text default null, reason text default null, actor text default session_user)
returns void
language plpgsql volatile
set search_path from current
as $$
#variable_conflict use_column
begin
  perform check_queue(pause.queue);
  perform check_name('group', pause.group_id, {group_limit});
  if pause.group_id is null then
    insert into queue as old (name, paused_at, pause_reason)
    select pause.queue, clock_timestamp(), pause.reason
    on conflict (name) do update set
      paused_at = coalesce(old.paused_at, excluded.paused_at), pause_reason = excluded.pause_reason;
  else
    insert into group_setting as old (queue, group_id, paused_at, pause_reason)
    select pause.queue, pause.group_id, clock_timestamp(), pause.reason
    on conflict (queue, group_id) do update set
      paused_at = coalesce(old.paused_at, excluded.paused_at), pause_reason = excluded.pause_reason;
  end if;
  perform record_operation(actor, 'pause', pause.queue, pause.group_id, null, reason, 1);
end $$;

-- Ends the pause of a queue, or of one group of it, and wakes its workers. Returns whether it was
-- paused.
--
-- A group's next job is flagged by a snapshot younger than the setting's lock. A claim that saw the
-- group paused has either written that already, and the flag wakes the group; or it will find the
-- setting locked or gone.
create or replace function unpause(queue text, group_id text default null, reason text default null, actor text default session_user)
returns boolean
language plpgsql volatile
set search_path from current
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
#variable_conflict use_column
declare
  done boolean;
begin
  if unpause.group_id is null then
    update queue q set paused_at = null, pause_reason = null
    where q.name = unpause.queue and q.paused_at is not null;
    done := found;
    -- A row that says nothing any more would list a queue that was only mistyped.
    delete from queue q
    where q.name = unpause.queue and jsonb_strip_nulls(to_jsonb(q))
      = jsonb_build_object('name', q.name, 'dedup_scope', 'queue', 'dedup_by_content', false);
  else
    update group_setting s set paused_at = null, pause_reason = null
    where s.queue = unpause.queue and s.group_id = unpause.group_id and s.paused_at is not null;
    done := found;
    update job j set flagged = true
    where j.id = (
        select f.id from job f
        where f.queue = unpause.queue and f.group_id >= unpause.group_id and f.group_id <= unpause.group_id
          and f.group_id is not null and f.status in ('queued', 'started') and f.status = 'queued'
        order by f.group_id, f.id limit 1 for no key update skip locked)
      and j.status::text in ('queued');
  end if;
  if done then
    perform pg_notify(current_schema() || '.wake', unpause.queue);
  end if;
  perform record_operation(actor, 'unpause', unpause.queue, unpause.group_id, null, reason, done::integer);
  return done;
end $$;
