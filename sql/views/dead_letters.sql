-- The jobs that failed and are kept, without what they carry. By queue and id there is an index.
create or replace view {schema}.dead_letters as
select j.id, j.queue, j.group_id, j.name, j.reference, j.attempts, j.created_at, j.finished_at, j.error->>'kind' as kind,
  coalesce(j.parked_with = j.id, false) as parked, j.error->>'message' as message
from {schema}.job j where j.status = 'failed';
