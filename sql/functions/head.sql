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
language sql stable
as $$
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
