-- The room that a queue's limits leave: of jobs in flight, and of starts in a time, over the fleet.

-- Returns how many starts a rate of `rate` in `per_ms` leaves, up to `burst`; if there is none,
-- when there is one. `next_at` is when the next start is due, if all keep the rate's interval
-- (GCRA: the generic cell rate algorithm). Null without a rate.
--
-- A start that comes late, by less than an interval, leaves those behind it where they are. So
-- workers that wake up late lose nothing, and no span of time has more than its starts, `burst` and
-- one more.
create or replace function {schema}.rate_room(rate integer, per_ms bigint, burst integer,
  next_at timestamptz, at timestamptz, out starts bigint, out free_at timestamptz)
language sql stable as $$
  select case when rate is not null then
      greatest(least(floor(extract(epoch from at - next_at)::float8 * 1000 * rate / per_ms) + burst, burst),
        0) end,
    next_at - make_interval(secs => (burst - 1) * per_ms / 1000.0::float8 / rate)
$$;

-- Returns what the limits of a queue leave for a claim: `in_flight`, how many jobs may begin under
-- its limit of jobs in flight, and `starts`, how many its rate allows; each null for any number.
-- `wait`: the seconds until there is a start, if there is none. `busy` if another claim or a change
-- of settings has had the queue's row for a tenth of a second.
--
-- A claim that may add to them has the queue's row locked, and counts in a new statement. A settle
-- meanwhile only makes it less. So the limits hold exactly, and after crashes too: a claim counts
-- until its job is settled. A take-over does not add to the jobs in flight, and is allowed beyond
-- that limit: or a fleet that crashed would never go on. It is a start like others.
--
-- `per_key` is its limit of groups that run at once for each limit key.
--
-- Locks: the queue's row NO KEY UPDATE, skips; not if it has no limit but for groups and keys.
create or replace function {schema}.queue_room(of_queue text, out in_flight bigint, out starts bigint,
  out wait float8, out spaced boolean, out paused boolean, out busy boolean, out per_key integer)
language plpgsql volatile as $$
declare
  flight_limit integer; at timestamptz;
begin
  select q.group_spacing_ms is not null, q.limit_per_key into spaced, per_key from {schema}.queue q
  where q.name = of_queue and q.in_flight_limit is null and q.rate is null;
  if found then
    return;
  end if;
  for tries in 1..20 loop
    at := clock_timestamp();
    select q.in_flight_limit, r.starts, extract(epoch from r.free_at - at), {paused_q},
        q.group_spacing_ms is not null, q.limit_per_key
      into flight_limit, starts, wait, paused, spaced, per_key
    from {schema}.queue q,
      {schema}.rate_room(q.rate, q.rate_per_ms, q.rate_burst, q.rate_next_at, at) r
    where q.name = of_queue for no key update of q skip locked;
    busy := not found;
    exit when found;
    perform pg_sleep(0.005);
  end loop;
  if flight_limit is not null and not paused then
    in_flight := greatest(flight_limit
      - (select coalesce(sum(c.jobs), 0) from (
          select {claimed_count_g} as jobs from {schema}.queue_group g
          where g.queue = of_queue and g.job_id is not null order by g.claimed_by) c)
      - (select count(*) from {schema}.job j
        where j.queue = of_queue and j.group_id is null and j.status = 'started'), 0);
  end if;
end $$;

-- Counts `n` starts of a queue with a rate, whose row this transaction has locked. Returns the
-- seconds until there is one more; null if there is one now.
create or replace function {schema}.count_starts(of_queue text, n bigint) returns float8
language plpgsql volatile as $$
declare
  wait float8; at constant timestamptz := clock_timestamp();
begin
  if n = 0 then
    return null;
  end if;
  update {schema}.queue q set
    -- Behind by an interval or more it was idle: what it did not start then is gone.
    rate_next_at = case when q.rate_next_at > at - make_interval(secs => e.seconds)
      then q.rate_next_at else at end + make_interval(secs => n * e.seconds)
  from (select q.name, q.rate_per_ms / 1000.0::float8 / q.rate as seconds
    from {schema}.queue q where q.name = of_queue) e
  where q.name = e.name
  returning (select case when r.starts = 0 then extract(epoch from r.free_at - at) end
    from {schema}.rate_room(q.rate, q.rate_per_ms, q.rate_burst, q.rate_next_at, at) r) into wait;
  return wait;
end $$;
