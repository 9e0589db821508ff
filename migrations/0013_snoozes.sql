-- A handler or a receiver may put its job off: the job keeps its place, and no attempt counts.

alter table job
  add column snoozes smallint not null default 0;  -- how often, since it was queued or retried by hand
alter type explanation add attribute snoozes integer;
