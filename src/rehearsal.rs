//! Rehearsals: a group's next jobs, run in a transaction that is rolled back.
//!
//! [`Client::rehearse`](crate::Client::rehearse) takes a [`Rehearsal`] and returns a
//! [`RehearsalReport`]. [`Processor::rehearse`](crate::Processor::rehearse) does so with the
//! handlers that a program registers, for a command of its own.

pub use crate::error::RehearsalError;
pub use crate::job::rehearsal::{Rehearsal, RehearsalReport, RehearsedJob, TableWrites};
