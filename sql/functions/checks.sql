-- Refuse arguments that cannot be used, and say what to do.

create or replace function check_name(field text, given text, length_limit integer) returns void
language plpgsql immutable as $$
begin
  if given = '' then
    raise exception 'the % is empty', field using errcode = '22023', hint = 'Give it at least one character.';
  elsif char_length(given) > length_limit then
    raise exception 'the % has % characters, at most % are allowed', field, char_length(given), length_limit
      using errcode = '22023', hint = 'Shorten it, or use a hash of it.';
  elsif given ~ '[\u0001-\u001f\u007f-\u009f]' then
    raise exception 'the % has a control character', field
      using errcode = '22023', hint = 'Remove or escape it.';
  end if;
end $$;

-- A text for people, such as the reason of an operator.
create or replace function check_text(field text, given text) returns void
language plpgsql immutable as $$
begin
  if char_length(given) > {reason_limit} then
    raise exception 'the % has % characters, at most % are allowed', field, char_length(given), {reason_limit}
      using errcode = '22023', hint = 'Shorten it.';
  end if;
end $$;

create or replace function {schema}.to_ms(given interval) returns bigint
language sql immutable as $$
  select (extract(epoch from given) * 1000)::bigint
$$;

create or replace function check_queue(given text) returns void
language plpgsql immutable as $$
begin
  if given is null then
    raise exception 'the queue is null' using errcode = '22023', hint = 'Name the queue.';
  end if;
  perform check_name('queue', given, {queue_limit});
end $$;

-- Returns whether each statement of this transaction has a snapshot of its own.
create or replace function {schema}.is_read_committed() returns boolean
language sql stable as $$
  select current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
$$;

create or replace function check_isolation(what text) returns void
language plpgsql stable as $$
begin
  if not {schema}.is_read_committed() then
    raise exception '% needs READ COMMITTED, this transaction is %',
      what, upper(current_setting('transaction_isolation'))
      using errcode = '0A000', hint = 'Begin it with BEGIN ISOLATION LEVEL READ COMMITTED, or set '
        'default_transaction_isolation for the sessions of this program.';
  end if;
end $$;

create or replace function check_visibility(given interval) returns void
language plpgsql immutable as $$
begin
  if given is null or given < interval '0' or given > interval '12 hours' then
    raise exception 'the visibility is %, it must be from 0 to 12 hours', coalesce(given::text, 'null')
      using errcode = '22023', hint = 'Choose a shorter one, and extend it while the work goes on.';
  end if;
end $$;

create or replace function check_delay(given interval) returns void
language plpgsql immutable as $$
begin
  if given < interval '0' or given > interval '100 years' then
    raise exception 'the delay is %, it must be from 0 to 100 years', given
      using errcode = '22023', hint = 'Leave it out for at once.';
  end if;
end $$;

create or replace function check_headers(given jsonb) returns void
language plpgsql immutable as $$
begin
  if jsonb_typeof(given) <> 'object'
    or exists (select from jsonb_each(given) h where jsonb_typeof(h.value) <> 'string')
  then
    raise exception 'the headers are no object of strings' using errcode = '22023',
      hint = 'Pass them as in {"traceparent": "00-..."}.';
  elsif octet_length(given::text) > {headers_limit} then
    raise exception 'the headers have % bytes, at most % are allowed',
      octet_length(given::text), {headers_limit}
      using errcode = '22023', hint = 'Put what the handler works with into the data.';
  end if;
end $$;

-- How many jobs a function takes at most.
create or replace function check_count(given bigint) returns void
language plpgsql immutable as $$
begin
  if given < 0 then
    raise exception 'n is %, it must be at least 0', given using errcode = '22023',
      hint = 'Name how many jobs it may be at most, such as 1000.';
  end if;
end $$;
