-- Prepares a session: its first claim, hold and settle would take ten times as long as the next
-- ones, because each session compiles functions and plans statements of its own. Here they run with
-- nothing to do: of a queue that cannot be named, and of a claim that nobody has.
create or replace function {schema}.warm_up() returns void
language plpgsql volatile as $$
declare
  terms constant {schema}.claim_terms := row('', null, false, null, 1, 1, false, null, 1, true);
  limits constant {schema}.claim_limits := row(1, 1, 1000, null);
  front constant {schema}.claim_front := row('-infinity', '-infinity', 0, '-infinity');
  token constant uuid := gen_random_uuid();
begin
  perform c.id from {schema}.claim_jobs(terms, limits, front, false) c;
  perform {schema}.first_turns(terms, 1, clock_timestamp());
  perform {schema}.start_heads(terms, limits, '{}');
  perform {schema}.hold_job(0, token, true);
  perform {schema}.pass_turns('{}', '{}');
  perform {schema}.retire('{}');
  begin
    perform {schema}.settle_success(0, token, null, false, false, 0);
  exception when no_data_found then
    null;
  end;
end $$;
