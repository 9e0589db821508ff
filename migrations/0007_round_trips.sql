-- What a worker does for most jobs, in one round trip each: hold, and settle a success; the next file has the claim. The
-- functions do what is common, as src/store/ does it statement by statement, and leave the rest to that. Each statement in
-- them has a snapshot of its own, as there.
--
-- Their names are qualified when they are made, and they pin their plans for the transaction: a `set` of a function's own
-- would cost more than the rest of it.

do $make$
declare
  function text;
begin
  foreach function in array array[

-- How the library's statements are planned, and that they wait for nobody; until the transaction ends.
$f$
create function {schema}.pin_plans() returns void
language plpgsql volatile
as $$
begin
  perform set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
    set_config('enable_mergejoin', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('jit', 'off', true), set_config('lock_timeout', '100ms', true);
end $$
$f$,

-- Locks the rows of a claim for the transaction that is open: the group's by its token, then the job's. The server's process
-- that holds them; null, and perhaps some of the locks, if somebody has a row for a moment, the claim is doubted or lost, or
-- the job is to be cancelled. From here on the transaction may take its time.
$f$
create function {schema}.hold_job(of_job bigint, with_token uuid) returns integer
language plpgsql volatile
as $$
declare
  of_queue text; of_group text;
begin
  perform set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true),
    set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true), set_config('lock_timeout', '100ms', true);
  select j.queue, j.group_id into of_queue, of_group from {schema}.job j where j.id = of_job;
  if of_group is null then
    perform from {schema}.job j
    where j.id = of_job and j.claim = with_token and j.suspect is null
      and j.finished_at is null and j.status not in ('queued', 'parked')
    for no key update skip locked;
  else
    -- By coalesce it does not match queue_group_claimed, by which all claims of the queue would be read.
    perform from {schema}.queue_group g
    where g.queue = of_queue and g.group_id = of_group and g.claim = with_token and g.suspect is null
      and of_job between coalesce(g.job_id, 0) and coalesce(g.batch_end, g.job_id)
    for no key update skip locked;
    if not found then
      return null;
    end if;
    perform from {schema}.job j
    where j.id = of_job and j.finished_at is null and j.status not in ('queued', 'parked')
    for no key update skip locked;
  end if;
  if not found then
    return null;
  end if;
  perform from {schema}.cancel_request r where r.job_id = of_job limit 1;
  if found then
    return null;
  end if;
  perform set_config('lock_timeout', '0', true);
  return pg_backend_pid();
end $$
$f$,

-- Settles the success of a job whose rows this transaction has locked; without `keep` the job is deleted. With jobs behind
-- it, the claim stays for them, unless somebody paused the queue or the group: then those go back as if they had not been
-- claimed, and the turn ends. `stays`, or else `passed` where the group has more jobs, or may have, and `drained` where not.
$f$
create function {schema}.settle_success(of_job bigint, with_token uuid, with_result jsonb, keep boolean, behind bigint[])
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
    -- Nothing has written the row before. The lock fails while an adopter shares the row; and the delete decides in a
    -- statement of its own, or by a snapshot that an adopter's commit has overtaken.
    perform from {schema}.queue_group g
    where g.queue = of_queue and g.group_id = of_group and g.claim = with_token
    for update skip locked;
    if found then
      delete from {schema}.queue_group g
      where g.queue = of_queue and g.group_id = of_group and g.claim = with_token and g.halted_at is null
        and (select u.id from {schema}.job u
          where u.queue = of_queue and u.group_id = of_group and u.status in ('queued', 'started') limit 1) is null;
      if found then
        return 'drained';
      end if;
    end if;
  end if;
  update {schema}.queue_group g set
    claim = null, job_id = null, suspect = null, claimed_by = null, batch_end = null, batch_size = 1,
    ready_at = clock_timestamp() - interval '10 s' * coalesce(next_priority, 0)
  where g.queue = of_queue and g.group_id = of_group and g.claim = with_token;
  if not found then
    raise 'group % is not as its worker has locked it', of_group using errcode = 'no_data_found';
  end if;
  return 'passed';
end $$
$f$
  ] loop
    execute replace(function, '{schema}', quote_ident(current_schema()));
  end loop;
end $make$;
