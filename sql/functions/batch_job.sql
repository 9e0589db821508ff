-- Joins of batches, and the ends of their jobs. A job that is in no batch pays nothing: each of
-- these is called only for a job that has a `batch_id`.

-- Lets a job that is being enqueued join a batch. Returns the batch; raises if it is sealed.
--
-- Locks: the batch's row KEY SHARE, until the commit: it cannot end before. Neither other joins nor
-- a seal wait for that, and a join waits for neither. A seal that commits behind the join's
-- snapshot is not seen: the join is before it. The end of the batch is seen, as its update is one
-- of a key.
create or replace function {schema}.join_batch(of_batch bigint) returns bigint
language plpgsql volatile as $$
declare
  joined bigint;
begin
  select b.id into joined from {schema}.batch b where b.id = of_batch and b.sealed_at is null for key share;
  if joined is not null then
    return joined;
  end if;
  if exists (select from {schema}.batch b where b.id = of_batch) then
    raise exception 'batch % is sealed: no job can join it', of_batch
      using errcode = '55000', constraint = {batch_sealed}, detail = of_batch,
        hint = 'Enqueue its jobs before it is sealed, or open another batch.';
  end if;
  raise exception 'there is no batch %', of_batch
    using errcode = '22023', constraint = {batch_unknown}, detail = of_batch,
      hint = 'Open one by open_batch, in this transaction or in one that has committed.';
end $$;

-- Records how a job of a batch has ended. Called in the RETURNING of the statement that ends the
-- job, so that it needs no statement of its own. Returns the job's group.
--
-- If few other jobs are left, it wakes maintenance as well: a hint. The last jobs of a batch are
-- looked for from the end, where the unfinished ones are.
--
-- Locks: nothing but its new rows. This transaction has the job's row, so no other one writes here.
create or replace function {schema}.mark_end(of_batch bigint, of_job bigint, of_queue text, of_group text,
  status {schema}.job_status, result jsonb) returns text
language plpgsql volatile as $$
#variable_conflict use_variable
declare
  is_sealed boolean;
begin
  select b.sealed_at is not null and b.ended_at is null into is_sealed from {schema}.batch b
  where b.id = of_batch;
  if not found then
    -- It was forgotten: the job runs again after its batch has ended.
    return of_group;
  end if;
  insert into {schema}.batch_end as e (batch_id, job_id, queue, group_id, status, result, ended_at)
  values (of_batch, of_job, of_queue, of_group, status,
    case when pg_column_size(result) <= {batch_result_limit} then result end, clock_timestamp())
  on conflict (batch_id, job_id) do update set queue = excluded.queue, status = excluded.status,
    result = excluded.result, ended_at = excluded.ended_at;
  insert into {schema}.batch_due (batch_id) values (of_batch);
  if is_sealed and (select count(*) from (
      select from {schema}.job j
      where j.batch_id = of_batch and j.id <> of_job and j.finished_at is null and j.moved_from is null
      order by j.batch_id desc, j.id desc limit 3) l) < 3
  then
    perform {schema}.wake('');
  end if;
  return of_group;
end $$;

-- Does that for jobs that this transaction has ended in a statement before.
create or replace function {schema}.mark_ends(ids bigint[]) returns void
language plpgsql volatile as $$
begin
  perform {schema}.mark_end(j.batch_id, j.id, j.queue, j.group_id, j.status, null) from {schema}.job j
  where j.id = any (ids) and j.batch_id is not null and j.finished_at is not null;
end $$;
