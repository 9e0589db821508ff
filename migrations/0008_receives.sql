-- Visibility that ends exactly.

-- Whether the claims of receivers are strict. A change counts for receives from then on.
alter table queue add column strict_visibility boolean not null default false;
update queue set strict_visibility = true where name in (select s.name from sqs_queue s);

-- A strict claim is over exactly when its visibility ends: no grace follows, and its receipts are
-- stale. Set by each claim; null is not strict.
alter table queue_group add column strict boolean;
alter table job add column strict boolean;
