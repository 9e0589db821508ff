-- A handler or a receiver may let its group or its queue rest: a pause with an end, told from one
-- that an operator set.

alter table queue add column rested_by bigint;  -- the job that asked for the pause; null: an operator did
alter table group_setting add column rested_by bigint;
