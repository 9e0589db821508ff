-- Records an operator's action, in the transaction of the change. Without an actor, no operator
-- asked for the change: nothing is recorded. Nor is an action that changed nothing. `about` names
-- what no column has, and is added to the reason.
--
-- Refuses an actor or a reason that is too long, and so undoes the change.
create or replace function record_change(actor text, action text, queue text, group_id text,
  job_id bigint, reason text, affected bigint, about text, schedule text) returns void
language plpgsql volatile set search_path from current as $$
begin
  perform check_text('actor', actor);
  perform check_text('reason', reason);
  if actor is not null and affected > 0 then
    insert into operation (actor, action, queue, group_id, job_id, reason, affected, schedule)
    select actor, action, queue, group_id, job_id, nullif(concat_ws(' ', reason, about), ''), affected,
      schedule;
  end if;
end $$;

-- The same of a change that the other columns describe.
create or replace function record_operation(actor text, action text, queue text, group_id text,
  job_id bigint, reason text, affected bigint) returns void
language sql volatile set search_path from current as $$
  select record_change(actor, action, queue, group_id, job_id, reason, affected, null, null)
$$;

-- Writes down what an operator did with some jobs: a row for each queue, which names their group or
-- the job if that is one.
create or replace function record_operations(actor text, action text, ids bigint[], reason text,
  about text) returns void
language sql volatile set search_path from current as $$
  select check_text('actor', actor), check_text('reason', reason);
  select record_change(actor, action, j.queue,
    case when count(*) = count(j.group_id) and min(j.group_id) = max(j.group_id) then min(j.group_id) end,
    case when count(*) = 1 then min(j.id) end, reason, count(*),
    about, null)
  from job j where j.id = any (ids) group by j.queue order by j.queue
$$;
