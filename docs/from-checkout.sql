-- Gives a schema that a checkout of before 0.1.0 made the number of the first release.
--
-- All programs are stopped, and the schema is at version 20 or 21: `migrate` of the last checkout
-- has run. Run this as the owner, by `psql -v ON_ERROR_STOP=1 -f`, then `migrate` of 0.1.0. It
-- changes all, or nothing. The schema's name is in the second statement.
begin;
set local search_path = seriatim, pg_temp;
lock table migration in access exclusive mode;
do $$
declare
  at_version constant bigint := (select max(m.version) from migration m);
begin
  if coalesce(at_version, 0) not in (20, 21) then
    raise exception 'the schema is at version %, and not at 20 or 21 of a checkout', at_version
      using hint = 'Run `migrate` of the last checkout first. A schema at version 1 is the release''s already.';
  end if;
end $$;
delete from migration;
-- Without functions: `migrate` makes them anew.
insert into migration (version, description, checksum, compatible_from)
values (1, 'schema', '\x210c741d9276d69a3c5af45daa2fd49d0fbbbc54c5f77972de5460539b86aa6010c6b10a6ef35820ae59cc205fe243dd', 1);
-- It came with version 21.
create table if not exists queue_minute (
  queue text not null,
  minute timestamptz not null,                 -- its begin
  ended bigint not null,                       -- jobs that succeeded, or failed for good
  failed bigint not null,                      -- those of them that failed
  wait_median_ms bigint,                       -- from when a job was due until its last attempt began
  wait_p95_ms bigint,                          -- 19 of 20 waited no longer
  primary key (queue, minute)
);
create index if not exists freed_slot_key on freed_slot (queue, limit_key);
-- Version 21 has no upkeep at the commit of a receive.
do $$
begin
  if to_regclass('upkeep_due') is null then
    create table upkeep_due (queue text not null);
    alter table upkeep_due replica identity full;
    create function upkeep_at_commit() returns trigger language plpgsql as 'begin return null; end';
    create constraint trigger upkeep_at_commit after insert on upkeep_due
      deferrable initially deferred for each row execute function upkeep_at_commit();
    alter type adoption add attribute others boolean;
    alter type claim_answer add attribute others boolean;
    alter type claim_scan add attribute others boolean;
  end if;
end $$;
-- Unique keys came last.
do $$
begin
  if to_regclass('unique_key') is null then
    create table unique_key (
      queue text not null,
      scope text not null,
      until text not null,
      key text not null,
      job_id bigint not null,
      duplicates bigint not null default 0,
      look_at timestamptz not null default clock_timestamp() + interval '10 min',
      primary key (queue, scope, until, key)
    ) with (
      fillfactor = 50,
      autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
      autovacuum_vacuum_cost_delay = 0
    );
    create index unique_key_look on unique_key (look_at);
    alter table job add unique_key text, add replaced integer not null default 0, add replaced_at timestamptz;
    alter type explanation add attribute replaced integer, add attribute replaced_at timestamptz;
  end if;
end $$;
do $$
begin
  if not exists (
    select from pg_attribute a where a.attrelid = 'explanation'::regclass and a.attname = 'silent')
  then
    alter type explanation add attribute silent boolean;
  end if;
end $$;
create table if not exists maintenance (
  queue text primary key,
  keep_ms bigint[],
  swept_to text not null default '',
  seen_at timestamptz
) with (fillfactor = 50);
create table if not exists key_limit (
  queue text not null,
  limit_key text not null,
  groups integer not null,
  primary key (queue, limit_key),
  constraint key_limit_queue_length check (char_length(queue) between 1 and 200),
  constraint key_limit_key_length check (char_length(limit_key) between 1 and 400),
  constraint key_limit_groups check (groups >= 0)
);
alter table maintenance add column if not exists swept_key text not null default '';
alter type turn drop attribute if exists followers;
-- Checked in new rows alone so far.
alter table job validate constraint job_sound;
commit;
