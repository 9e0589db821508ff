//! The integration tests: one binary, so that they share one server.
//!
//! Each folder's first lines say what lives there. The files beside this one test the repository:
//! its documents, its sentences, its examples and its layers.

// A test says what it expects.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod documents;
mod examples;
mod faults;
mod features;
mod layers;
mod operations;
mod sentences;
mod sql;
mod support;

// The promises of the core, under each hold.
#[path = "."]
mod by_transaction {
    const HOLD: seriatim::Hold = seriatim::Hold::Transaction;

    #[path = "promises/mod.rs"]
    mod promises;
}

#[path = "."]
mod by_lease {
    /// So long that no test can see it run out: a job that is lost stays lost.
    const HOLD: seriatim::Hold = seriatim::Hold::Lease(std::time::Duration::from_mins(10));

    #[path = "promises/mod.rs"]
    #[allow(clippy::duplicate_mod, reason = "the same promises under another hold")]
    mod promises;
}
