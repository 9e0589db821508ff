-- Jobs as JSON. One parameter takes any number of them, so each driver needs one line, inside its
-- own transaction.

-- Enqueues a job that is an object of the arguments of `enqueue`. Times are in seconds (`delay`,
-- `time_to_live`) or milliseconds (`timeout_ms`, `lease_ms`), a payload is in hexadecimal digits.
create or replace function enqueue_json(its jsonb) returns table (id bigint, duplicate boolean)
language sql volatile set search_path from current as $$
  select e.id, e.duplicate from enqueue(
    queue => its->>'queue',
    data => case when its->>'payload' is null then its->'data' end,
    group_id => its->>'group_id',
    delay => make_interval(secs => (its->>'delay')::float8),
    run_at => (its->>'run_at')::timestamptz,
    name => its->>'name',
    reference => its->>'reference',
    priority => (its->>'priority')::integer,
    expires_at => coalesce((its->>'expires_at')::timestamptz,
      clock_timestamp() + make_interval(secs => (its->>'time_to_live')::float8)),
    max_attempts => (its->>'max_attempts')::integer,
    dedup_id => coalesce(its->>'dedup_id', case when (its->>'dedup_by_content')::boolean
      then content_id(its->'data', decode(its->>'payload', 'hex')) end),
    payload => decode(its->>'payload', 'hex'),
    content_type => its->>'content_type',
    headers => nullif(its->'headers', 'null'),
    attributes => nullif(its->'attributes', 'null'),
    limit_key => its->>'limit_key',
    batch => (its->>'batch')::bigint,
    unique_key => its->>'unique_key',
    unique_mode => coalesce(its->>'unique_mode', 'until_start'),
    unique_scope => coalesce(its->>'unique_scope', 'queue'),
    timeout => make_interval(secs => (its->>'timeout_ms')::float8 / 1000),
    lease => make_interval(secs => (its->>'lease_ms')::float8 / 1000)) e
$$;

-- Enqueues the jobs of an array in its order, or the one of an object: all, or none. Returns a row
-- for each, in that order. The error of one among several says which.
create or replace function enqueue_jobs(jobs jsonb) returns table (id bigint, duplicate boolean)
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  its jsonb; place integer := 0; unknown text; message text; code text; details text; hints text;
  named text;
begin
  if jsonb_typeof(jobs) = 'object' then
    jobs := jsonb_build_array(jobs);
  elsif (jsonb_typeof(jobs) = 'array') is not true then
    raise exception 'the jobs must be an array or an object, and are %',
      coalesce(jsonb_typeof(jobs), 'null')
      using errcode = '22023', hint = 'Pass them as in [{"queue": "postings", "group_id": "a", "data": 1}].';
  end if;
  begin
    for its in select e.value from jsonb_array_elements(jobs) e loop
      place := place + 1;
      if jsonb_typeof(its) <> 'object' then
        raise exception 'a job must be an object, and it is %', jsonb_typeof(its)
          using errcode = '22023',
            hint = 'Pass it as in {"queue": "postings", "group_id": "a", "data": 1}.';
      end if;
      select k.key into unknown from jsonb_object_keys(its) k(key)
      where k.key not in ('queue', 'group_id', 'data', 'payload', 'content_type', 'name', 'reference',
        'priority', 'max_attempts', 'headers', 'attributes', 'limit_key', 'delay', 'run_at', 'time_to_live',
        'expires_at', 'timeout_ms', 'lease_ms', 'dedup_id', 'dedup_by_content', 'batch', 'unique_key',
        'unique_mode', 'unique_scope')
      order by k.key limit 1;
      if unknown is not null then
        raise exception 'it has %, which no job takes', to_jsonb(unknown)
          using errcode = '22023', hint = 'Leave it out, or correct its name.';
      end if;
      if concat(its->>'run_at', its->>'expires_at') <> ''
        and (coalesce(its->>'run_at', 'Z') || ' ' || coalesce(its->>'expires_at', 'Z'))
          !~* '(Z|[+-]\d\d(:?\d\d)?) .*(Z|[+-]\d\d(:?\d\d)?)$'
      then
        raise exception 'run_at or expires_at has no offset from UTC'
          using errcode = '22023', hint = 'Write it as in 2027-01-31T09:00:00Z, or with +01:00 at the end.';
      elsif its->>'time_to_live' is not null and its->>'expires_at' is not null then
        raise exception 'both time_to_live and expires_at are given'
          using errcode = '22023', hint = 'Pass one of them.';
      elsif (its->>'time_to_live')::float8 not between 0.001 and {max_delay_ms} / 1000.0 then
        raise exception 'time_to_live is % s, it must be from 1 ms to 100 years', its->>'time_to_live'
          using errcode = '22023', hint = 'Leave it out for a job that does not expire.';
      end if;
      return query select e.id, e.duplicate from enqueue_json(its) e;
    end loop;
  exception when others then
    get stacked diagnostics message = message_text, code = returned_sqlstate, details = pg_exception_detail,
      hints = pg_exception_hint, named = constraint_name;
    hints := coalesce(nullif(hints, ''), 'Correct the job, and pass all jobs again: none was enqueued.');
    message := format('job %s of the call cannot be enqueued: %s', place, message);
    if details = '' then
      raise exception '%', message using errcode = code, hint = hints, constraint = named;
    end if;
    raise exception '%', message using errcode = code, detail = details, hint = hints, constraint = named;
  end;
end $$;
