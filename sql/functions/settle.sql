-- Settles the success of a job whose rows this transaction has locked; without `keep` the job is
-- deleted. With jobs `behind` it the claim stays for them (`stays`), unless the queue or the group
-- is paused. Then those go back as if they had not been claimed, and the turn ends. Else returns
-- `passed` if the group has more jobs, or may have, and `drained` if not.
create or replace function {schema}.settle_success(of_job bigint, with_token uuid, with_result jsonb, keep boolean, behind bigint[])
returns text
language plpgsql volatile
as $$
declare
  of_queue text; of_group text; next_priority smallint;
begin
  if keep then
    update {schema}.job j set
      status = 'succeeded', finished_at = clock_timestamp(), result = with_result, error = null,
      claim = null, lease_until = null, suspect = null, claimed_by = null
    where j.id = of_job and j.finished_at is null and j.status not in ('queued', 'parked')
    returning j.queue, j.group_id into of_queue, of_group;
  else
    delete from {schema}.job j
    where j.id = of_job and j.finished_at is null and j.status not in ('queued', 'parked')
    returning j.queue, j.group_id into of_queue, of_group;
  end if;
  if not found then
    raise 'job % is not as its worker has locked it', of_job using errcode = 'no_data_found';
  end if;
  if of_group is null then
    return 'drained';
  end if;
  if behind is not null then
    perform from {schema}.queue q where q.name = of_queue and q.paused_at is not null;
    if not found then
      perform from {schema}.group_setting s
      where s.queue = of_queue and s.group_id = of_group and s.paused_at is not null;
      if not found then
        return 'stays';
      end if;
    end if;
    update {schema}.job j set
      status = 'queued', attempts = j.attempts - 1,
      last_started_at = case when j.attempts > 1 then j.last_started_at end
    where j.id = any (behind) and j.finished_at is null and j.status not in ('queued', 'parked');
  end if;
  select h.priority into next_priority from {schema}.job h
  where h.queue = of_queue and (h.group_id, h.id) > (of_group, of_job) and h.group_id <= of_group
    and h.status in ('queued', 'started')
  order by h.group_id, h.id limit 1;
  if not found then
    -- Nothing has written the row before. The lock fails while an adopter shares the row. The
    -- delete decides in a statement of its own: by this snapshot, which an adopter's commit may
    -- have overtaken, it would strand a job (P3).
    perform from {schema}.queue_group g
    where g.claim = with_token
    for update skip locked;
    if found then
      delete from {schema}.queue_group g
      where g.claim = with_token and g.halted_at is null
        and (select u.id from {schema}.job u
          where u.queue = of_queue and u.group_id = of_group and u.status in ('queued', 'started') limit 1) is null;
      if found then
        return 'drained';
      end if;
    end if;
  end if;
  update {schema}.queue_group g set
    claim = null, job_id = null, suspect = null, claimed_by = null, batch_end = null, batch_size = 1,
    ready_at = clock_timestamp() - {priority_aging} * coalesce(next_priority, 0)
  where g.claim = with_token;
  if not found then
    raise 'group % is not as its worker has locked it', of_group using errcode = 'no_data_found';
  end if;
  return 'passed';
end $$;

-- Settles a success and starts the next job of the group under a token of its own, in the same
-- transaction, if nothing keeps it from that. Returns `goes_on` with what the next handler needs.
-- The session remembers the job for `hold_next`.
--
-- Only the read of a free row may raise `head_id`, as an adopter that shares the row goes by it. A
-- late job lowers it: what its flag stood for is behind that.
create or replace function {schema}.settle_and_chain(of_queue text, of_group text, of_job bigint, with_token uuid, with_result jsonb,
  keep boolean, default_attempts integer, lease_seconds float8, processor bigint, ignore_before timestamptz)
