-- Returns the head of a group: its lowest unfinished job. This alone says which job is next: claims
-- of workers and of receivers, adoptions and parks call it. The group's row is locked, and the
-- snapshot is younger than that lock (P1, P2, P3).
--
-- The head is among two candidates, never the backlog (P7): one unfinished job from `from_id`
-- (head_id) on, and one from the lowest flag on. Late and retried ids come in by their flag. The
-- flagged job itself may have been cancelled since; jobs of its statement, below head_id and
-- without a flag, are behind it. `ending` is a job that ends in this transaction.
create or replace function {schema}.head(of_queue text, of_group text, from_id bigint, ending bigint)
returns table (id bigint)
language sql stable as $$
  select distinct on (c.queue, c.group_id) c.id from (
    (select j.queue, j.group_id, j.id from {schema}.job j
      where j.queue = of_queue and (j.group_id, j.id) >= (of_group, from_id) and j.group_id <= of_group
        and j.group_id is not null and j.status in ('queued', 'started') and (j.id = ending) is not true
      order by j.group_id, j.id limit 1)
    union all
    (select c.queue, c.group_id, c.id from (
        select f.queue, f.group_id, f.id from {schema}.job f
        where f.queue = of_queue and f.group_id between of_group and of_group and f.flagged
        order by f.group_id, f.id limit 1) f
      join lateral (
        select j.queue, j.group_id, j.id from {schema}.job j
        where j.queue = f.queue and (j.group_id, j.id) >= (f.group_id, f.id) and j.group_id <= f.group_id
          and j.group_id is not null and j.status in ('queued', 'started') and (j.id = ending) is not true
        order by j.group_id, j.id limit 1) c on true)) c
  order by c.queue, c.group_id, c.id
$$;

-- The claim's step *read*. Reads the heads of locked turns, and locks those that may start. The
-- head of a claim that lapsed is its first job that has not ended: it was due when it was claimed,
-- so it goes on, whether the group is paused or not. A turn without a row is gone if another
-- transaction has inserted one before this one locked the group.
--
-- A look-up by id says `finished_at is null` for unfinished: the words of a partial index could
-- have that index read as a whole. It asks for the queue again: a move may have committed between
-- the snapshot and the lock. The head of a paused group is not locked, as a resume must be able
-- to flag it. A claim that lapsed is not taken over while another transaction has any of its jobs.
--
-- Locks: job rows NO KEY UPDATE, skips.
create or replace function {schema}.read_heads(terms {schema}.claim_terms, turns {schema}.turn[])
returns {schema}.turn[]
language plpgsql volatile as $$
declare
  heads {schema}.turn[]; busy tid[];
begin
  select array_agg(row(turn.name, turn.line, turn.head_id, turn.ready_at, turn.flags, turn.lapsed_job,
    turn.lost_by, turn.suspected, j.id, j.disposition, j.fresh and turn.lapsed_job is null, j.bytes,
    turn.spaced_until, j.limit_key, turn.held_key, null)::{schema}.turn),
    array_agg(turn.line) filter (where turn.suspected and j.id is not null)
    into heads, busy
  from unnest(turns) turn
  left join lateral (
    select h.id, 0 as lost from {schema}.head(terms.queue, turn.name, turn.head_id, null) h
    where turn.lapsed_job is null
    union all
    -- The attempt that is lost is counted by the start.
    select (select min(c.id) from {schema}.unfinished(g.job_id, g.batch) c),
      (g.started_at is not null)::integer
    from {schema}.queue_group g where turn.suspected and g.ctid = turn.line) head on true
  left join lateral (
    select j.id, {head_disposition} as disposition, j.attempts = j.attempts_forgiven as fresh,
      {job_bytes} as bytes, j.limit_key
    from {schema}.job j
    where j.id = any (array[head.id]) and j.finished_at is null and j.queue = any (array[terms.queue])
      and coalesce(turn.spaced_until <= clock_timestamp(), true)
      and (turn.lapsed_job is not null
        or least(j.run_at, j.expires_at) <= clock_timestamp()
          and (select s.group_id from {schema}.group_setting s
            where s.queue = terms.queue and s.group_id = turn.name and {paused_s} limit 1) is null)
    limit 1 for no key update skip locked) j on true
  where turn.line is not null or (
    select g.group_id from {schema}.queue_group g
    where g.queue = terms.queue and g.group_id between turn.name and turn.name
    order by g.group_id desc limit 1) is null;
  if busy is null then
    return heads;
  end if;
  -- All jobs of a claim that is taken over lose their attempts.
  with lapsed as materialized (
    select g.ctid as line, c.id
    from {schema}.queue_group g cross join lateral {schema}.unfinished(g.job_id, g.batch) c
    where g.ctid = any (busy)),
  locked as materialized (
    select j.id from lapsed join {schema}.job j on j.id = any (array[lapsed.id])
    where j.finished_at is null for no key update of j skip locked)
  select array_agg(lapsed.line) into busy
  from lapsed where lapsed.id not in (select locked.id from locked);
  for i in 1..case when busy is not null then cardinality(heads) else 0 end loop
    if heads[i].line = any (busy) then
      heads[i].job := null;
      heads[i].disposition := null;
      heads[i].bytes := null;
    end if;
  end loop;
  return heads;
end $$;
