-- A job is written once.

-- ---- Groups that cannot start ----

-- What an adopter locks for a group that has no row yet: the row of the group's hash. A row lock
-- is kept in the row, so any number fits into a transaction. An advisory lock would take a place in
-- the server's shared lock table, which the application's own statements need as well.
--
-- Nothing writes these rows. Groups of one hash have one lock: of the other new groups, an open
-- transaction delays one in 65,536 for each group that it has adopted.
create table adoption_lock (hash integer primary key) with (fillfactor = 100);
insert into adoption_lock select n from generate_series(0, 65535) n;

-- How far receives have read the flags of a queue that has more than one receive can read: the next
-- one reads on there. Without a unique key, or a receive would wait for another one's open
-- transaction: the newest row counts. A queue has none as a rule.
create table flag_scan (
  queue text not null,
  flags_at timestamptz not null,               -- flags up to this place call for nothing
  flags_id bigint not null,
  unread boolean not null,                     -- there are others behind it
  read_ms float8 not null,                     -- how long it took so far, from the first flag on
  again_at timestamptz not null,               -- the next receive reads from the first flag on
  noted_at timestamptz not null
);
create index flag_scan_noted on flag_scan (queue, noted_at);

-- How far `tidy` has read the flags of such a queue.
create table tidy_scan (
  queue text primary key,
  flags_at timestamptz not null,
  flags_id bigint not null,
  tidied bigint not null default 0,            -- groups, from the first flag on
  due_at timestamptz not null
);

