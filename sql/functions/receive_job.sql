-- Ends a job that a receiver claimed and that is not to be run, for the reason that its claim gave.
-- Returns true if its group is halted by it. It runs with the settings of its caller: search_path,
-- lock_timeout, plans.
create or replace function receive_refuse(of_job bigint, token uuid, disposition text) returns boolean
language plpgsql volatile as $$
declare
  j job;
begin
  select x.* into j from job x where x.id = of_job;
  if disposition = 'cancelled' then
    perform end_attempt(of_job, 'cancelled', 'cancelled', null);
    perform forget_requests(of_job);
    return false;
  elsif disposition = 'expired' then
    perform end_attempt(of_job, 'failed', 'expired',
      format({expired}, to_char(j.expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')));
  else
    perform end_attempt(of_job, 'failed', 'worker_lost', format({exhausted}, j.attempts));
  end if;
  return end_behind(of_job, token, failure_policy(of_job));
end $$;

-- Ends a job that a receiver has claimed and that must not run, and passes the turn of its group
-- on.
create or replace function end_unfit(of_job bigint, token uuid, disposition text) returns void
language plpgsql volatile as $$
begin
  if not receive_refuse(of_job, token, disposition) then
    -- The job may be in the dead-letter queue now.
    perform pass_turns(array[token], array[null::bigint])
    from job j where j.id = of_job and j.group_id is not null;
  end if;
end $$;
