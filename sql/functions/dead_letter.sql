-- The move of a job to another queue: the job keeps its id, and so its place among the ids of its
-- group there. Only jobs that a claim of their own has ended, or that are queued, are moved. A
-- statement that finds a job by its id, and locks it then, must check the queue once more.
--
-- Moves jobs that this transaction has locked, and flags each: those that come before it may be
-- there already. Without `to_queue`, each goes back to the queue that it came from. Their attempts
-- begin anew. They expire no more: the time was that of their queue.
create or replace function move_locked(ids bigint[], to_queue text, from_queue text) returns void
language plpgsql volatile as $$
begin
  update job j set {queued_again}, {free_job}, expires_at = null,
    queue = coalesce(move_locked.to_queue, j.moved_from), moved_from = move_locked.from_queue,
    flagged = j.group_id is not null
  where j.id = any (ids);
  perform wake(m.queue) from (
    select distinct j.queue from job j where j.id = any (ids)) m;
end $$;

-- Moves a job that this transaction has ended as failed to the dead-letter queue of its queue, if
-- that has one. Returns whether it has. Its error and its history go with it. No other place does
-- this: workers and receivers call it, before they pass the turn of its group on.
create or replace function dead_letter(of_job bigint) returns boolean
language plpgsql volatile set search_path from current as $$
declare
  target record;
begin
  select q.name, q.dead_letter_queue into target from job j join queue q on q.name = j.queue
  where j.id = of_job and q.dead_letter_queue is not null;
  if not found then
    return false;
  end if;
  perform move_locked(array[of_job], target.dead_letter_queue, target.name);
  return true;
end $$;
