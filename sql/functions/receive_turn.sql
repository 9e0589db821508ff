-- Takes the turn of a group whose row a receive has just locked. `job` is set if that job was
-- claimed, until `until`. `again`: a job has ended, and more may be due at once.
create or replace function receive_turn(turn queue_group, until timestamptz, attempt_limit integer, out job bigint, out more_due boolean)
language plpgsql volatile
as $$
declare
  head job;
  head_at bigint := turn.head_id;
  refusal text;
  wait interval;
begin
  more_due := false;
  -- A take-over needs two reads a grace apart: the first suspects the claim, the second takes it
  -- over.
  if turn.claim is not null and not is_suspected(turn.suspect, turn.claim, turn.ready_at) then
    update queue_group g set suspect = g.claim, ready_at = suspect_until(g.suspect, g.claim)
    where g.queue = turn.queue and g.group_id = turn.group_id;
    return;
  end if;
  -- A pause stops new claims only; a claim from before goes on.
  if turn.claim is null and exists (
    select from group_setting s where s.queue = turn.queue and s.group_id = turn.group_id and s.paused_at is not null)
  then
    -- The row rests until the end of the pause flags its head. That statement waits for this share
    -- lock, so its flag comes after the rest is written.
    perform from group_setting s where s.queue = turn.queue and s.group_id = turn.group_id and s.paused_at is not null
    for share skip locked;
    update queue_group g set ready_at = case when found then 'infinity' else clock_timestamp() + {retry_soon} end
    where g.queue = turn.queue and g.group_id = turn.group_id;
    return;
  end if;
  if turn.batch_end is not null then
    -- The first job that has not ended is taken over, the others go back.
    turn.job_id := coalesce((select min(b.id)
      from batch_jobs(turn.queue, turn.group_id, turn.job_id, turn.batch_end) b(id)), turn.job_id);
    perform receive_return(turn.queue, turn.group_id, turn.job_id + 1, turn.batch_end);
  end if;

  for looks in 1..100 loop
    if turn.claim is null then
      head.id := receive_head(turn.queue, turn.group_id, head_at);
    else
      head.id := turn.job_id;
    end if;
    if head.id is null then
      -- The stronger lock fails while an adopter shares the row. Nothing has written the row before
      -- it.
      perform from queue_group g where g.queue = turn.queue and g.group_id = turn.group_id
        and g.claim is null and g.halted_at is null for update skip locked;
      if found then
        delete from queue_group g where g.queue = turn.queue and g.group_id = turn.group_id and not exists (
          select from job j where j.queue = turn.queue and j.group_id = turn.group_id
            and j.status in ('queued', 'started'));
        if found then
          return;
        end if;
      end if;
      wait := {retry_soon};
      exit;
    end if;
    select j.* into head from job j where j.id = head.id and j.finished_at is null for no key update skip locked;
    if not found then
      -- A take-over never retires: a job enqueued beside it would be lost (P3).
      if turn.claim is not null and not exists (select from job j where j.id = turn.job_id and j.finished_at is null) then
        perform receive_free(turn.queue, turn.group_id, clock_timestamp());
        more_due := true;
        return;
      end if;
      wait := {retry_soon};
      exit;
    end if;
    head_at := head.id;
    refusal := receive_refusal(head, attempt_limit);
    if turn.claim is null and refusal is distinct from 'expired' and head.run_at > clock_timestamp() then
      update queue_group g set ready_at = least(head.run_at, head.expires_at), head_id = head.id, aging_priority = head.priority
      where g.queue = turn.queue and g.group_id = turn.group_id;
      return;
    end if;
    if refusal is null then
      perform receive_start(head.id);
      update queue_group g set
        claim = gen_random_uuid(), job_id = head.id, suspect = null, claimed_by = null, batch_end = null, batch_size = 1,
        head_id = case when g.claim is null then head.id else g.head_id end, aging_priority = 0, ready_at = until
      where g.queue = turn.queue and g.group_id = turn.group_id;
      job := head.id;
      return;
    end if;
    if receive_refuse(head, refusal) then
      update queue_group g set head_id = least(g.head_id, head_at)
      where g.queue = turn.queue and g.group_id = turn.group_id;
      return;
    end if;
    if turn.claim is not null then
      perform receive_free(turn.queue, turn.group_id, clock_timestamp());
      more_due := true;
      return;
    end if;
    wait := '0';
    more_due := true;
  end loop;
  update queue_group g set ready_at = clock_timestamp() + wait,
    head_id = case when g.claim is null then head_at else g.head_id end
  where g.queue = turn.queue and g.group_id = turn.group_id;
end $$;
