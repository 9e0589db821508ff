-- Parks a group by hand: its next job ends as failed, and the jobs that wait behind it step aside
-- with it, as if it had been out of attempts. In a halted group, the jobs behind the job that
-- halted it step aside. Maintenance carries it out; until then the group is halted.
--
-- `job` is the failed one. Null: the group runs `running`; or no job of it waits; or (`busy`)
-- another transaction has a row. A group that no worker has adopted yet gets its row here.
--
-- Locks: a new group, as `give_rest`; the row of the group, then its next job; skips.
create or replace function park(queue text, group_id text, reason text default null,
  actor text default session_user, out job bigint, out running bigint, out busy boolean)
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  line record; next_job bigint;
begin
  busy := false;
  for look in 1..2 loop
    select g.job_id, g.halted_at, g.halt_job_id, g.head_id, g.park_to into line from queue_group g
    where g.queue = park.queue and g.group_id = park.group_id for no key update skip locked;
    exit when line.head_id is not null or look = 2;
    perform give_rest(park.queue, array[park.group_id]);
  end loop;
  if line.head_id is null then
    select g.job_id into running from queue_group g where g.queue = park.queue and g.group_id = park.group_id;
    busy := running is null and (select j.id from job j
      where j.queue = park.queue and j.group_id >= park.group_id and j.group_id <= park.group_id
        and j.group_id is not null and j.status in ('queued', 'started') limit 1) is not null;
    return;
  end if;
  if line.job_id is not null then
    running := line.job_id;
    return;
  end if;
  -- By a snapshot younger than the lock. A halted group's is the first behind its halt.
  next_job := (select h.id from head(park.queue, park.group_id, line.head_id, null) h);
  if next_job is null then
    return;
  end if;
  if line.halted_at is not null then
    update queue_group g set halt_until = clock_timestamp(), halt_then = 'park'
    where g.queue = park.queue and g.group_id = park.group_id and g.park_to is null;
    next_job := line.halt_job_id;
  else
    perform from job j
    where j.id = next_job and j.status::text in ('queued') and j.queue = any (array[park.queue])
    for no key update skip locked;
    if not found then
      busy := true;
      return;
    end if;
    perform give_up(next_job, coalesce(reason, 'parked by request'));
    perform end_behind(next_job, null, '{"out_of_attempts": "park"}');
  end if;
  job := next_job;
  perform record_operation(actor, 'park', queue, group_id, next_job, reason, 1);
end $$;
