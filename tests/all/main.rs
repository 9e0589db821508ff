//! The integration tests: one binary, so that they share one server.

// A test says what it expects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod behind_a_pooler;
mod blocking_handlers;
mod building;
mod cancel;
#[path = "../../examples/check_history/checker/mod.rs"]
mod checker;
mod checking_histories;
mod claimed_ahead;
mod dedup;
mod documents;
mod enqueue_batch;
mod enqueue_limits;
mod examples;
mod expiry;
mod explaining;
mod faults;
mod hostile;
mod hostile_payloads;
mod hostile_schemas;
mod hosts;
mod housekeeping;
mod idle;
mod in_flight;
mod job_settings;
mod jobs_per_turn;
mod layers;
mod lease_hold;
mod leased_turns;
mod looking;
mod lost_answers;
mod migrate;
mod namespace;
mod no_payload;
mod operating;
mod out_of_attempts;
mod outcomes;
mod parking;
mod pausing;
mod pooler;
mod poolers_are_seen;
mod priorities;
mod proxy;
mod pull;
mod queue_settings;
mod random_histories;
mod raw_bytes;
mod roles;
mod shut_out;
mod shutdown;
mod sql_functions;
mod sqs_fifo;
mod support;
mod testing;
mod testing_jobs;
mod turns_that_go_on;
mod wake_ups;
mod watchdog;
mod weights;
mod witness;
mod worker_process;

// The promises of the core, under each hold.
#[path = "."]
mod by_transaction {
    const HOLD: seriatim::Hold = seriatim::Hold::Transaction;

    #[path = "promises.rs"]
    mod promises;
}

#[path = "."]
mod by_lease {
    /// So long that no test can see it run out: a job that is lost stays lost.
    const HOLD: seriatim::Hold = seriatim::Hold::Lease(std::time::Duration::from_mins(10));

    #[path = "promises.rs"]
    #[allow(clippy::duplicate_mod, reason = "the same promises under another hold")]
    mod promises;
}
