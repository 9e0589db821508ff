-- Keys of SQS clients that are for some queues, and keys that are disabled for a while.
--
-- A program of the version before reads the column `secret` alone, and would take such a key as one
-- without limits. So the secret of such a key is in another column. An older program finds none, and
-- answers that it cannot tell now, which clients repeat.

alter table sqs_key
  add column queues text[],                    -- names, where * is any text; null: all queues
  add column disabled_at timestamptz,          -- null: it counts
  add column guarded_secret text,              -- of a key that has one of these two
  alter column secret drop not null,
  add constraint sqs_key_queues check (cardinality(queues) > 0),
  add constraint sqs_key_secret check (num_nonnulls(secret, guarded_secret) = 1
    and (guarded_secret is not null) = (num_nonnulls(queues, disabled_at) > 0));

-- The key that an operator's change was about, with its rights, in words; and who was connected,
-- whatever the caller says of itself.
alter table operation add column sqs_key text, add column db_user text;
-- Not of rows that are there: nobody has noted theirs.
alter table operation alter column db_user set default session_user;
