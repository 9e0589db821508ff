-- The settings of queues and groups, for the whole fleet.

-- Returns the settings of a queue, as `configure_queue` takes them: times are intervals, and null
-- is the default.
create or replace function {schema}.queue_settings(queue text) returns jsonb
language sql stable as $$
  select jsonb_build_object(
    'delay', q.delay_ms || ' ms',
    'dedup_window', q.dedup_window_ms || ' ms',
    'dedup_scope', coalesce(q.dedup_scope, 'queue'),
    'dedup_by_content', coalesce(q.dedup_by_content, false),
    'in_flight_limit', q.in_flight_limit,
    'limit_per_key', nullif(q.limit_per_key, 0),
    'rate', q.rate,
    'rate_per', q.rate_per_ms || ' ms',
    'rate_burst', q.rate_burst,
    'group_spacing', q.group_spacing_ms || ' ms',
    'max_attempts', q.max_attempts,
    'backoff', q.backoff_ms || ' ms',
    'backoff_cap', q.backoff_cap_ms || ' ms',
    'out_of_attempts', q.out_of_attempts,
    'halt_for', q.halt_for_ms || ' ms',
    'halt_then', q.halt_then,
    'dead_letter_queue', q.dead_letter_queue,
    'strict_visibility', coalesce(q.strict_visibility, false))
  from (select) always left join {schema}.queue q on q.name = queue_settings.queue
$$;

-- Returns a time of the settings in milliseconds, 100 years at most.
create or replace function setting_ms(setting text, given text, at_least interval) returns bigint
language plpgsql stable as $$
declare
  span interval;
begin
  begin
    span := given::interval;
  exception when data_exception then
    raise exception '% is %, it must be an interval', setting, to_json(given) using errcode = '22023',
      hint = 'Name an interval such as 15 s.';
  end;
  if span < at_least or extract(epoch from span) * 1000 > {max_delay_ms} then
    raise exception '% is %, it must be from % to 100 years', setting, given, at_least
      using errcode = '22023', hint = 'Name an interval such as 15 s.';
  end if;
  return extract(epoch from span) * 1000;
end $$;

-- Returns a number of the settings.
create or replace function setting_number(setting text, given text) returns integer
language plpgsql immutable as $$
begin
  if given is null or (case when given ~ '^[0-9]{1,10}$' then given::bigint between 1 and 2147483647 end) then
    return given;
  end if;
  raise exception '% is %, it must be a number from 1 to 2147483647', setting, to_json(given)
    using errcode = '22023', hint = 'Name a whole number, or null to reset it.';
end $$;

-- Returns a word of the settings.
create or replace function setting_word(setting text, given text, words text[]) returns text
language plpgsql immutable as $$
begin
  if given <> all (words) then
    raise exception '% is %, it must be one of %', setting, to_json(given), array_to_string(words, ', ')
      using errcode = '22023', hint = 'Name one of them, or null to reset it.';
  end if;
  return given;
end $$;

-- Refuses a policy that cannot be: of a queue, or of a group.
create or replace function check_policy(out_of_attempts text, halt_for text, halt_then text) returns void
language plpgsql immutable set search_path from current as $$
begin
  perform setting_word('out_of_attempts', out_of_attempts, '{continue,halt,park}');
  perform setting_word('halt_then', halt_then, '{park,continue}');
  if (halt_for is null) <> (halt_then is null) then
    raise exception 'halt_for and halt_then come together' using errcode = '22023',
      hint = 'Name both, or neither for a halt without an end.';
  end if;
end $$;

-- Changes the settings of a queue that `settings` names; null resets one. Times are intervals:
-- `delay`, `dedup_window`, `group_spacing`, `backoff`, `backoff_cap`, `halt_for`. `rate` jobs may
-- start in `rate_per` (1 s), and `rate_burst` at once (those of 0.1 s, and at least 1).
-- `dedup_scope` is queue or group. `out_of_attempts` is continue, halt or park, and `halt_for` with
-- `halt_then` (park, continue) is the deadline of that halt. With a `dead_letter_queue` a job that
-- is out of attempts goes there, and its group goes on. `strict_visibility` is true or false.
--
-- Locks: the queue's row; waits for a claim's milliseconds, and for another change of its settings.
create or replace function configure_queue(queue text, settings jsonb, reason text default null,
  actor text default session_user) returns void
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  given constant jsonb := settings; unknown text; wanted jsonb; rate_is integer; per_ms bigint;
  burst integer; keyed boolean;
