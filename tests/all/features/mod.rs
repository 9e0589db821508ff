//! The features for users: one file for each feature of a job, a group, a queue or a handler.
//! The helpers for the tests of users are features too.
//! A test that concerns one of the promises P1 to P10 belongs in `promises`.
//! A feature that only an operator calls or sees belongs in `operations`.

mod batches;
mod blocking_handlers;
mod building;
mod cancel;
mod dead_letter_queue;
mod dedup;
mod enqueue_batch;
mod enqueue_limits;
mod expiry;
mod follow_ups;
mod handler_layers;
pub mod hostile;
mod hostile_payloads;
mod idle;
mod in_flight;
mod job_settings;
mod kinds;
mod large_data;
mod lease_hold;
mod leased_turns;
mod limit_keys;
mod out_of_attempts;
mod outcomes;
mod parking;
mod pausing;
mod pool;
mod prefetch;
mod priorities;
mod progress;
mod queue_policy;
mod queue_settings;
mod rates;
mod raw_bytes;
mod rehearsals;
mod rests;
mod schedules;
mod shards;
mod snoozes;
mod testing;
mod testing_jobs;
mod time_slices;
mod undecodable;
mod unique_keys;
mod waits;
mod wake_ups;
mod weights;
