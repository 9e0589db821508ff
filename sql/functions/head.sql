-- Returns the lowest flagged job of a group, or an id above all others.
create or replace function first_flag(of_queue text, of_group text) returns bigint
language sql stable
as $$
  select coalesce((select f.id from job f
    where f.queue = of_queue and f.group_id between of_group and of_group and f.flagged
    order by f.group_id, f.id limit 1), 9223372036854775807)
$$;

-- Returns the lowest unfinished job of a free, locked group: from head_id on, or from its lowest
-- flag on.
create or replace function receive_head(of_queue text, of_group text, from_id bigint) returns bigint
language sql volatile
as $$
  select least(
    (select j.id from job j
      where j.queue = of_queue and (j.group_id, j.id) >= (of_group, from_id) and j.group_id <= of_group
        and j.status in ('queued', 'started')
      order by j.group_id, j.id limit 1),
    (select j.id from job j
      where j.queue = of_queue and (j.group_id, j.id) >= (of_group, first_flag(of_queue, of_group)) and j.group_id <= of_group
        and j.status in ('queued', 'started')
      order by j.group_id, j.id limit 1))
$$;
