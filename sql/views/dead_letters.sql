-- Dead letters: the jobs that failed for good and are kept, without what they carry. `queue` is the
-- one that they failed in. Those that have stayed there are failed, and by queue and id there is an
-- index. Those that went to its dead-letter queue wait there, and `dead_letter_queue` names it.
create or replace view {schema}.dead_letters as
select j.id, j.queue, j.group_id, j.name, j.reference, j.attempts, j.created_at, j.finished_at, j.error->>'kind' as kind,
  coalesce(j.parked_with = j.id, false) as parked, j.error->>'message' as message, null::text as dead_letter_queue
from {schema}.job j where j.status = 'failed'
union all
select j.id, j.moved_from, j.group_id, j.name, j.reference, j.attempts, j.created_at,
  (j.history->-1->>'finished_at')::timestamptz, j.error->>'kind', false, j.error->>'message', j.queue
from {schema}.job j where j.moved_from is not null and j.status = 'queued';
