-- Gives a schema that a checkout of before 0.1.0 made the number of the first release.
--
-- All programs are stopped, and the schema is at version 20: `migrate` of the last checkout has
-- run. Run this as the owner, by `psql -v ON_ERROR_STOP=1 -f`, then `migrate` of 0.1.0. It changes
-- all, or nothing. The schema's name is in the second statement.
begin;
set local search_path = seriatim, pg_temp;
lock table migration in access exclusive mode;
do $$
declare
  at_version constant bigint := (select max(m.version) from migration m);
begin
  if at_version is distinct from 20 then
    raise exception 'the schema is at version %, and not at 20 of a checkout', at_version
      using hint = 'Run `migrate` of the last checkout first. A schema at version 1 is the release''s already.';
  end if;
end $$;
delete from migration;
-- Without functions: `migrate` makes them anew.
insert into migration (version, description, checksum, compatible_from)
values (1, 'schema', '\xc447fbc487cfbe65056591ad366253649b3f81f762b72ee4f6db7acfb6fcdd80542a969e55c3264beb7b73dae3b9b2f7', 1);
-- Checked in new rows alone so far.
alter table job validate constraint job_sound;
commit;
