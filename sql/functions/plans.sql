-- Pins the plans of the library's statements, and limits their waits, until the transaction ends. A
-- `set` of each function's own would cost more than the rest of it.
create or replace function {schema}.pin_plans() returns void
language plpgsql volatile as $$
begin
  perform {pin};
end $$;
