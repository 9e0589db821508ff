-- A row a group that has something unfinished, parked, halted or paused; see `group_state`. Groups
-- are read in no order, those with a row in line first, and each is looked at by itself: name a
-- queue, and a limit.
create or replace view {schema}.group_overview as
select n.queue, n.group_id, d.*
from (
  select g.queue, g.group_id from {schema}.queue_group g
  union all
  -- Groups that no worker has adopted yet, each by the lowest of its flags.
  select j.queue, j.group_id from {schema}.job j
  where j.flagged and j.finished_at is null
    and (select g.group_id from {schema}.queue_group g where g.queue = j.queue and g.group_id = j.group_id limit 1) is null
    and (select f.id from {schema}.job f where f.queue = j.queue and f.group_id = j.group_id and f.flagged
      and f.finished_at is null order by f.group_id, f.id limit 1) = j.id
  union all
  -- Groups with parked jobs alone, each by the lowest of those.
  select j.queue, j.group_id from {schema}.job j
  where j.parked_with is not null and j.status = 'parked'
    and (select g.group_id from {schema}.queue_group g where g.queue = j.queue and g.group_id = j.group_id limit 1) is null
    and (select f.id from {schema}.job f where f.queue = j.queue and f.group_id = j.group_id and f.flagged
      and f.finished_at is null limit 1) is null
    and (select p.id from {schema}.job p where p.queue = j.queue and p.group_id = j.group_id and p.parked_with is not null
      and p.status = 'parked' order by p.group_id, p.id limit 1) = j.id
  union all
  -- Paused groups that have nothing.
  select s.queue, s.group_id from {schema}.group_setting s
  where {paused_s}
    and (select g.group_id from {schema}.queue_group g where g.queue = s.queue and g.group_id = s.group_id limit 1) is null
    and (select f.id from {schema}.job f where f.queue = s.queue and f.group_id = s.group_id and f.flagged
      and f.finished_at is null limit 1) is null
    and (select p.id from {schema}.job p where p.queue = s.queue and p.group_id = s.group_id and p.parked_with is not null
      and p.status = 'parked' limit 1) is null) n
cross join lateral {schema}.group_state(n.queue, n.group_id) d
where d.state <> 'idle';
