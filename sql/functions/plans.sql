-- Pins the plans of the library's statements, and limits their waits, until the transaction ends. A
-- `set` of each function's own would cost more than the rest of it.
create or replace function {schema}.pin_plans() returns void
language plpgsql volatile
as $$
begin
  perform set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
    set_config('enable_mergejoin', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('jit', 'off', true), set_config('lock_timeout', {lock_timeout}, true);
end $$;
