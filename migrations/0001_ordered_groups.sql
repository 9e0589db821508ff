-- The tables of seriatim, and their story.
--
-- A producer inserts rows into `job`, and touches nothing else. The first job of each group in its statement is
-- `flagged`: "look at my group".
-- A worker sees the flags and puts the groups in line: a row in `queue_group`, which exists only while its group has
-- unfinished jobs (or is halted). That row is what is locked: by the claim that takes a turn, by the hold that keeps the
-- group while a handler runs, by the settle that records the outcome and passes the turn on. Its `claim` is a random
-- token; whoever cannot show it has nothing to say about the group.
-- Producers never touch `queue_group`, so an enqueue cannot wait for a handler.
--
-- Everything is created in the schema that the migration's search_path names.

-- Those below 'succeeded' are unfinished.
create type job_status as enum ('queued', 'started', 'parked', 'succeeded', 'failed', 'cancelled');
-- A statement that writes a row parses its table's checks anew, but not those of domains.
create domain positive_integer as integer check (value > 0);
create domain positive_bigint as bigint check (value > 0);

create table job (
  -- The order of a group is the order of its ids. cache 1: a cached range would hand out ids out of order.
  id bigint generated always as identity (cache 1) primary key,
  queue text not null,
  group_id text,                               -- null: no order asked for
  status job_status not null default 'queued',
  -- "Look at my group": see adopt in ARCHITECTURE.md. Also kept on finished (cancelled) jobs until a worker saw it.
  flagged boolean not null default false,
  attempts integer not null default 0,         -- runs begun; only ever counts up
  attempts_forgiven integer not null default 0, -- runs that are not held against the job (shutdown, manual retry)
  max_attempts positive_integer,               -- null: the queue's
  timeout_ms positive_bigint,                  -- null: the queue's
  run_at timestamptz not null default now(),
  -- For jobs without a group only: their own row is their lock, token and lease.
  claim uuid,
  lease_until timestamptz,
  suspect uuid,
  last_started_at timestamptz,
  finished_at timestamptz,
  created_at timestamptz not null default now(),
  data jsonb not null,
  result jsonb,
  error jsonb,                                 -- of the last attempt that failed: kind, message, chain, attempt
  history jsonb not null default '[]'          -- the last attempts that did not succeed, oldest first
) with (
  -- Each job is updated two or three times soon after its insert: leave room for the new versions on its page.
  fillfactor = 80,
  -- A queue's table is mostly dead rows between vacuums. Vacuum by count, not by share of the table (history would
  -- postpone it), and without pauses.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);

-- Every index that the hot path reads is partial: history costs it nothing.
create index job_unfinished on job (queue, group_id, id) where group_id is not null and status in ('queued', 'started');
-- The flagged jobs of one group, for the look at its head.
create index job_flagged_group on job (queue, group_id, id) where flagged;
-- Jobs without a group: waiting, and running.
create index job_loose_queued on job (queue, run_at, id) where group_id is null and status = 'queued';
create index job_loose_started on job (queue, lease_until) where group_id is null and status = 'started';
-- Retention and counts of finished jobs.
create index job_finished on job (queue, status, finished_at) where status in ('succeeded', 'failed', 'cancelled');

create table queue_group (
  queue text not null,
  group_id text not null,
  ready_at timestamptz not null,               -- when the next turn may start; infinity while halted
  head_id bigint not null,                     -- no unfinished job below it but flagged ones
  claim uuid,                                  -- token of the current claim, null when free
  job_id bigint,                               -- the claimed job
  suspect uuid,                                -- the claim that a first look doubted
  halted_at timestamptz,
  halt_reason text,
  halt_job_id bigint                           -- the job that halted the group
) with (
  -- Small, and updated twice per turn.
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- Not unique: each turn writes the row twice, and each time a unique index compares it with all dead versions of it, which stay
-- while somebody's transaction keeps vacuum from them. That a group has one row is what the adopter's lock is for: nobody else
-- inserts here (see adopt).
create index queue_group_key on queue_group (queue, group_id);
alter table queue_group replica identity full;
-- Partial, although nearly every row is in it: so a look-up by queue and group can only be planned with the index before, also
-- while the statistics say that the table is empty.
create index queue_group_ready on queue_group (queue, ready_at) where ready_at < 'infinity';
create index queue_group_halted on queue_group (queue, halted_at) where halted_at is not null;

-- Requests about a job that is running or being claimed: its row is locked, so they are left here and read by its
-- worker. Not unique: an insert must not wait for another transaction's.
create table cancel_request (
  job_id bigint not null,
  requested_at timestamptz not null default clock_timestamp()
);
create index cancel_request_job on cancel_request (job_id);
alter table cancel_request replica identity full;
