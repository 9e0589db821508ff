-- Many receipts at once: one statement, one commit. Each receipt has the answer that ack, nack or
-- extend gives to it alone, or 'invalid' if it is none; no receipt hurts the others.

-- Returns the receipts by group and id. So two calls take the groups that they share in one order.
create or replace function receipts_in_order(receipts text[]) returns table (place bigint, receipt text)
language plpgsql volatile
as $$
begin
  if receipts is null or cardinality(receipts) > 1000 then
    raise exception '% receipts are given, at most 1000 are allowed', coalesce(cardinality(receipts)::text, 'null')
      using errcode = '22023', hint = 'Call again for the others.';
  end if;
  return query
    select r.place, r.receipt
    from unnest(receipts) with ordinality r(receipt, place)
      cross join lateral (
        select case when is_receipt(r.receipt) then split_part(r.receipt, '.', 1)::bigint end) n(id)
      join job j on j.id = any (array[n.id])
    order by j.queue, j.group_id, j.id;
end $$;

-- Returns the answers in the order of the receipts. Those without one are of no job.
create or replace function receipt_answers(receipts text[], answers text[]) returns table (receipt text, answer text)
language sql immutable
as $$
  select r.receipt, coalesce(answers[r.place], case when is_receipt(r.receipt) then 'stale' else 'invalid' end)
  from unnest(receipts) with ordinality r(receipt, place) order by r.place
$$;

-- Acks many jobs, at most 1000.
create or replace function ack_many(receipts text[]) returns table (receipt text, answer text)
language plpgsql volatile
set search_path from current
set lock_timeout = {lock_timeout}
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
  r record;
  answers text[] := '{}';
begin
  perform check_isolation('ack_many');
  perform begin_holds();
  for r in select o.place, o.receipt from receipts_in_order(receipts) o loop
    answers[r.place] := ack(r.receipt);
  end loop;
  perform end_holds();
  return query select a.receipt, a.answer from receipt_answers(receipts, answers) a;
end $$;

-- Gives many jobs back, at most 1000. The last of a group comes first, as a nack gives those behind
-- its job back too.
create or replace function nack_many(receipts text[], delay interval default null, error text default null)
returns table (receipt text, answer text)
language plpgsql volatile
set search_path from current
set lock_timeout = {lock_timeout}
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
  r record;
  answers text[] := '{}';
begin
  perform check_isolation('nack_many');
  perform begin_holds();
  for r in
    select o.place, o.receipt from receipts_in_order(receipts) with ordinality o(place, receipt, turn) order by o.turn desc
  loop
    answers[r.place] := nack(r.receipt, delay, error);
  end loop;
  perform end_holds();
  return query select a.receipt, a.answer from receipt_answers(receipts, answers) a;
end $$;

-- Gives the claims of many jobs, at most 1000, `visibility` (0 to 12 h) from now on.
create or replace function extend_many(receipts text[], visibility interval) returns table (receipt text, answer text)
language plpgsql volatile
set search_path from current
set lock_timeout = {lock_timeout}
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
  r record;
  answers text[] := '{}';
begin
  perform check_isolation('extend_many');
  perform check_visibility(visibility);
  perform begin_holds();
  for r in select o.place, o.receipt from receipts_in_order(receipts) o loop
    answers[r.place] := extend(r.receipt, visibility);
  end loop;
  perform end_holds();
  return query select a.receipt, a.answer from receipt_answers(receipts, answers) a;
end $$;

-- Releases jobs that no receiver has seen, as its client was gone when they were claimed, at most
-- 1000: they are due at once, and the attempt is not held against them. Answers as ack_many does.
create or replace function release_many(receipts text[]) returns table (receipt text, answer text)
language plpgsql volatile
set search_path from current
set lock_timeout = {lock_timeout}
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
#variable_conflict use_column
declare
  r record;
  shown record;
  answers text[] := '{}';
begin
  perform check_isolation('release_many');
  perform begin_holds();
  for r in
    select o.place, o.receipt from receipts_in_order(receipts) with ordinality o(place, receipt, turn) order by o.turn desc
  loop
    select * into shown from parse_receipt(r.receipt);
    answers[r.place] := (select h.state from receive_hold(shown.job, shown.token, false) h);
    if answers[r.place] = 'held' then
      update job j set attempts_forgiven = attempts_forgiven + 1 where j.id = shown.job;
      answers[r.place] := nack(r.receipt, interval '0', 'its client was gone');
    end if;
  end loop;
  perform end_holds();
  return query select a.receipt, a.answer from receipt_answers(receipts, answers) a;
end $$;
