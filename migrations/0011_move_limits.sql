-- A move task may move the jobs of one group alone, and may end after so many.
alter table move_task
  add column group_id text,                    -- null: all groups, and jobs without one
  add column job_limit positive_integer;       -- null: all that waits
