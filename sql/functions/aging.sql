-- Gives what slept until its time the aging of its priority, now that it is due: before, it would
-- count as if it had waited for longer than it was asked to sleep. A locked row gets none this
-- time. Up to `most` groups and jobs. Returns whether there may be more.
--
-- Locks: rows of sleeping groups, ungrouped or flagged jobs NO KEY UPDATE, skips.
create or replace function {schema}.age_priorities(of_queue text, until_at timestamptz, most integer)
returns boolean
language plpgsql volatile as $$
declare
  groups integer; jobs integer;
begin
  update {schema}.queue_group g set
    ready_at = g.ready_at - g.aging_priority * {priority_aging}, aging_priority = 0
  from (select d.ctid as line from {schema}.queue_group d
    where d.queue = of_queue and d.aging_priority > 0 and d.ready_at <= until_at
    order by d.ready_at limit most for no key update skip locked) due
  where g.ctid = due.line;
  get diagnostics groups = row_count;
  update {schema}.job j set turn_at = j.turn_at - j.priority * {priority_aging}
  from (select d.id from {schema}.job d
    where d.queue = of_queue and d.status = 'queued' and d.priority > 0 and d.turn_at >= d.run_at
      and (d.group_id is null or d.flagged) and d.run_at <= until_at
    order by d.run_at limit most for no key update skip locked) due
  where j.id = any (array[due.id]);
  get diagnostics jobs = row_count;
  return groups = most or jobs = most;
end $$;
