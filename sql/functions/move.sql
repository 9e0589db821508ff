-- Moves queued jobs to another queue: a mistyped one, say. Each gets a new id there, in the order
-- of the old ids, and so a place at the end of its group. The old job ends as cancelled, and its
-- error names the new one: a retry of it is refused.
--
-- Kept are group, limit key, data, payload, headers, attributes, name, reference, priority, times,
-- limits and the age; and the batch, as its job or as its follow-up. The attempts begin anew. A
-- deduplication id counts in the new queue from now on: a job that would be a duplicate there stays
-- where it is (`duplicates`). Left out are also jobs that are not queued, are in the new queue
-- already, or are locked.
--
-- `left_behind`: unfinished jobs of their groups that come before a moved one, and stay; counted up
-- to 1,000 of each group.
--
-- No size is checked again: a client may have allowed larger data than SQL does.
--
-- Locks: the jobs NO KEY UPDATE, skips. With a deduplication id it waits as an enqueue does.
create or replace function move_jobs(ids bigint[], to_queue text, reason text default null,
  actor text default session_user,
  out jobs bigint[], out new_jobs bigint[], out groups bigint, out duplicates bigint, out left_behind bigint)
language plpgsql volatile set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  moved job; locked bigint[]; by_content boolean; once text; new_job bigint;
begin
  perform check_queue(to_queue);
  by_content := (select q.dedup_by_content from queue q where q.name = to_queue);
  jobs := '{}';
  new_jobs := '{}';
  duplicates := 0;
  loop
    begin
      locked := array(
        select j.id from (select distinct u.id from unnest(ids) u(id)) wanted
        join job j on j.id = any (array[wanted.id])
        where j.status::text in ('queued') and j.queue <> to_queue
          and (select true from claim_of(j.queue, j.group_id, j.id) c) is null
        order by j.id for no key update of j skip locked);
      perform check_unclaimed(locked);
      exit;
    exception when sqlstate 'SQ001' then
      -- The next look sees the claim.
    end;
  end loop;
  for moved in
    select j.* from unnest(locked) l(id) join job j on j.id = any (array[l.id]) order by j.id
  loop
    new_job := nextval('job_id_seq');
    once := coalesce(moved.dedup_id,
      case when by_content
        then content_id(moved.data, moved.payload) end);
    if (case when once is not null
      then claim_dedup_id(to_queue, moved.group_id, once, new_job) <> new_job end)
    then
      duplicates := duplicates + 1;
      continue;
    end if;
    insert into job (id, queue, group_id, flagged, data, payload, content_type, name, reference, priority,
      expires_at, max_attempts, timeout_ms, lease_ms, dedup_id, headers, attributes, limit_key, batch_id,
      created_at, run_at, turn_at)
    values (new_job, to_queue, moved.group_id, moved.group_id is not null, moved.data, moved.payload,
      moved.content_type, moved.name, moved.reference, moved.priority, moved.expires_at,
      moved.max_attempts, moved.timeout_ms, moved.lease_ms, once, moved.headers, moved.attributes,
      moved.limit_key, moved.batch_id, moved.created_at, moved.run_at,
      case when moved.run_at <= clock_timestamp() then moved.run_at - moved.priority * {priority_aging}
        else least(moved.run_at, moved.expires_at) end);
    if moved.headers ? {ended_batch} then
      update batch b set follow_up = new_job
      where b.follow_up = moved.id and b.id::text = moved.headers->>{ended_batch};
    end if;
    -- An end of before, as of a dead letter, is none: the new job ends in its stead.
    delete from batch_end e where e.batch_id = moved.batch_id and e.job_id = moved.id;
    update job j set {cancelled}, batch_id = null, flagged = j.group_id is not null,
      error = jsonb_build_object('kind', 'cancelled', 'chain', '[]'::jsonb, 'attempt', j.attempts,
        'message', format('{moved_to} %s as job %s', to_jsonb(to_queue), new_job),
        'moved_to', to_queue, 'moved_as', new_job)
    where j.id = moved.id;
    jobs := jobs || moved.id;
    new_jobs := new_jobs || new_job;
  end loop;
  select count(*), coalesce(sum(g.behind), 0) into groups, left_behind from (
    select (select count(*) from (
        select from job l
        where l.queue = m.queue and l.group_id = m.group_id and l.status in ('queued', 'started')
          and l.id < m.last limit 1000) l) as behind
    from (
      select j.queue, j.group_id, max(j.id) as last from job j
      where j.id = any (jobs) and j.group_id is not null group by j.queue, j.group_id) m) g;
  if jobs <> '{}' then
    perform wake(to_queue);
  end if;
  perform record_operations(actor, 'move', jobs, reason, format('(to queue %s)', to_jsonb(to_queue)));
end $$;
