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
-- Call it in a transaction of its own, or at the end of the caller's: what it locks, it locks until
-- the commit.
create or replace function ack(receipt text, result jsonb default null) returns text
language plpgsql volatile
set search_path from current
set lock_timeout = {lock_timeout}
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $$
#variable_conflict use_column
declare
  shown record;
  held record;
begin
  perform check_isolation('ack');
  select * into shown from parse_receipt(receipt);
  select * into held from receive_hold(shown.job, shown.token, true);
  if held.state <> 'held' then
    return held.state;
  end if;
  perform from succeed(array[shown.job], array[ack.result::text], true);
  if held.of_group is not null then
    perform receive_pass(held.of_queue, held.of_group, shown.token, shown.job);
  end if;
  return 'done';
end $$;
