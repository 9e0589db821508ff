-- All that stands until its end or until an operator acts: halted and paused groups, paused queues
-- (no group), and failed jobs with others parked behind them. The job of a pause is the one that
-- asked for it; null: an operator did.
create or replace view {schema}.stopped as
select 'halted' as state, g.queue, g.group_id, g.halted_at as since, g.halt_until as until,
  g.halt_job_id as job, g.halt_reason as reason
from {schema}.queue_group g where g.halted_at is not null
union all
select 'paused', s.queue, s.group_id, s.paused_at, s.paused_until, s.rested_by, s.pause_reason
from {schema}.group_setting s where {paused_s}
union all
select 'paused', q.name, null, q.paused_at, q.paused_until, q.rested_by, q.pause_reason
from {schema}.queue q where {paused_q}
union all
select 'parked', f.queue, f.group_id, f.finished_at, null, f.id, f.error->>'message'
from {schema}.job f
where f.parked_with is not null and f.status = 'failed' and f.parked_with = f.id
  and (select u.id from {schema}.job u
    where u.queue = f.queue and u.group_id = f.group_id and u.parked_with is not null
      and u.parked_with = f.id and u.status = 'parked' limit 1) is not null;
