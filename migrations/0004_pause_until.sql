-- Pauses that end by themselves, and explanations.

-- The end of a pause; null: an operator ends it. What reads a pause asks whether it is over, so
-- that nothing has to end it (`paused` in src/store/fragments.rs).
alter table queue add column paused_until timestamptz;
alter table group_setting add column paused_until timestamptz;

-- What `explain` says of a job, or of the head of a group.
create type explanation as (
  job bigint,
  queue text,
  group_id text,
  status text,
  head bigint,                                 -- the job that runs or is next
  reason text,
  head_reason text,                            -- of that job, if the reason is `behind`
  -- What they mean depends on the reason, or else on the head's.
  since timestamptz,
  until timestamptz,
  detail text,
  by_job bigint,
  attempt integer,
  attempts_forgiven integer,                   -- of these attempts, those that do not count
  attempt_limit integer,                       -- of those that count
  timeout_at timestamptz,
  behind bigint,
  before bigint,
  in_flight bigint,
  in_flight_limit bigint,
  cancel_requested_at timestamptz,
  unserved text[],                             -- no living processor serves the queue; these are served
  parked bigint,
  parked_since timestamptz,
  has_parked boolean,
  queue_paused boolean,
  processor bigint,
  node text,
  host text,
  process_id integer,
  alive boolean,
  serves text[],
  started_at timestamptz,
  seen_at timestamptz,
  session integer,
  application text,
  session_state text,
  session_query text,
  query_began timestamptz,
  client_address text,
  session_began timestamptz,
  transaction_began timestamptz,
  blocked_by integer[],
  asked_at timestamptz
);
