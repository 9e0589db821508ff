-- Returns a history with one more attempt, cut to its last entries.
create or replace function history_with(so_far jsonb, attempt integer, started_at timestamptz, kind text,
  message text) returns jsonb
language sql volatile as $$
  select case when jsonb_array_length(so_far) >= {history_limit} then so_far - 0 else so_far end
    || jsonb_build_array(jsonb_build_object('attempt', attempt, 'started_at', started_at,
      'finished_at', clock_timestamp(), 'kind', kind, 'message', message))
$$;
