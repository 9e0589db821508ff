-- The claim as steps: these are what one step tells the next. `sql/functions/claim.sql` names the
-- steps. Programs of before call the claim by position: they are stopped first.

drop type locked_turns cascade;
drop type turn_heads cascade;

-- Who claims, and on which terms.
create type claim_terms as (
  queue text,
  group_id text,                               -- this group's jobs alone; null: all
  receiver boolean,                            -- not a worker
  processor bigint,                            -- null: no presence vouches for the claim
  default_attempts integer,                    -- of jobs that say nothing of theirs
  lease_seconds float8,
  own_lease boolean,                           -- a job's own lease goes before that
  ignore_before timestamptz,
  per_turn integer,                            -- jobs of a group
  may_retire boolean                           -- this transaction has not written rows of groups
);

-- How much a claim may bring.
create type claim_limits as (
  slots integer,                               -- heads and jobs without a group; a receiver's jobs
  followers integer,                           -- a receiver: 0, or fill up from one group first
  bytes bigint,
  in_flight bigint                             -- what the queue's limit leaves; null: no limit
);

-- The first places of a queue's lines: there is nothing to take before them.
create type claim_front as (
  groups_at timestamptz,                       -- rows of groups
  flags_at timestamptz,                        -- flags, behind this time and id
  flags_id bigint,
  ungrouped_at timestamptz                     -- jobs without a group
);

-- A group whose turn it is. Its row is locked; if it has none yet, what an adopter locks is.
create type turn as (
  name text,
  line tid,                                    -- of its row
  head_id bigint,
  ready_at timestamptz,                        -- its place in the line
  flags bigint,                                -- how many an adopter has read; null: none, it was in line
  lapsed_job bigint,                           -- of a claim that lapsed
  lost_by text,                                -- whose that was: worker or receiver
  suspected boolean,                           -- it was suspected a grace ago
  job bigint,                                  -- the head, if it may start: locked
  disposition text,
  fresh boolean,                               -- no attempt counts yet
  bytes bigint,                                -- of the data, as stored
  followers bigint[]
);

-- Flags behind a time and an id, or the last ones of those.
create type flag_range as (
  from_at timestamptz,
  from_id bigint,
  until_at timestamptz,
  from_end boolean
);

-- A flag: a job that may call for something in its group.
create type flag as (
  id bigint,
  name text,                                   -- of the group
  flag_at timestamptz,
  ended boolean                                -- the job has
);

-- What the flags of a page call for in one group.
create type flag_call as (
  call text,                                   -- new, woken, idle, resting, drained
  name text,
  id bigint,                                   -- its first flag
  flag_at timestamptz,                         -- its place in the line
  head bigint,
  place bigint,                                -- of its first flag in the page
  flags bigint                                 -- how many the page has
);

-- What an adoption found.
create type adoption as (
  turns turn[],
  more boolean,                                -- there may be more flags that call for something
  late boolean,                                -- it ended for want of time
  reached_at timestamptz,                      -- up to this flag it has read
  reached_id bigint,
  idle text[],                                 -- groups with a row whose flags call for nothing
  resting text[],                              -- groups without one that cannot start yet
  passed bigint,                               -- how many flags of these it has read
  crowded boolean                              -- such flags filled a page
);

create type claimed_job as (
  id bigint,
  token uuid,                                  -- null: it follows the job before
  disposition text,
  ready_at timestamptz,                        -- of its turn; of a claim taken over, when it lapsed
  lost_by text                                 -- whose that was
);

create type claim_answer as (
  jobs claimed_job[],
  slots integer,                               -- that they take
  size bigint,                                 -- of their data in bytes
  more boolean,                                -- there may be more to claim right now
  next float8,                                 -- else, in seconds: when something will be due
  reading interval,                            -- how long it took to find what is due
  groups_at timestamptz,                       -- the front that is left
  flags_at timestamptz,
  flags_id bigint,                             -- null: all flags are read
  late boolean,                                -- they are not, for want of time
  ungrouped_at timestamptz
);

-- What becomes of a turn that starts nothing.
create type deferred_turn as (
  name text,
  line tid,
  head_id bigint,
  ready_at timestamptz,
  plan text,                                   -- line, sleep, rest, recheck, suspect, free, retire
  head bigint,
  due_at timestamptz,                          -- when that is
  priority smallint
);

-- How far a claim has looked for turns.
create type claim_scan as (
  part text,                                   -- the line, or else: lapsed, flags, end
  page integer,                                -- how many turns at once
  groups_at timestamptz,                       -- rows from here on
  rows_until timestamptz,                      -- rows up to here have been locked
  flags_at timestamptz,                        -- of the next flag; null: there is none
  flags_id bigint,
  reached_at timestamptz,                      -- up to this flag it has read
  reached_id bigint,
  more_flags boolean,                          -- others behind that may call for something
  late boolean,                                -- there was no time for those
  read_until timestamptz,
  reading interval,
  idle text[],
  resting text[],
  passed bigint,                               -- flags of these that it has read
  together boolean                             -- fill up from one group first
);

-- A job without a group that is to be claimed.
create type due_job as (
  id bigint,
  disposition text,
  bytes bigint,
  lapsed_at timestamptz,                       -- its claim
  lost_by text                                 -- whose that was
);
