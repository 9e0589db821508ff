-- A job may have a limit key, and a queue a limit of the groups that run at once for each key.

alter table job add column limit_key text;
alter table queue
  add column limit_per_key integer,            -- groups with one key that run at once; 0: no longer
  add constraint queue_limit_per_key check (limit_per_key >= 0);
alter table queue_group
  -- Its claim has a slot of this key. Without a claim: the slot is kept for its next turn.
  add column limit_key text,
  add column gated_by text,                    -- asleep until this key has a slot for it
  add column gated_at timestamptz;             -- the place in the line that it had

-- The slots of a key that are taken, and who waits for one.
create index queue_group_limit_key on queue_group (queue, limit_key) where limit_key is not null;
create index queue_group_gated on queue_group (queue, gated_by, gated_at) where gated_by is not null;

-- Slots that came free: the next claim of the queue wakes as many gated groups. Rows are inserted
-- by ends of turns and deleted by claims. Nothing is unique: no end waits for another transaction.
create table freed_slot (
  queue text not null,
  limit_key text not null,
  freed_at timestamptz not null default clock_timestamp()
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
create index freed_slot_freed_at on freed_slot (queue, freed_at);
alter table freed_slot replica identity full;

alter type turn
  add attribute limit_key text,                -- of the job
  add attribute held_key text,                 -- a slot of this key is the group's already
  add attribute gated boolean;                 -- the key has no slot for it
alter type deferred_turn add attribute limit_key text;
alter type claim_scan add attribute full_keys text[];   -- they have no slot left for this claim
alter type flag_range add attribute without_keys text[]; -- no groups whose head has one of these
alter type explanation
  add attribute limit_key text, add attribute limit_per_key integer, add attribute key_taken bigint;
