-- A job that is stored until it is enqueued: that of a schedule, and the follow-up of a batch. It
-- is an object with `data`, and any of `name`, `reference`, `priority`, `max_attempts`, `headers`,
-- `attributes`, `limit_key`, `delay` and `time_to_live` in seconds, `timeout_ms`, `lease_ms`; or
-- with `payload` in hexadecimal digits and `content_type`, instead of `data`.

-- Refuses one that could not be enqueued: now, and not when it is due.
create or replace function check_stored_job(queue text, group_id text, job jsonb) returns void
language plpgsql volatile set search_path from current as $$
declare
  unknown text;
begin
  perform check_queue(queue);
  perform check_name('group', group_id, {group_limit});
  if job is null or jsonb_typeof(job) <> 'object' or (job ? 'data') = (job ? 'payload') then
    raise exception 'the job is no object with data or a payload'
      using errcode = '22023', hint = 'Pass it as in {"data": {"cents": 1500}}.';
  end if;
  select k.key into unknown from jsonb_object_keys(job) k(key)
  where k.key not in ('data', 'payload', 'content_type', 'name', 'reference', 'priority', 'max_attempts',
    'headers', 'attributes', 'limit_key', 'delay', 'time_to_live', 'timeout_ms', 'lease_ms')
  order by k.key limit 1;
  if unknown is not null then
    raise exception 'the job has %, which a stored job does not take', to_jsonb(unknown)
      using errcode = '22023', hint = 'Leave it out, or correct its name.';
  end if;
  begin
    -- A trial, with a header as long as the longest that is added. It waits for no other id.
    perform enqueue_stored(queue, group_id, job,
      jsonb_build_object({scheduled_for}, repeat('9', 30)), gen_random_uuid()::text);
    raise sqlstate 'SQ000';
  exception when sqlstate 'SQ000' then
    -- It is rolled back.
  end;
end $$;

-- Enqueues it, with a header beside its own, and returns its id.
create or replace function enqueue_stored(of_queue text, of_group text, its jsonb, header jsonb,
  dedup_id text) returns bigint
language sql volatile set search_path from current as $$
  select e.id from enqueue_json(its || jsonb_build_object('queue', of_queue, 'group_id', of_group,
    'headers', coalesce(nullif(its->'headers', 'null'), '{}') || header,
    'dedup_id', enqueue_stored.dedup_id)) e
$$;
