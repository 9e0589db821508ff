-- Enqueues a job. One insert, which locks and waits for nothing, at any isolation level (P5); with
-- a deduplication id or a unique key it waits for an open transaction that has the same one. A
-- unique key needs READ COMMITTED. Usable from triggers. Without `run_at` and `delay` the queue's
-- delay counts. A duplicate inserts nothing and returns the first job's id. With `batch` it joins
-- one that is not sealed; a duplicate joins none.
create or replace function enqueue(
  queue text, data jsonb, group_id text default null, delay interval default null,
  run_at timestamptz default null, name text default null, reference text default null,
  priority integer default 0, expires_at timestamptz default null, max_attempts integer default null,
  dedup_id text default null, payload bytea default null, content_type text default null,
  headers jsonb default null, attributes jsonb default null, limit_key text default null,
  batch bigint default null, unique_key text default null, unique_mode text default 'until_start',
  unique_scope text default 'queue', timeout interval default null, lease interval default null
) returns table (id bigint, duplicate boolean)
language plpgsql volatile set search_path from current
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
  of_queue constant text := queue;
  of_group constant text := group_id;
  its_data constant jsonb := data;
  its_payload constant bytea := payload;
  expiry constant timestamptz := expires_at;
  its_priority constant integer := coalesce(priority, 0);
  due_at timestamptz := run_at; once text := dedup_id; first_job bigint; setting queue; wakes boolean;
