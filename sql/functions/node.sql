-- Says that a node is gone: suspects the claims of its processors, which are taken over a grace
-- later. A claim that is suspected already keeps its time. Returns how many groups, and jobs
-- without a group.
--
-- Locks: group rows, then the rows of jobs without a group, NO KEY UPDATE; skips those that a
-- transaction holds.
create or replace function release_node(node text, reason text default null, actor text default session_user,
  out groups bigint, out jobs bigint)
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  gone constant bigint[] := array(select p.id from processor p where p.node = release_node.node);
begin
  with locked as materialized (
    select g.ctid as line from queue_group g
    where g.claimed_by = any (gone) and g.job_id is not null
      and g.suspect is distinct from g.claim
    for no key update skip locked)
  update queue_group g set suspect = g.claim, ready_at = clock_timestamp() + {grace}
  from locked where g.ctid = locked.line;
  get diagnostics groups = row_count;
  with locked as materialized (
    select j.id from job j
    where j.claimed_by = any (gone) and j.group_id is null and j.status = 'started'
      and j.suspect is distinct from j.claim
    for no key update skip locked)
  update job j set suspect = j.claim, lease_until = clock_timestamp() + {grace}
  from locked where j.id = any (array[locked.id]);
  get diagnostics jobs = row_count;
  perform record_change(actor, 'release_node', null, null, null, reason, groups + jobs,
    '(node ' || release_node.node || ')', null);
end $$;
