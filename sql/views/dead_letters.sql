-- Dead letters: the jobs that failed for good and are kept, without what they carry. `queue` is the
-- one that they failed in. Some have stayed there, as failed; others wait in its dead-letter queue,
-- which `dead_letter_queue` names.
create or replace view {schema}.dead_letters as
select j.id, j.queue, j.group_id, j.name, j.reference, j.attempts, j.created_at, j.finished_at,
  j.error->>'kind' as kind, coalesce(j.parked_with = j.id, false) as parked, j.error->>'message' as message,
  null::text as dead_letter_queue
from {schema}.job j where j.status = 'failed'
union all
select j.id, j.moved_from, j.group_id, j.name, j.reference, j.attempts, j.created_at,
  (j.history->-1->>'finished_at')::timestamptz, j.error->>'kind', false, j.error->>'message', j.queue
from {schema}.job j where {is_listed_dead_letter};