begin
  perform check_queue(configure_queue.queue);
  if jsonb_typeof(given) <> 'object' then
    raise exception 'the settings are no object' using errcode = '22023',
      hint = 'Pass them as in {"max_attempts": 5}.';
  end if;
  select k.key into unknown from jsonb_object_keys(given) k(key)
  where not queue_settings(configure_queue.queue) ? k.key limit 1;
  if unknown is not null or not given ? 'out_of_attempts' and (given ? 'halt_for' or given ? 'halt_then')
    or not given ? 'rate' and (given ? 'rate_per' or given ? 'rate_burst')
  then
    raise exception '%', case when unknown is not null then 'a queue has no setting ' || unknown
      when given ? 'halt_for' or given ? 'halt_then' then 'halt_for and halt_then come with out_of_attempts'
      else 'rate_per and rate_burst come with rate' end
      using errcode = '22023', hint = 'See docs/sql-functions.md for the settings.';
  end if;
  perform check_policy(given->>'out_of_attempts', given->>'halt_for', given->>'halt_then');
  if jsonb_typeof(given->'dead_letter_queue') not in ('string', 'null') then
    raise exception 'dead_letter_queue is %, it must be a name', given->'dead_letter_queue'
      using errcode = '22023', hint = 'Name a queue, or null: its dead letters stay in it.';
  end if;
  perform check_name('dead-letter queue', given->>'dead_letter_queue', {queue_limit});
  if given->>'dead_letter_queue' = configure_queue.queue then
    raise exception 'queue % cannot be its own dead-letter queue', to_json(configure_queue.queue)
      using errcode = '22023', hint = 'Name another queue, or null: its dead letters stay in it.';
  end if;
  -- The row first: what a change beside this one has set is seen then, also of a queue that had
  -- none.
  loop
    insert into queue (name) select configure_queue.queue on conflict do nothing;
    perform from queue q where q.name = configure_queue.queue for no key update;
    exit when found;
  end loop;
  -- All as they will be. Another policy has a deadline of its own, or none.
  wanted := queue_settings(configure_queue.queue)
    || case when given ? 'out_of_attempts' then '{"halt_for": null, "halt_then": null}' else '{}' end::jsonb
    || case when given ? 'rate' then '{"rate_per": null, "rate_burst": null}' else '{}' end::jsonb
    || given;
  if wanted->>'dead_letter_queue' is not null and wanted->>'out_of_attempts' <> 'continue' then
    raise exception 'queue % cannot both have a dead-letter queue and % behind dead letters',
      to_json(configure_queue.queue), wanted->>'out_of_attempts'
      using errcode = '22023', hint = 'Reset one of out_of_attempts and dead_letter_queue with null.';
  end if;
  rate_is := setting_number('rate', wanted->>'rate');
  if rate_is is not null then
    per_ms := setting_ms('rate_per', coalesce(wanted->>'rate_per', '1 s'), '1 ms');
    burst := coalesce(setting_number('rate_burst', wanted->>'rate_burst'),
      least(greatest(ceil(rate_is * 100.0 / per_ms), 1), 2147483647)::integer);
    if rate_is * 1000.0 > per_ms * {max_rate} then
      raise exception 'rate is % in % ms, it must be at most % starts a second', rate_is, per_ms, {max_rate}
        using errcode = '22023', hint = 'Name fewer starts, or null: any number.';
    end if;
  elsif coalesce(wanted->>'rate_per', wanted->>'rate_burst') is not null then
    raise exception 'rate_per and rate_burst come with rate' using errcode = '22023',
      hint = 'Name a rate as well, or neither.';
  end if;
  keyed := (select q.limit_per_key is not null from queue q where q.name = configure_queue.queue);
  update queue q set
    rate = rate_is,
    rate_per_ms = per_ms,
    rate_burst = burst,
    -- Another rate begins anew.
    rate_next_at = case when (q.rate, q.rate_per_ms, q.rate_burst) is not distinct from
      (rate_is, per_ms, burst) then q.rate_next_at end,
    group_spacing_ms = setting_ms('group_spacing', wanted->>'group_spacing', '1 ms'),
    delay_ms = setting_ms('delay', wanted->>'delay', '0'),
    dedup_window_ms = setting_ms('dedup_window', wanted->>'dedup_window', '1 ms'),
    dedup_scope = coalesce(setting_word('dedup_scope', wanted->>'dedup_scope', '{queue,group}'), 'queue'),
    dedup_by_content = coalesce(
      setting_word('dedup_by_content', wanted->>'dedup_by_content', '{true,false}')::boolean, false),
    in_flight_limit = setting_number('in_flight_limit', wanted->>'in_flight_limit'),
    limit_per_key = coalesce(setting_number('limit_per_key', wanted->>'limit_per_key'),
      case when keyed then 0 end),
    max_attempts = setting_number('max_attempts', wanted->>'max_attempts'),
    backoff_ms = setting_ms('backoff', wanted->>'backoff', '0'),
    backoff_cap_ms = setting_ms('backoff_cap', wanted->>'backoff_cap', '0'),
    out_of_attempts = wanted->>'out_of_attempts',
    halt_for_ms = setting_ms('halt_for', wanted->>'halt_for', '1 ms'),
    halt_then = wanted->>'halt_then',
    dead_letter_queue = wanted->>'dead_letter_queue',
    strict_visibility = coalesce(
      setting_word('strict_visibility', wanted->>'strict_visibility', '{true,false}')::boolean, false)
  where q.name = configure_queue.queue;
  if keyed and given ? 'limit_per_key' then
    -- More may run than before.
    perform free_gated(configure_queue.queue);
  end if;
  perform record_operation(actor, 'configure_queue', configure_queue.queue, null, null, reason, 1);
