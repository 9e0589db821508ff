//! The integration tests: one binary, so that they share one server.

// A test says what it expects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod blocking_handlers;
mod building;
mod cancel;
mod dedup;
mod documents;
mod enqueue_batch;
mod enqueue_limits;
mod examples;
mod expiry;
mod explaining;
mod hosts;
mod housekeeping;
mod in_flight;
mod job_settings;
mod jobs_per_turn;
mod layers;
mod lease_hold;
mod looking;
mod migrate;
mod namespace;
mod operating;
mod out_of_attempts;
mod outcomes;
mod p10_stale_worker;
mod p1_order;
mod p2_one_at_a_time;
mod p3_nothing_lost;
mod p4_exactly_once;
mod p5_enqueue_never_waits;
mod p6_failover;
mod p8_fairness;
mod p9_attempts;
mod parking;
mod pausing;
mod priorities;
mod proxy;
mod pull;
mod queue_settings;
mod raw_bytes;
mod shutdown;
mod sql_functions;
mod sqs_fifo;
mod support;
mod testing;
mod testing_jobs;
mod watchdog;
mod weights;
mod witness;
mod worker_process;
