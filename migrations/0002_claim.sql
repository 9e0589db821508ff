-- One claim for workers and receivers.

-- Flags in the order of the line, so that a priority counts from the enqueue on. What is delayed
-- has no place before its time: `turn_at` is when it is due, or when it expires. A finished job's
-- flag comes first, as others may be behind it.
drop index job_flagged;
create index job_flagged on job
  (queue, (case when finished_at is null then turn_at else 'epoch' end), id)
  where flagged;

-- Flags with a priority: they come in before where a claim begins to read beside dead rows.
create index job_flagged_prioritized on job (queue, turn_at) where flagged and priority > 0;

-- What gets its priority's aging when it becomes due: jobs without a group, and flagged ones. A
-- group that sleeps has an index of its own.
drop index job_ungrouped_aging;
create index job_aging on job (queue, run_at)
  where status = 'queued' and priority > 0 and turn_at >= run_at and (group_id is null or flagged);

-- How often in a row a claim has found the head locked by another transaction: the next look is
-- later each time.
alter table queue_group add column rechecks smallint not null default 0;

-- Groups whose rows a claim has locked, in the order of their turns.
create type locked_turns as (
  names text[],
  heads bigint[],                              -- head_id
  jobs bigint[],                               -- of a claim that lapsed
  batch_ends bigint[],
  suspected boolean[],                         -- that claim was suspected a grace ago
  lines tid[],
  last_at timestamptz                          -- of the last one's turn
);

-- What is to be started in them: its arrays are as long. A null id: nothing.
create type turn_heads as (
  ids bigint[],
  dispositions text[],
  fresh boolean[],                             -- no attempt counts yet
  bytes bigint[],                              -- of the data, as stored
  ready integer,                               -- how many ids are not null
  all_bytes bigint                             -- of them together
);

-- Promotions, and keys for calls to other services.

-- The servers that have held this schema's claims: a physical server and its timeline. A promotion
-- begins another timeline, and changes neither the start of the server's process nor its statistics.
--
-- `since` is when a session saw the pair first. All holds were uncertain then: nothing that was
-- suspected before counts. Rows are only ever inserted, and nothing is unique: a session whose
-- transaction stays open delays nobody, as others insert the pair again. The earliest row counts.
create table server (
  system_identifier bigint not null,
  timeline bigint not null,
  since timestamptz not null
);
alter table server replica identity full;
-- This one: a migration makes no hold uncertain. See this_server.
do $$
begin
  insert into server select s.system_identifier,
    ('x' || substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::bigint, '-infinity'
  from pg_catalog.pg_control_system() s;
exception when others then
  insert into server values (0, 0, '-infinity');
end $$;

-- Never the same for two jobs, unlike the id: a promoted standby may give ids again that were lost
-- with its primary. For what a receiver does elsewhere.
alter type received add attribute key text;
