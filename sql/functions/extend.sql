-- Gives the claim `visibility` (0 to 12 h) from now on, instead of what is left of it. Jobs of a
-- group that were received together have one claim: it is extended for all of them. Returns as ack
-- does.
create or replace function extend(receipt text, visibility interval) returns text
language plpgsql volatile
set search_path from current
set lock_timeout = {lock_timeout}
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
declare
  shown record;
  held record;
begin
  perform check_isolation('extend');
  select * into shown from parse_receipt(receipt);
  perform check_visibility(visibility);
  select * into held from receive_hold(shown.job, shown.token, false);
  if held.state <> 'held' then
    return held.state;
  end if;
  if held.of_group is null then
    update job j set lease_until = clock_timestamp() + visibility, suspect = null where j.id = shown.job;
  else
    perform receiver_may_retire();
    update queue_group g set ready_at = clock_timestamp() + visibility, suspect = null
    where g.queue = held.of_queue and g.group_id = held.of_group;
  end if;
  return 'done';
end $$;
