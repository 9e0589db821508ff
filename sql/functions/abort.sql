-- Ends the run of a started job. Its worker finds the claim gone, drops the handler, and goes on
-- with other jobs. The attempt counts, and the job runs again a grace later if it has one left. A
-- receiver is not told: its receipt is stale.
--
-- The claim gets another token and is suspected: nobody can clear that. A session that holds the
-- rows is terminated (`terminated`), which a rollback does not undo. It takes the right to do so:
-- the same role, or pg_signal_backend; else `forbidden` is that session.
--
-- The job's history says who aborted the attempt, and why. If another transaction keeps the job's
-- row, the attempt is recorded as a lost one.
--
-- The handler's own transaction (`ActiveJob::tx`) is refused: it could not settle the job any more.
--
-- A processor without a presence may learn of it only when it extends the lease. So the claim is
-- left to the end of that, and a grace.
--
-- Locks: the row of the group, or of a job without one; skips, terminates who has it, and waits for
-- its end, for 1 s. Before that an advisory lock, `session_end_key`. Then the job; waits for 0.1 s.
create or replace function abort(job bigint, reason text default null, actor text default session_user,
  out status text, out done boolean, out terminated integer, out forbidden integer)
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  was record; held record; of_session integer; over_at timestamptz;
  old_timeout constant text := current_setting('lock_timeout');
  token constant uuid := gen_random_uuid();
begin
  perform check_isolation('abort');
  -- Before a session is terminated, which no error undoes.
  perform check_text('actor', actor);
  perform check_text('reason', reason);
  done := false;
  select p.* into was from job_place(abort.job) p;
  status := was.status;
  if status is distinct from 'started' then
    return;
  end if;
  for tries in 1..40 loop
    if was.group_id is null then
      select j.claim, j.claimed_by, j.lease_until as lease_end, j.xmax::text as locker into held from job j
      where j.id = abort.job and j.claim is not null;
      exit when not found;
      perform from job j where j.id = abort.job and j.claim = held.claim for no key update skip locked;
    else
      select g.claim, g.claimed_by, g.ready_at as lease_end, g.xmax::text as locker into held
      from queue_group g
      where g.queue = was.queue and g.group_id = was.group_id and abort.job = any ({claimed_jobs_g});
      exit when not found;
      perform from queue_group g where g.claim = held.claim for no key update skip locked;
    end if;
    if found and current_setting('seriatim.held', true) = was.queue
      and locker(held.locker, case when was.group_id is null then 'job' else 'queue_group' end)
        = pg_backend_pid()
    then
      raise 'job % is held by this transaction, which its own handler runs in', abort.job
        using errcode = 'object_not_in_prerequisite_state',
        hint = 'Let the handler return an error, or abort the job on another connection.';
    end if;
    if found then
      over_at := clock_timestamp() + {grace};
      if terminated is null
        and exists (select from processor p where p.id = held.claimed_by and p.presence_key is null)
      then
        over_at := greatest(over_at, held.lease_end + {grace});
      end if;
      if was.group_id is null then
        update job j set claim = token, suspect = token, lease_until = over_at where j.id = abort.job;
      else
        update queue_group g set claim = token, suspect = token, ready_at = over_at
        where g.claim = held.claim;
      end if;
      begin
        perform set_config('lock_timeout', '100ms', true);
        perform from job j where j.id = abort.job for no key update;
      exception when lock_not_available then
      end;
      perform set_config('lock_timeout', old_timeout, true);
      update job j set history = history_with(j.history, j.attempts + (was.group_id is not null)::integer,
        coalesce(began.at, j.last_started_at), 'aborted',
        concat('aborted', ' by ' || nullif(actor, ''), ': ' || nullif(reason, '')))
      from (select l.id from job l where l.id = abort.job for no key update skip locked) free
      left join lateral (
        select c.started_at as at from claim_of(was.queue, was.group_id, abort.job) c) began on true
      where j.id = free.id;
      done := true;
      perform record_operation(actor, 'abort', was.queue, was.group_id, job, reason, 1);
      return;
    end if;
    of_session := locker(held.locker, case when was.group_id is null then 'job' else 'queue_group' end);
    if of_session <> pg_backend_pid() and terminated is distinct from of_session then
      perform pg_advisory_xact_lock(session_end_key(of_session));
      begin
        if pg_catalog.pg_terminate_backend(of_session) then
          terminated := of_session;
        end if;
      exception when insufficient_privilege then
        forbidden := of_session;
        return;
      end;
      -- Waits for the end of that session.
      begin
        perform set_config('lock_timeout', '1s', true);
        if was.group_id is null then
          perform from job j where j.id = abort.job for no key update;
        else
          perform from queue_group g where g.queue = was.queue and g.group_id = was.group_id
          for no key update;
        end if;
      exception when lock_not_available then
      end;
      perform set_config('lock_timeout', old_timeout, true);
    else
      perform pg_sleep(0.025);
    end if;
  end loop;
  -- The claim was settled or taken over meanwhile.
  done := terminated is not null;
  perform record_operation(actor, 'abort', was.queue, was.group_id, job, reason, done::integer);
end $$;
