-- A job is written once. While a group's job is claimed, the group's row says so; the job's row is
-- written when something about the job has ended. Programs of before start jobs by writing them:
-- they are stopped first.

-- When the attempt of the claimed job began; null: the group is free, or its claim begins none.
alter table queue_group add column started_at timestamptz;
-- The jobs of a claim of several, in order, but for those that have ended; null: `job_id` alone.
alter table queue_group add column batch bigint[];

-- Claims of before go on: their receipts stay valid, and what lapses is taken over.
update queue_group g set
  -- The first job of a worker's turn may have ended.
  started_at = (
    select j.last_started_at from job j
    where j.queue = g.queue and j.group_id = g.group_id and j.status = 'started'
      and j.id between g.job_id and coalesce(g.batch_end, g.job_id) order by j.id limit 1),
  batch = case when g.batch_end is not null then array(
    select j.id from job j
    where j.queue = g.queue and j.group_id = g.group_id and j.status = 'started'
      and j.id between g.job_id and g.batch_end order by j.id) end
where g.job_id is not null;
-- Their attempts are counted when they end.
update job set status = 'queued', attempts = greatest(attempts - 1, attempts_forgiven)
where group_id is not null and status = 'started' and exists (
  select from queue_group g
  where g.queue = job.queue and g.group_id = job.group_id and job.id = any (coalesce(g.batch, array[g.job_id]))
    and g.started_at is not null);
update job set status = 'queued' where group_id is not null and status = 'started';

alter table queue_group drop column batch_end, drop column batch_size;

-- `attempts` are those that have ended, of a job with a group; a claim of it shows the one that
-- runs. A job without a group has no other row to say that it runs.
alter table job drop constraint job_sound;
alter table job add constraint job_sound check (
  (finished_at is null) = (status < 'succeeded')
  and (claim is null or status = 'started')
  and (group_id is null or claim is null and status <> 'started')
  and (group_id is not null or not flagged)
  and (data is null) <> (payload is null)
  and attempts_forgiven <= attempts) not valid; -- Else all history would be read.

alter type locked_turns drop attribute batch_ends;

-- What a processor says of failed attempts, by queue: settings that are stored go before it.
alter table processor add column policies jsonb;
