-- The servers that have held this schema's claims: a physical server and its timeline. A promotion
-- begins another timeline, and changes neither the start of the server's process nor its statistics.
--
-- `since` is when a session saw the pair first. All holds were uncertain then: nothing that was
-- suspected before counts. Rows are only ever inserted, and nothing is unique: a session whose
-- transaction stays open delays nobody, as others insert the pair again. The earliest row counts.
create table server (
  system_identifier bigint not null,
  timeline bigint not null,
  since timestamptz not null
);
alter table server replica identity full;
-- This one: a migration makes no hold uncertain. See this_server.
do $$
begin
  insert into server select s.system_identifier,
    ('x' || substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::bigint, '-infinity'
  from pg_catalog.pg_control_system() s;
exception when others then
  insert into server values (0, 0, '-infinity');
end $$;

-- Never the same for two jobs, unlike the id: a promoted standby may give ids again that were lost
-- with its primary. For what a receiver does elsewhere.
alter type received add attribute key text;
