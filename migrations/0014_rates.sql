-- A queue may have a rate, of starts over the whole fleet, and a spacing of the starts in each group.

alter table queue
  add column rate integer,                     -- starts in `rate_per_ms`, over the whole fleet
  add column rate_per_ms bigint,
  add column rate_burst integer,               -- how many may start at once
  add column rate_next_at timestamptz,         -- when the next start is due, if all keep the interval
  add column group_spacing_ms bigint,          -- from a start of a group to its next one
  add constraint queue_rate check (
    (rate is null) = (rate_per_ms is null) and (rate is null) = (rate_burst is null)
    and rate > 0 and rate_per_ms > 0 and rate_burst > 0),
  add constraint queue_group_spacing check (group_spacing_ms > 0),
  -- With a rate each claim writes its row.
  set (fillfactor = 50);
alter table queue_group add column spaced_until timestamptz;  -- no start before, by its queue's spacing
alter type turn add attribute spaced_until timestamptz;
alter type claim_answer add attribute limited boolean;        -- claim nothing ahead of a slot
alter type explanation add attribute rate integer, add attribute rate_per_ms bigint;
