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

-- Queues the started jobs of a claim again, from `first` to `last`. They were not begun, so nothing
-- is held against them.
create or replace function {schema}.return_jobs(of_queue text, of_group text, first bigint, last bigint) returns void
language plpgsql volatile
as $$
begin
  update {schema}.job j set status = 'queued', attempts_forgiven = j.attempts_forgiven + 1,
    history = {schema}.history_with(j.history, j.attempts, j.last_started_at, 'released', null)
  from (select b.id from {schema}.job b
    where b.id = any (array(select {schema}.batch_jobs(of_queue, of_group, first, last)))
      and b.finished_at is null and b.status = 'started'
    for no key update skip locked) behind
  where j.id = any (array[behind.id]) and j.finished_at is null and j.status <> 'queued';
end $$;

-- The same for claims of several jobs that lapsed, but for the first of each that has not ended.
-- The groups' rows are locked: no ack is in between.
create or replace function {schema}.return_batches(of_queue text, groups text[]) returns void
language plpgsql volatile
as $$
declare
  batch record;
begin
  for batch in
    select g.group_id, g.batch_end, (
      select min(b.id) from {schema}.batch_jobs(of_queue, g.group_id, g.job_id, g.batch_end) b(id)) as first
    from unnest(groups) f(name)
    join {schema}.queue_group g on g.queue = any (array[of_queue]) and g.group_id between f.name and f.name
    where g.batch_end is not null
  loop
    perform {schema}.return_jobs(of_queue, batch.group_id, batch.first + 1, batch.batch_end);
  end loop;
end $$;