returns table (
  suspected boolean, id bigint, data text, attempts integer, attempts_forgiven integer, max_attempts integer,
  timeout_ms bigint, created_at timestamptz, run_at timestamptz, cancel_requested boolean, followed boolean,
  pid integer, since timestamptz, lease_ms bigint, payload bytea, content_type text, name text, reference text,
  priority smallint, claim uuid, state text)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  next_job bigint; next_token uuid; word text;
begin
  -- Most groups have nothing behind the job.
  perform from {schema}.job h
  where h.queue = of_queue and (h.group_id, h.id) > (of_group, of_job) and h.group_id <= of_group
    and h.status in ('queued', 'started')
  order by h.group_id, h.id limit 1;
  if found then
    -- The row of the next job is not held yet. A claim must survive a crash of the server, whatever
    -- the host has set.
    perform set_config('lock_timeout', {lock_timeout}, true), set_config('synchronous_commit', 'on', true);
    -- The head, as a claim finds it, by a snapshot that is younger than the lock of the group's
    -- row.
    select n.id into next_job from {schema}.job n
    where n.id = any (array[(
        select least(
          (select u.id from {schema}.job u
            where u.queue = g.queue and (u.group_id, u.id) >= (g.group_id, g.head_id) and u.group_id <= g.group_id
              and u.status in ('queued', 'started') and u.id <> of_job
            order by u.group_id, u.id limit 1),
          (select c.id from (
              select f.queue, f.group_id, f.id from {schema}.job f
              where f.queue = g.queue and f.group_id between g.group_id and g.group_id and f.flagged
              order by f.group_id, f.id limit 1) f
            join lateral (
              select u.id from {schema}.job u
              where u.queue = f.queue and (u.group_id, u.id) >= (f.group_id, f.id) and u.group_id <= f.group_id
                and u.status in ('queued', 'started') and u.id <> of_job
              order by u.group_id, u.id limit 1) c on true))
        from {schema}.queue_group g
        where g.claim = with_token)])
      and n.finished_at is null and n.status = 'queued' and n.run_at <= clock_timestamp() and n.expires_at is null
      and coalesce(n.created_at >= ignore_before, true)
      and n.attempts - n.attempts_forgiven < coalesce(n.max_attempts, default_attempts)
      -- If a limit of jobs in flight is set, a claim decides which job is next.
      and (select q.name from {schema}.queue q where q.name = of_queue and q.in_flight_limit is not null limit 1) is null
    for no key update of n skip locked;
  end if;
  word := {schema}.settle_success(of_job, with_token, with_result, keep, case when next_job is not null then '{}'::bigint[] end);
  if word <> 'stays' then
    perform set_config('seriatim.next', '', false);
    state := word;
    return next;
    return;
  end if;
  update {schema}.queue_group g set
    claim = gen_random_uuid(), job_id = next_job, head_id = least(g.head_id, next_job), suspect = null,
    claimed_by = processor, aging_priority = 0, batch_end = null, batch_size = 1, ready_at = clock_timestamp() + make_interval(secs => lease_seconds)
  where g.claim = with_token
  returning g.claim into next_token;
  if not found then
    raise 'group % is not as its worker has locked it', of_group using errcode = 'no_data_found';
  end if;
  -- The answer is text, in the form that the library reads.
  perform set_config('DateStyle', 'ISO, MDY', true), set_config('TimeZone', 'UTC', true),
    set_config('bytea_output', 'hex', true), set_config('seriatim.next', next_job || ' ' || next_token, false);
  return query
  update {schema}.job j set
    status = 'started', flagged = false, attempts = j.attempts + 1, last_started_at = clock_timestamp()
  where j.id = next_job
  returning false, j.id, j.data::text, j.attempts, j.attempts_forgiven, j.max_attempts::integer, j.timeout_ms::bigint,
    j.created_at, j.run_at, exists (select from {schema}.cancel_request r where r.job_id = j.id), true,
    pg_backend_pid(), now(), j.lease_ms::bigint, j.payload, j.content_type, j.name, j.reference, j.priority::smallint,
    next_token, 'chained';
end $$;
