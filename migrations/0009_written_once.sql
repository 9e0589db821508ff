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

-- ---- One policy for a queue ----

-- What a processor says of failed attempts, by queue: settings that are stored go before it.
alter table processor add column policies jsonb;

-- ---- Groups that cannot start ----

-- What an adopter locks for a group that has no row yet: the row of the group's hash. A row lock
-- is kept in the row, so any number fits into a transaction. An advisory lock would take a place in
-- the server's shared lock table, which the application's own statements need as well.
--
-- Nothing writes these rows. Groups of one hash have one lock: of the other new groups, an open
-- transaction delays one in 65,536 for each group that it has adopted.
create table adoption_lock (hash integer primary key) with (fillfactor = 100);
insert into adoption_lock select n from generate_series(0, 65535) n;

-- How far receives have read the flags of a queue that has more than one receive can read: the next
-- one reads on there. Without a unique key, or a receive would wait for another one's open
-- transaction: the newest row counts. A queue has none as a rule.
create table flag_scan (
  queue text not null,
  flags_at timestamptz not null,               -- flags up to this place call for nothing
  flags_id bigint not null,
  unread boolean not null,                     -- there are others behind it
  read_ms float8 not null,                     -- how long it took so far, from the first flag on
  again_at timestamptz not null,               -- the next receive reads from the first flag on
  noted_at timestamptz not null
);
create index flag_scan_noted on flag_scan (queue, noted_at);

-- How far `tidy` has read the flags of such a queue.
create table tidy_scan (
  queue text primary key,
  flags_at timestamptz not null,
  flags_id bigint not null,
  tidied bigint not null default 0,            -- groups, from the first flag on
  due_at timestamptz not null
);