end $$;

-- Limits how many groups with one limit key run at once, instead of the queue's `limit_per_key`.
-- With 0 no group with the key starts. Null brings the key back to the limit of its queue. Running
-- jobs continue, and a job whose worker died is taken over.
--
-- It appends a slot of the key, so the next claim checks which groups may start. A claim that has
-- read the old limit keeps the key locked until its commit, and the slot is consumed after that.
--
-- Locks: the queue's row, if the queue has had no limit per key, and waits for a claim's
-- milliseconds; then the key's limit, and waits for another change of it.
create or replace function set_key_limit(queue text, limit_key text, key_limit integer,
  reason text default null, actor text default session_user) returns void
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
declare
  done boolean := true;
begin
  perform check_queue(queue);
  if set_key_limit.limit_key is null then
    raise exception 'the limit key is null' using errcode = '22023', hint = 'Name the key.';
  end if;
  perform check_name('limit key', limit_key, {group_limit});
  if set_key_limit.key_limit < 0 then
    raise exception 'the limit is %, it must be from 0 to 2147483647', set_key_limit.key_limit
      using errcode = '22023', hint = 'Name 0 to pause the key, or null to limit it as its queue says.';
  end if;
  if set_key_limit.key_limit is null then
    delete from key_limit l where l.queue = set_key_limit.queue and l.limit_key = set_key_limit.limit_key;
    done := found;
  else
    if not exists (
      select from queue q where q.name = set_key_limit.queue and q.limit_per_key is not null)
    then
      -- Claims of the queue look for limits of keys from now on.
      insert into queue as old (name, limit_per_key) select set_key_limit.queue, 0
      on conflict (name) do update set limit_per_key = coalesce(old.limit_per_key, 0);
    end if;
    insert into key_limit (queue, limit_key, groups)
    select set_key_limit.queue, set_key_limit.limit_key, set_key_limit.key_limit
    on conflict (queue, limit_key) do update set groups = excluded.groups;
  end if;
  if done then
    -- Even if no group is gated, because an open claim may gate one.
    perform free_slots(array[set_key_limit.queue], array[set_key_limit.limit_key], true);
  end if;
  perform record_change(actor, 'set_key_limit', set_key_limit.queue, null, null, reason, done::integer,
    format('(limit key %s: %s)', to_json(set_key_limit.limit_key),
      coalesce(set_key_limit.key_limit::text, 'as the queue says')), null);
end $$;

-- Sets what a group does with a job that is out of attempts, instead of what its queue says:
-- continue, halt or park, and the deadline of a halt. Null unsets it; its row goes unless the group
-- is paused.
--
-- Locks: the group's setting; waits for a claim's milliseconds.
create or replace function set_group_policy(queue text, group_id text, out_of_attempts text,
  halt_for interval default null, halt_then text default null, reason text default null,
  actor text default session_user) returns void
language plpgsql volatile set search_path from current as $$
#variable_conflict use_column
begin
  perform check_queue(queue);
  perform check_name('group', group_id, {group_limit});
  perform check_policy(out_of_attempts, halt_for::text, halt_then);
  if out_of_attempts is not null then
    insert into group_setting (queue, group_id, out_of_attempts, halt_for_ms, halt_then)
    select queue, group_id, out_of_attempts, setting_ms('halt_for', halt_for::text, '1 ms'), halt_then
    on conflict (queue, group_id) do update set out_of_attempts = excluded.out_of_attempts,
      halt_for_ms = excluded.halt_for_ms, halt_then = excluded.halt_then;
  else
    update group_setting s set out_of_attempts = null, halt_for_ms = null, halt_then = null
    where s.queue = set_group_policy.queue and s.group_id = set_group_policy.group_id;
    delete from group_setting s
    where s.queue = set_group_policy.queue and s.group_id = set_group_policy.group_id and not {paused_s};
  end if;
  perform record_operation(actor, 'set_group_policy', queue, group_id, null, reason, 1);
end $$;
