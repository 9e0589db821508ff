-- Upkeep: what claims do for groups that cannot start. A worker's claim does it in passing. A
-- receive leaves it to the commit of its transaction, which may stay open.

-- Wakes groups that waited for a limit per key which was removed. Suspects claims that lapsed, ends
-- jobs that must not run, puts groups off that cannot start, ages priorities, and clears flags of
-- groups that have no job left. It starts no job. Looks at what was due by `until_at`. Bounded in
-- rows and time: what is left is for the next call.
--
-- Locks: as a claim, skips.
create or replace function upkeep(of_queue text, until_at timestamptz) returns void
language plpgsql volatile as $$
declare
  terms constant claim_terms := row(of_queue, null, true, null,
    coalesce((select q.max_attempts from queue q where q.name = of_queue), {default_attempts}),
    0, false, null, 1, true);
  turns turn[]; unfit turn[]; job claimed_job; chosen bigint[];
begin
  -- A receive gives back the groups that it has woken for this.
  perform wake_gated(of_queue, 0, 256, '-infinity')
  from queue q where q.name = of_queue and q.limit_per_key = 0;
  perform age_priorities(of_queue, until_at, 256);
  perform suspect_ungrouped(of_queue, until_at, 256);
  turns := read_heads(terms, lock_turns(terms, 'line', 256, '-infinity', until_at)
    || (adopt(terms, row('-infinity', 0, until_at, false, null)::flag_range, 64, until_at,
      clock_timestamp() + interval '10 ms')).turns);
  unfit := array(select t from unnest(turns) t where t.disposition <> 'run');
  if unfit <> '{}' then
    foreach job in array (start_turns(terms, row(cardinality(unfit), 0, {claim_bytes}, null)::claim_limits,
      unfit)).jobs
    loop
      perform end_unfit(job.id, job.token, job.disposition);
    end loop;
  end if;
  turns := (start_turns(terms, row(0, 0, 0, null)::claim_limits,
    array(select t from unnest(turns) t where (t.disposition <> 'run') is not true))).turns;
  if turns <> '{}' then
    perform defer_turns(terms, turns);
  end if;
  chosen := array(
    select l.id from (
      (select j.id, {disposition} as disposition from job j
        where j.queue = of_queue and j.group_id is null and j.status = 'queued' and j.turn_at <= until_at
        order by j.turn_at limit 256)
      union all
      (select j.id, {disposition} from job j
        where j.queue = of_queue and j.group_id is null and j.status = 'started' and j.lease_until <= until_at
        order by j.lease_until limit 256)) l
    where l.disposition <> 'run');
  if chosen <> '{}' then
    foreach job in array (
      claim_ungrouped(terms, row(256, 0, {claim_bytes}, null)::claim_limits, null, until_at, chosen)).jobs
      || (claim_ungrouped(terms, row(256, 0, {claim_bytes}, null)::claim_limits, '-infinity', until_at,
        chosen)).jobs
    loop
      perform end_unfit(job.id, job.token, job.disposition);
    end loop;
  end if;
end $$;

-- Does the upkeep of a queue at the commit of a receive that met rows which it does not return:
-- once for all rows of `upkeep_due`. The commit does not fail by it. It runs with the rights of the
-- schema's owner, as the caller's role may have changed since.
create or replace function upkeep_at_commit() returns trigger
language plpgsql volatile security definer set search_path from current {pinned} as $$
declare
  due bigint := 0;
begin
  begin
    delete from upkeep_due u where u.ctid = any (array(
      select u.ctid from upkeep_due u where u.queue = new.queue for update skip locked));
    get diagnostics due = row_count;
  exception when others then
    -- The transaction only reads by now. The next receive deletes this row as well.
    return null;
  end;
  if due = 0 or not is_read_committed() then
    return null;
  end if;
  begin
    perform upkeep(new.queue, clock_timestamp());
  exception
    when lock_not_available then null;
    when others then
      raise warning 'the upkeep of queue % failed at the commit of a receive: %', new.queue, sqlerrm;
  end;
  return null;
end $$;
