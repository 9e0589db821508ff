-- Claims up to `most` jobs without a group; at most `fresh` of them were not claimed before.
create or replace function receive_ungrouped(of_queue text, job_limit integer, fresh bigint, until timestamptz, attempt_limit integer)
returns bigint[]
language plpgsql volatile
as $$
declare
  at constant timestamptz := clock_timestamp();
  lapsed bigint[];
  one_id bigint;
  one job;
  refusal text;
  taken bigint[] := '{}';
begin
  update job j set suspect = j.claim, lease_until = suspect_until(j.suspect, j.claim)
  from (select d.id from job d where d.queue = of_queue and d.group_id is null and d.status = 'started'
      and d.lease_until <= at and not is_suspected(d.suspect, d.claim, d.lease_until)
    order by d.lease_until for no key update skip locked) due
  where j.id = any (array[due.id]);
  -- Jobs with a priority get their head start when they become due.
  update job j set turn_at = j.run_at - j.priority * {priority_aging}
  from (select d.id from job d where d.queue = of_queue and d.group_id is null and d.status = 'queued'
      and d.priority > 0 and d.turn_at >= d.run_at and d.run_at <= at
    order by d.run_at limit 256 for no key update skip locked) due
  where j.id = any (array[due.id]);
  lapsed := array(select d.id from job d where d.queue = of_queue and d.group_id is null and d.status = 'started'
      and d.lease_until <= at and is_suspected(d.suspect, d.claim, d.lease_until)
    order by d.lease_until, d.id limit job_limit for no key update skip locked);
  foreach one_id in array lapsed || array(
    select d.id from job d where d.queue = of_queue and d.group_id is null and d.status = 'queued' and d.turn_at <= at
    order by d.turn_at, d.id limit greatest(least(job_limit - cardinality(lapsed), fresh), 0) for no key update skip locked)
  loop
    select j.* into one from job j where j.id = one_id;
    refusal := receive_refusal(one, attempt_limit);
    if refusal is not null then
      perform receive_refuse(one, refusal);
    else
      perform receive_start(one.id);
      update job set claim = gen_random_uuid(), lease_until = until, suspect = null, claimed_by = null where id = one.id;
      taken := taken || one.id;
    end if;
  end loop;
  return taken;
end $$;
