-- What each queue has done in each minute of the last hour, for the charts of the page.
--
-- The collector of metrics writes a row for each queue in which a job ended, once the minute is
-- over. A row without a name says that the minute was counted: a queue without a row of its own has
-- ended nothing in it. Rows are deleted after an hour. Nothing that claims, ends or enqueues a job
-- writes here.
create table queue_minute (
  queue text not null,
  minute timestamptz not null,                 -- its begin
  ended bigint not null,                       -- jobs that succeeded, or failed for good
  failed bigint not null,                      -- those of them that failed
  wait_median_ms bigint,                       -- from when a job was due until its last attempt began
  wait_p95_ms bigint,                          -- 19 of 20 waited no longer
  primary key (queue, minute)
);
