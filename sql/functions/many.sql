-- Many receipts at once: one statement, one commit. Each receipt has the answer that ack, nack or
-- extend gives to it alone, or 'invalid' if it is none; no receipt hurts the others.

create or replace function settle_many(receipts text[], verb text, wait interval, message text)
returns table (receipt text, answer text)
language plpgsql volatile as $$
#variable_conflict use_column
declare
  jobs bigint[]; tokens uuid[]; answers text[];
begin
  perform check_isolation(verb || '_many');
  if receipts is null or cardinality(receipts) > 1000 then
    raise exception '% receipts are given, at most 1000 are allowed',
      coalesce(cardinality(receipts)::text, 'null')
      using errcode = '22023', hint = 'Call again for the others.';
  end if;
  select array_agg(split_part(r.receipt, '.', 1)::bigint), array_agg(split_part(r.receipt, '.', 2)::uuid)
    into jobs, tokens
  from (
    select case when is_receipt(g.receipt) then g.receipt end as receipt
    from unnest(receipts) g(receipt) offset 0) r;
  answers := settle_receipts(verb, jobs, tokens, null, wait, message);
  return query
    select r.receipt, case when r.job is null then 'invalid' else r.answer end
    from unnest(receipts, jobs, answers) r(receipt, job, answer);
end $$;

-- Acks many jobs, at most 1000.
create or replace function ack_many(receipts text[]) returns table (receipt text, answer text)
language plpgsql volatile set search_path from current {pinned} as $$
begin
  return query select * from settle_many(receipts, 'ack', null, null);
end $$;

-- Gives many jobs back, at most 1000.
create or replace function nack_many(receipts text[], delay interval default null, error text default null)
returns table (receipt text, answer text)
language plpgsql volatile set search_path from current {pinned} as $$
begin
  perform check_delay(delay);
  return query select * from settle_many(receipts, 'nack', delay, error);
end $$;

-- Gives the claims of many jobs, at most 1000, `visibility` (0 to 12 h) from now on.
create or replace function extend_many(receipts text[], visibility interval)
returns table (receipt text, answer text)
language plpgsql volatile set search_path from current {pinned} as $$
begin
  perform check_visibility(visibility);
  return query select * from settle_many(receipts, 'extend', visibility, null);
end $$;

-- Releases jobs that no receiver has seen, as its client was gone when they were claimed, at most
-- 1000: they are due at once, and the attempt is not held against them. Answers as ack_many does.
create or replace function release_many(receipts text[]) returns table (receipt text, answer text)
language plpgsql volatile set search_path from current {pinned} as $$
begin
  return query select * from settle_many(receipts, 'release', interval '0', 'its client was gone');
end $$;
