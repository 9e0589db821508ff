-- Returns the record of an aborted attempt, if a history ends with it.
create or replace function {schema}.aborted_record(history jsonb, attempt integer) returns jsonb
language sql immutable as $$
  select history -> -1
  where history -> -1 ->> 'kind' = 'aborted' and (history -> -1 ->> 'attempt')::integer = attempt
$$;

-- Returns a history with one more attempt, cut to its last entries. An aborted attempt has the
-- record of its abort: the claim that finds it lost, or cancels it, adds no other one.
create or replace function history_with(so_far jsonb, attempt integer, started_at timestamptz, kind text,
  message text) returns jsonb
language sql volatile as $$
  select case
    when kind in ('worker_lost', 'cancelled', 'released')
      and {schema}.aborted_record(so_far, attempt) is not null then so_far
    else case when jsonb_array_length(so_far) >= {history_limit} then so_far - 0 else so_far end
    || jsonb_build_array(jsonb_build_object('attempt', attempt, 'started_at', started_at,
      'finished_at', clock_timestamp(), 'kind', kind, 'message', message)) end
$$;
