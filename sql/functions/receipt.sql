-- Returns whether this text can be a receipt, of whatever claim.
create or replace function is_receipt(receipt text) returns boolean
language sql immutable
as $$
  select case when receipt ~ '^[0-9]{1,19}\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
    then split_part(receipt, '.', 1)::numeric <= 9223372036854775807 else false end
$$;

create or replace function parse_receipt(receipt text, out job bigint, out token uuid)
language plpgsql immutable
as $$
begin
  if not is_receipt(receipt) then
    raise exception 'this is not a receipt: %', coalesce(quote_literal(left(receipt, 80)), 'null')
      using errcode = '22023', hint = 'Pass the receipt as receive() returned it.';
  end if;
  job := split_part(receipt, '.', 1);
  token := split_part(receipt, '.', 2);
end $$;

-- From here on, until `end_holds`, all receipts of this transaction together wait half a second for
-- rows that other transactions have: a thousand of them would wait for minutes.
create or replace function begin_holds() returns void
language sql volatile
as $$
  select set_config('seriatim.hold_until', extract(epoch from clock_timestamp() + interval '0.5 s')::text, true)
$$;

create or replace function end_holds() returns void
language sql volatile
as $$
  select set_config('seriatim.hold_until', '', true)
$$;

-- Locks the rows of a receipt: the group's by its token, then the job's. Skipped is not lost: only
-- a plain read that shows another token makes it stale. `state`: held, stale, or busy (another
-- transaction has had a row for half a second). Of many receipts the first to find a row locked
-- waits for all: see `begin_holds`.
--
-- A strict claim that is over is stale, by the clock as its row is read. If a claim was not over
-- yet, the lock keeps it until the caller's commit, however late that is. With `late` a job without
-- a group is held until it is received again: nobody waits for its turn.
create or replace function receive_hold(of_job bigint, token uuid, late boolean, out state text, out of_queue text, out of_group text)
language plpgsql volatile
as $$
declare
  until constant timestamptz := coalesce(
    to_timestamp(nullif(current_setting('seriatim.hold_until', true), '')::float8), clock_timestamp() + interval '0.5 s');
begin
  loop
    select j.queue, j.group_id into of_queue, of_group from job j where j.id = of_job;
    if of_group is null then
      perform from job j where j.id = of_job and j.claim = token and (late or not {over_j})
        and j.finished_at is null and j.status not in ('queued', 'parked') for no key update skip locked;
      if found then
        state := 'held';
        return;
      end if;
      perform from job j where j.id = of_job and j.claim = token and (late or not {over_j})
        and j.finished_at is null and j.status not in ('queued', 'parked');
    else
      perform from queue_group g where g.queue = of_queue and g.group_id = of_group and g.claim = token and not {over_g}
        and of_job between coalesce(g.job_id, 0) and coalesce(g.batch_end, g.job_id) for no key update skip locked;
      if found then
        perform from job j where j.id = of_job and j.finished_at is null and j.status not in ('queued', 'parked')
        for no key update skip locked;
        if found then
          state := 'held';
          return;
        end if;
      end if;
      perform from queue_group g join job j on j.id = of_job and j.finished_at is null
          and j.status not in ('queued', 'parked')
      where g.queue = of_queue and g.group_id = of_group and g.claim = token and not {over_g}
        and of_job between coalesce(g.job_id, 0) and coalesce(g.batch_end, g.job_id);
    end if;
    if not found then
      state := 'stale';
      return;
    end if;
    exit when clock_timestamp() >= until;
    perform pg_sleep(0.005);
  end loop;
  state := 'busy';
exception when lock_not_available then
  state := 'busy';
end $$;

-- Passes on a claim when one of its jobs has ended or went back: it keeps the rest of its jobs, or
-- the turn ends. The group's row is locked. `ended` is the job, if it has ended.
create or replace function receive_pass(of_queue text, of_group text, token uuid, ended bigint) returns void
language plpgsql volatile
as $$
declare
  may_retire constant boolean := receiver_may_retire();
  left_first bigint;
  left_last bigint;
  left_count bigint;
begin
  -- A claim of one job has none left.
  select min(b.id), max(b.id), count(*) into left_first, left_last, left_count
  from queue_group g, batch_jobs(of_queue, of_group, g.job_id, g.batch_end) b(id)
  where g.claim = token;
  if left_count = 0 then
    perform pass_turn(token, of_queue, of_group, case when may_retire then ended end);
  else
    update queue_group g set job_id = left_first, batch_end = left_last, batch_size = left_count
    where g.claim = token;
  end if;
end $$;
