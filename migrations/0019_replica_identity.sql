-- Tables without a key, whose rows are deleted: with a publication of all tables, PostgreSQL refuses
-- that without an identity. A receive failed there.

alter table receiver replica identity full;
alter table flag_scan replica identity full;
alter table sqs_secret replica identity full;
