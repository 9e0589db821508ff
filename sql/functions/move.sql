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
-- Locks: the jobs NO KEY UPDATE, skips. With a deduplication id it waits as an enqueue does.
create or replace function move_jobs(ids bigint[], to_queue text, reason text default null,
  actor text default session_user,
  out jobs bigint[], out new_jobs bigint[], out groups bigint, out duplicates bigint, out left_behind bigint)
language plpgsql volatile set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  moved job; made record; locked bigint[];
begin
  perform check_queue(to_queue);
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
    select e.id, e.duplicate into made from enqueue(to_queue, moved.data, moved.group_id,
      run_at => moved.run_at, name => moved.name, reference => moved.reference, priority => moved.priority,
      expires_at => moved.expires_at, max_attempts => moved.max_attempts, dedup_id => moved.dedup_id,
      payload => moved.payload, content_type => moved.content_type, headers => moved.headers,
      attributes => moved.attributes, limit_key => moved.limit_key) e;
    if made.duplicate then
      duplicates := duplicates + 1;
      continue;
    end if;
    update job j set created_at = moved.created_at, timeout_ms = moved.timeout_ms, lease_ms = moved.lease_ms,
      batch_id = moved.batch_id
    where j.id = made.id;
    if moved.headers ? {ended_batch} then
      update batch b set follow_up = made.id
      where b.follow_up = moved.id and b.id::text = moved.headers->>{ended_batch};
    end if;
    -- An end of before, as of a dead letter, is none: the new job ends in its stead.
    delete from batch_end e where e.batch_id = moved.batch_id and e.job_id = moved.id;
    update job j set {cancelled}, batch_id = null, flagged = j.group_id is not null,
      error = jsonb_build_object('kind', 'cancelled', 'chain', '[]'::jsonb, 'attempt', j.attempts,
        'message', format('{moved_to} %s as job %s', to_jsonb(to_queue), made.id),
        'moved_to', to_queue, 'moved_as', made.id)
    where j.id = moved.id;
    jobs := jobs || moved.id;
    new_jobs := new_jobs || made.id;
  end loop;
  select count(*), coalesce(sum(g.behind), 0) into groups, left_behind from (
    select (select count(*) from (
        select from job l
        where l.queue = m.queue and l.group_id = m.group_id and l.status in ('queued', 'started')
          and l.id < m.last limit 1000) l) as behind
    from (
      select j.queue, j.group_id, max(j.id) as last from job j
      where j.id = any (jobs) and j.group_id is not null group by j.queue, j.group_id) m) g;
  perform record_operations(actor, 'move', jobs,
    concat_ws(' ', reason, format('(to queue %s)', to_jsonb(to_queue))));
end $$;
