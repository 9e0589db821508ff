-- A row a group that has something unfinished, parked, halted or paused; see `group_state`. Groups
-- are read in no order, those with a row in line first, and each is looked at by itself: name a
-- queue, and a limit.
create or replace view {schema}.group_overview as
select n.queue, n.group_id, s.*
from (
  select g.queue, g.group_id from {schema}.queue_group g
  union all
  -- Groups that no worker has adopted yet.
  select j.queue, j.group_id from {schema}.job j
  where j.flagged and {schema}.listed_by(j.queue, j.group_id) = j.id
  union all
  -- Groups with parked jobs alone.
  select j.queue, j.group_id from {schema}.job j
  where j.parked_with is not null and j.status = 'parked' and {schema}.listed_by(j.queue, j.group_id) = j.id
  union all
  -- Paused groups that have nothing.
  select s.queue, s.group_id from {schema}.group_setting s
  where {paused_s} and {schema}.listed_by(s.queue, s.group_id) is null) n
cross join lateral {schema}.group_state(n.queue, n.group_id) s
where s.state <> 'idle';
