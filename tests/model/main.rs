//! The protocol of a job's life as a model, every interleaving of which is looked at within small bounds.
//!
//! It has one group, three jobs and two workers, and knows nothing of the crate: the statements are written down again,
//! each with a snapshot of its own that is older than the locks it takes. See "The model" in ARCHITECTURE.md.

// A test says what it expects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]
// A state is made of small numbers: which job, which worker, how often.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
// What may happen is a method of the model, whether or not it depends on the configuration.
#![allow(clippy::unused_self)]

mod checks;
mod claim;
mod clock;
mod database;
mod ending;
mod hold;
mod mutants;
mod mutation;
mod operator;
mod parking;
mod presence;
mod producer;
mod properties;
mod protocol;
mod settle;
mod state;
mod story;
mod worker;
