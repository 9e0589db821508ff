-- Pauses that end by themselves.

-- The end of a pause; null: an operator ends it. What reads a pause asks whether it is over, so
-- that nothing has to end it (`paused` in src/store/fragments.rs).
alter table queue add column paused_until timestamptz;
alter table group_setting add column paused_until timestamptz;
