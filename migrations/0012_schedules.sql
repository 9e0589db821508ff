-- Schedules: jobs that are enqueued at set times.

create table schedule (
  name text primary key,
  queue text not null,
  group_id text,
  job jsonb not null,                          -- what its jobs carry, and their settings
  kind text not null,
  spec text not null,                          -- cron: five fields; every: seconds; once_at: the time
  zone text,                                   -- the time zone of a cron expression
  missed text not null default 'last',
  missed_at_most positive_integer,
  overlap text not null default 'queue',
  counts_from timestamptz not null default clock_timestamp(),  -- due times up to here make no job
  last_fire timestamptz,                       -- the last due time that a job was made for
  next_fire timestamptz,                       -- the next due time; null: there is none
  last_job bigint,
  paused_at timestamptz,
  paused_by text,
  pause_reason text,
  constraint schedule_name check (char_length(name) between 1 and 200),
  constraint schedule_kind check (
    kind in ('cron', 'every', 'once_at') and (zone is not null) = (kind = 'cron')),
  constraint schedule_missed check (
    missed in ('last', 'all', 'skip') and (missed_at_most is not null) = (missed = 'all')),
  constraint schedule_overlap check (overlap in ('queue', 'skip'))
);
-- The schedules that are due, the first due first.
create index schedule_due on schedule (next_fire, name) where paused_at is null;

-- The schedule that an operator's change was about.
alter table operation add column schedule text;
