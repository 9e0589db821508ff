-- Progress and checkpoints: how far a job is, in rows that last until it has succeeded. They are
-- not part of its attempt: a failed attempt leaves them (the exception of P4).

-- Returns whether a worker has this claim, and nobody suspects it. Plain reads: they lock nothing.
create or replace function {schema}.claim_stands(of_job bigint, with_token uuid) returns boolean
language plpgsql volatile as $$
begin
  return (select j.id from {schema}.job j
    where j.id = of_job and {claimed}
      and case when j.group_id is null then j.claim = with_token and j.suspect is null
        else (select g.claim from {schema}.queue_group g
          where g.claim = with_token and g.suspect is null and of_job = any ({claimed_jobs_g})
          limit 1) is not null end
    limit 1) is not null;
end $$;

-- Writes what is not null, and leaves the rest. Locks the job's row here until the commit, and
-- waits for another writer of it.
create or replace function {schema}.put_progress(of_job bigint, percent integer, message text,
  checkpoint jsonb) returns void
language sql volatile as $$
  insert into {schema}.job_progress as p
    (job_id, percent, message, reported_at, checkpoint, checkpoint_at)
  values (of_job, put_progress.percent, put_progress.message,
    case when put_progress.percent is not null then clock_timestamp() end,
    put_progress.checkpoint, case when put_progress.checkpoint is not null then clock_timestamp() end)
  on conflict (job_id) do update set
    percent = coalesce(excluded.percent, p.percent),
    message = case when excluded.percent is null then p.message else excluded.message end,
    reported_at = coalesce(excluded.reported_at, p.reported_at),
    checkpoint = coalesce(excluded.checkpoint, p.checkpoint),
    checkpoint_at = coalesce(excluded.checkpoint_at, p.checkpoint_at)
$$;

-- Writes for the worker that has this claim. Returns false, and has written nothing, if the claim
-- is lost or suspected (P10).
--
-- The write comes first: it locks the row here. Only then the claim is read, in a new statement. A
-- claim that is read before may be lost while the write waits for the row, and would write over the
-- checkpoint of the next worker. Behind this look a take-over takes a grace at least; the commit is
-- in the same message.
--
-- Locks: the row here, waits for another writer of it. The job's row and its group's are only read:
-- the handler's own transaction may have them locked.
create or replace function {schema}.write_progress(of_job bigint, with_token uuid, percent integer,
  message text, checkpoint jsonb) returns boolean
language plpgsql volatile as $$
begin
  perform {schema}.put_progress(of_job, percent, message, checkpoint);
  if not {schema}.claim_stands(of_job, with_token) then
    raise sqlstate 'SQ002';
  end if;
  return true;
exception when sqlstate 'SQ002' then
  return false;
end $$;

-- Deletes what these jobs have left behind, if they cannot run again: they have succeeded, or are
-- gone. Returns how many.
create or replace function {schema}.forget_progress(of_jobs bigint[]) returns bigint
language plpgsql volatile as $$
declare
  forgotten bigint;
begin
  delete from {schema}.job_progress p where p.ctid in (
    select p.ctid from {schema}.job_progress p
    where p.job_id = any (of_jobs)
      and coalesce((select j.status = 'succeeded' from {schema}.job j where j.id = p.job_id limit 1), true)
    for update skip locked);
  get diagnostics forgotten = row_count;
  return forgotten;
end $$;

-- The same for up to `n` jobs behind an id. Returns the last that it looked at; null: there is no
-- other.
create or replace function {schema}.forget_left_progress(after bigint, n bigint) returns bigint
language plpgsql volatile as $$
declare
  of_jobs constant bigint[] := array(
    select p.job_id from {schema}.job_progress p where p.job_id > after order by p.job_id limit n);
begin
  perform {schema}.forget_progress(of_jobs);
  return of_jobs[cardinality(of_jobs)];
end $$;

-- Says how far the job of a receipt is: `percent` (0 to 100) and a message, which is cut to 400
-- characters. It is shown while the job has not succeeded. Each call writes: report about once a
-- second at most. Returns the same as ack.
create or replace function progress(receipt text, percent integer, message text default '') returns text
language plpgsql volatile set search_path from current {pinned} as $$
begin
  if percent is null or percent not between 0 and 100 then
    raise exception 'the progress is % %%, it must be from 0 to 100', coalesce(percent::text, 'null')
      using errcode = '22023', hint = 'Pass how much of the work is done, as 40 for 40 %.';
  end if;
  return settle_receipt(receipt, 'progress', jsonb_build_object('percent', percent,
    'message', left(coalesce(message, ''), {progress_limit}))::text, null, null);
end $$;

-- Keeps a checkpoint of the job of a receipt: JSON of up to 64 KiB, which the next receive of the
-- job returns. Each call writes. Returns the same as ack.
create or replace function checkpoint(receipt text, checkpoint jsonb) returns text
language plpgsql volatile set search_path from current {pinned} as $$
begin
  if checkpoint is null then
    raise exception 'the checkpoint is null' using errcode = '22023',
      hint = 'Pass JSON; the JSON null is ''null''::jsonb.';
  elsif octet_length(checkpoint::text) > {checkpoint_limit} then
    raise exception 'the checkpoint has % bytes, at most % are allowed',
      octet_length(checkpoint::text), {checkpoint_limit}
      using errcode = '22023', hint = 'Store the work elsewhere, and keep its place here.';
  end if;
  return settle_receipt(receipt, 'checkpoint', jsonb_build_object('checkpoint', checkpoint)::text, null,
    null);
end $$;

-- Writes what receipts report, as far as they are held. Returns the outcome per receipt. The rows
-- of the claims are locked until the commit, so no other receive can have taken them over.
create or replace function report_receipts(of_jobs bigint[], tokens uuid[], reports text[],
  until timestamptz) returns text[]
language plpgsql volatile as $$
declare
  held record;
begin
  held := receive_hold(of_jobs, tokens, false, until);
  perform put_progress(h.job, (h.report->>'percent')::integer, h.report->>'message', h.report->'checkpoint')
  from unnest(of_jobs, held.states, reports::jsonb[]) h(job, state, report) where h.state = 'held';
  return array_replace(held.states, 'held', 'done');
end $$;
