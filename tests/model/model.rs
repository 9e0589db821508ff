//! The protocol of a job's life as a model, explored in every interleaving within small bounds.
//!
//! The model has one group, three jobs and two or three workers, and uses nothing of the crate. It
//! writes the statements down again, each with a snapshot of its own that is older than the locks
//! it takes. `adoption` is a second, smaller one, of several groups. See `README.md`.

// A test states its expectations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]
// A state is made of small numbers: a job, a worker, a count.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
// An action is a method of the model, whether or not it depends on the configuration.
#![allow(clippy::unused_self)]

mod adopt;
mod adoption;
mod batch;
mod checks;
mod claim;
mod clock;
mod database;
mod ending;
mod hold;
mod limit_key;
mod mutants;
mod mutation;
mod operator;
mod parking;
mod presence;
mod producer;
mod properties;
mod protocol;
mod receiver;
mod settle;
#[path = "../all/support/size.rs"]
mod size;
mod state;
mod step;
mod story;
mod symmetry;
mod turn;
mod worker;
