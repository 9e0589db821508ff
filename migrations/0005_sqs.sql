-- SQS clients: what their protocol has, and jobs had not.

-- The attributes of a message, as SQS spells them: {"name": {"DataType": "String", "StringValue":
-- "…"}}. Bytes are in base64.
alter table job add column attributes jsonb;
alter type received add attribute attributes jsonb;
alter type received add attribute dedup_id text;
alter type received add attribute first_received_at timestamptz; -- as far as the history goes back

-- A queue that SQS clients see. What seriatim has itself (delay, deduplication, attempts) is in
-- `queue` as well, and counts there.
create table sqs_queue (
  name text primary key,
  attributes jsonb not null default '{}',      -- those that were set, as SQS spells them
  tags jsonb not null default '{}',
  created_at timestamptz not null default clock_timestamp(),
  modified_at timestamptz not null default clock_timestamp(),
  purged_at timestamptz
);

-- Who may sign requests. The secret must be readable: a signature is checked by making it again.
create table sqs_key (
  access_key text primary key,
  secret text not null,
  role text,                                   -- null: that of the server
  created_at timestamptz not null default clock_timestamp()
);

-- One row: what receipt handles are signed with, so that a stale one is told from a forged one.
create table sqs_secret (secret bytea not null);
insert into sqs_secret
select sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'));