begin
  perform check_queue(of_queue);
  perform check_name('group', of_group, {group_limit});
  perform check_name('limit key', enqueue.limit_key, {group_limit});
  perform check_name('name', enqueue.name, {job_name_limit});
  perform check_name('reference', enqueue.reference, {reference_limit});
  perform check_name('deduplication id', once, {dedup_limit});
  perform check_name('unique key', enqueue.unique_key, {dedup_limit});
  perform check_name('content type', enqueue.content_type, {content_type_limit});
  if enqueue.unique_key is not null then
    perform check_unique(unique_mode, unique_scope, of_group);
  end if;
  if (its_data is null) = (its_payload is null)
    or enqueue.content_type is not null and its_payload is null
  then
    raise exception 'a job has data or a payload, and a content type only with a payload'
      using errcode = '22023', hint = 'Pass data as JSON, or null and the payload as bytes.';
  elsif octet_length(its_payload) > {data_limit} then
    raise exception 'the payload of the job has % bytes, at most % are allowed',
      octet_length(its_payload), {data_limit}
      using errcode = '22023', hint = 'Store it elsewhere and enqueue a reference.';
  elsif octet_length(its_data::text) > {data_limit} then
    raise exception 'the data of the job has % bytes, at most % are allowed',
      octet_length(its_data::text), {data_limit}
      using errcode = '22023', hint = 'Store it elsewhere and enqueue a reference.';
  elsif its_priority not between 0 and 9 then
    raise exception 'the priority is %, it must be from 0 to 9', its_priority
      using errcode = '22023', hint = 'Higher is sooner.';
  elsif enqueue.max_attempts < 1 then
    raise exception 'max_attempts is %, it must be 1 or more', enqueue.max_attempts
      using errcode = '22023', hint = 'Leave it out for the default of the queue.';
  elsif delay < interval '0' or delay > {max_delay_ms} * interval '1 ms' then
    raise exception 'the delay is %, it must be from 0 to 100 years', delay
      using errcode = '22023', hint = 'Pass null for the delay of the queue.';
  elsif delay is not null and due_at is not null then
    raise exception 'both delay and run_at are given' using errcode = '22023', hint = 'Pass one of them.';
  elsif not isfinite(due_at) or extract(year from due_at) not between 1 and 9999 then
    raise exception 'run_at is %, it must be in the years 1 to 9999', due_at
      using errcode = '22023', hint = 'Pass null for at once.';
  elsif not isfinite(expiry) or extract(year from expiry) not between 1 and 9999 then
    raise exception 'expires_at is %, it must be in the years 1 to 9999', expiry
      using errcode = '22023', hint = 'Pass null for never.';
  elsif timeout < interval '1 ms' or timeout > {max_delay_ms} * interval '1 ms' then
    raise exception 'the timeout is %, it must be from 1 ms to 100 years', timeout
      using errcode = '22023', hint = 'Pass null for the timeout of the queue.';
  elsif lease < interval '1 s' or lease > interval '1 day' then
    raise exception 'the lease is %, it must be from 1 s to 1 day', lease
      using errcode = '22023', hint = 'Pass null for the lease of the queue.';
  elsif enqueue.limit_key is not null and of_group is null then
    raise exception 'the job has a limit key and no group' using errcode = '22023',
      hint = 'Pass a group_id as well: the group is its order, the key its concurrency.';
  elsif enqueue.unique_key is not null and once is not null then
    raise exception 'the job has a unique key and a deduplication id' using errcode = '22023',
      hint = 'Pass one of them: the key counts while its job waits, the id for a window of time.';
  elsif jsonb_typeof(enqueue.attributes) <> 'object' then
    raise exception 'the attributes are no object' using errcode = '22023',
      hint = 'Pass them as in {"color": {"DataType": "String", "StringValue": "red"}}.';
  elsif octet_length(enqueue.attributes::text) > {attributes_limit} then
    raise exception 'the attributes have % bytes, at most % are allowed',
      octet_length(enqueue.attributes::text), {attributes_limit}
      using errcode = '22023', hint = 'Put what the handler works with into the data.';
  end if;

  if enqueue.headers is not null then
    perform check_headers(enqueue.headers);
  end if;

  select s.* into setting from queue s where s.name = of_queue;
  due_at := coalesce(due_at,
    clock_timestamp() + coalesce(delay, make_interval(secs => setting.delay_ms / 1000.0)), now());
  id := nextval('job_id_seq');
  duplicate := false;
  if enqueue.unique_key is not null then
    first_job := claim_unique_key(of_queue, of_group, enqueue.unique_key, unique_mode, unique_scope,
      enqueue.id, true, due_at, its_data, its_payload, enqueue.content_type, enqueue.name, enqueue.reference,
      expiry, enqueue.max_attempts, to_ms(timeout), to_ms(lease), nullif(enqueue.headers, '{}'),
      nullif(enqueue.attributes, '{}'));
  else
    if once is null and setting.dedup_by_content then
      once := content_id(its_data, its_payload);
    end if;
    if once is not null then
      first_job := claim_dedup_id(of_queue, of_group, once, enqueue.id);
    end if;
  end if;
  if first_job <> enqueue.id then
    id := first_job;
    duplicate := true;
    return next;
    return;
  end if;

  -- Before the insert: after it, a job without a group would be taken for others that wait.
  wakes := due_at <= clock_timestamp() and seems_idle(of_queue, array[of_group], of_group is null);
  insert into job (id, queue, group_id, flagged, data, payload, content_type, name, reference, priority,
    expires_at, max_attempts, timeout_ms, lease_ms, dedup_id, unique_key, headers, attributes, limit_key,
    batch_id, run_at, turn_at)
  values (enqueue.id, of_queue, of_group, of_group is not null, its_data, its_payload, enqueue.content_type,
    enqueue.name, enqueue.reference, its_priority, expiry, enqueue.max_attempts, to_ms(timeout),
    to_ms(lease), once, enqueue.unique_key,
    nullif(enqueue.headers, '{}'), nullif(enqueue.attributes, '{}'),
    enqueue.limit_key, case when enqueue.batch is not null then join_batch(enqueue.batch) end, due_at,
    case when due_at <= clock_timestamp() then due_at - its_priority * {priority_aging}
      else least(due_at, expiry) end);
  if wakes then
    perform wake(of_queue);
  end if;
  return next;
end $$;
