-- Gives the claim `visibility` (0 to 12 h) from now on, instead of what is left of it. Jobs of a
-- group that were received together have one claim: it is extended for all of them. Returns as ack
-- does.
create or replace function extend(receipt text, visibility interval) returns text
language plpgsql volatile set search_path from current {pinned} as $$
begin
  perform check_visibility(visibility);
  return settle_receipt(receipt, 'extend', null, visibility, null);
end $$;

-- Extends the claims of receipts, as far as they are held. Returns what each receipt came to.
create or replace function extend_receipts(of_jobs bigint[], tokens uuid[], visibility interval,
  until timestamptz) returns text[]
language plpgsql volatile as $$
declare
  held record;
begin
  held := receive_hold(of_jobs, tokens, false, until);
  update job j set lease_until = clock_timestamp() + visibility, suspect = null
  from unnest(of_jobs, held.groups, held.states) h(job, name, state)
  where h.state = 'held' and h.name is null and j.id = any (array[h.job]);
  if cardinality(array_remove(held.groups, null)) > 0 then
    perform receiver_may_retire();
    update queue_group g set ready_at = clock_timestamp() + visibility, suspect = null
    from (select distinct h.token from unnest(tokens, held.groups, held.states) h(token, name, state)
        where h.state = 'held' and h.name is not null) claimed
      cross join lateral (
        select g.ctid as line from queue_group g where g.claim = claimed.token limit 1) locked
    where g.ctid = locked.line;
  end if;
  return array_replace(held.states, 'held', 'done');
end $$;
