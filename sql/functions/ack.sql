-- Ends the job of a receipt as succeeded, with `result`. In the caller's transaction it commits
-- together with what the caller wrote there: exactly once, if the caller rolls back when told
-- 'stale'. The jobs of a group that were received together may be acked in any order.
--
-- Returns 'done'; 'stale' if the claim is not the receipt's any more (its visibility was over and
-- the job was taken over, it was acked or nacked already, or is gone), and nothing was changed; or
-- 'busy' if another transaction has the rows for a moment: try again.
--
-- With the queue's `strict_visibility` it is stale as soon as the visibility is over; that of a job
-- without a group counts until it is received again.
--
-- The result has at most 1 MiB.
--
-- Call it in a transaction of its own, or at the end of the caller's: what it locks, it locks until
-- the commit.
create or replace function ack(receipt text, result jsonb default null) returns text
language plpgsql volatile set search_path from current {pinned} as $$
declare
  json constant text := result::text;
begin
  if octet_length(json) > {data_limit} then
    raise exception 'the result has % bytes, at most % are allowed', octet_length(json), {data_limit}
      using errcode = '22023', hint = 'Store it elsewhere, and ack with a reference.';
  end if;
  return settle_receipt(receipt, 'ack', json, null, null);
end $$;

-- Acks the jobs of receipts, as far as they are held. Returns what each receipt came to.
create or replace function ack_receipts(of_jobs bigint[], tokens uuid[], results text[], until timestamptz)
returns text[]
language plpgsql volatile as $$
declare
  held record; written bigint;
  jobs bigint[]; claimed uuid[]; done text[];
  claims uuid[]; ended bigint[];
begin
  held := receive_hold(of_jobs, tokens, true, until);
  select array_agg(h.job), array_agg(h.token), array_agg(h.result) into jobs, claimed, done
  from unnest(of_jobs, tokens, results, held.states) h(job, token, result, state) where h.state = 'held';
  if jobs is null then
    return held.states;
  end if;
  perform from succeed(jobs, claimed, done, true);
  get diagnostics written = row_count;
  select array_agg(c.token order by c.job), array_agg(c.job order by c.job) into claims, ended
  from (
    select h.token, max(h.job) as job
    from unnest(of_jobs, tokens, held.groups, held.states) h(job, token, name, state)
    where h.state = 'held' and h.name is not null group by h.token) c;
  if claims is not null then
    perform receive_pass(claims, ended);
  end if;
  if written < cardinality(jobs) then
    -- A receipt that comes again is stale then.
    select array_agg(case when r.state = 'held' and r.nth > 1 then 'stale' else r.state end order by r.place)
      into held.states
    from (
      select r.state, r.place, row_number() over (partition by r.job, r.state order by r.place) as nth
      from unnest(of_jobs, held.states) with ordinality r(job, state, place)) r;
  end if;
  return array_replace(held.states, 'held', 'done');
end $$;
