-- Returns the started jobs of a group in a range of ids, in order. By a loop: if the range of an
-- index has its end within the group, PostgreSQL reads on to the group's last job. Without an end
-- or a beginning it returns none, as those would be read as well.
create or replace function batch_jobs(of_queue text, of_group text, first bigint, last bigint) returns setof bigint
language plpgsql stable strict
set search_path from current
as $$
declare
  one record;
begin
  for one in select j.id, j.status from job j
    where j.queue = of_queue and (j.group_id, j.id) >= (of_group, first) and j.group_id <= of_group
      and j.status in ('queued', 'started')
    order by j.group_id, j.id
  loop
    exit when one.id > last;
    if one.status = 'started' then
      return next one.id;
    end if;
  end loop;
end $$;

-- Queues the started jobs of a batch again, from `first` to `last`. They were not begun, so nothing
-- is held against them.
create or replace function receive_return(of_queue text, of_group text, first bigint, last bigint) returns void
language sql volatile
as $$
  update job j set status = 'queued', attempts_forgiven = j.attempts_forgiven + 1,
    history = history_with(j.history, j.attempts, j.last_started_at, 'released', null)
  from (select b.id from job b where b.id = any (array(select batch_jobs(of_queue, of_group, first, last)))
      and b.finished_at is null and b.status = 'started'
    for no key update skip locked) behind
  where j.id = any (array[behind.id]) and j.finished_at is null and j.status <> 'queued'
$$;

-- Claims up to `most` further jobs of a group behind `first`, which was just claimed. Each must be
-- the next in order, due, and locked by no other transaction. The group's row is locked. If the
-- receiver dies, the first of them is charged with it and the others go back. So none of them may
-- have a single attempt.
create or replace function receive_batch(of_queue text, of_group text, first bigint, job_limit integer, attempt_limit integer) returns bigint[]
language plpgsql volatile
as $$
declare
  next_id bigint;
  next job;
  batch bigint[] := '{}';
begin
  for next_id in
    select j.id from job j
    where j.queue = of_queue and (j.group_id, j.id) > (of_group, first) and j.group_id <= of_group
      and j.status in ('queued', 'started')
    order by j.group_id, j.id limit job_limit
  loop
    select j.* into next from job j where j.id = next_id and j.status::text = 'queued' for no key update skip locked;
    exit when not found or next.run_at > clock_timestamp() or receive_refusal(next, attempt_limit) is not null;
    exit when coalesce(next.max_attempts, attempt_limit) = 1;
    perform receive_start(next_id);
    batch := batch || next_id;
  end loop;
  if batch <> '{}' then
    update queue_group g set batch_end = batch[cardinality(batch)], batch_size = 1 + cardinality(batch)
    where g.queue = of_queue and g.group_id = of_group;
  end if;
  return batch;
end $$;
