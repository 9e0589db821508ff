//! Explanations: why a job or a group is where it is, and which worker and session have it.
//!
//! [`Client::explain_job`](crate::Client::explain_job) and
//! [`Client::explain_group`](crate::Client::explain_group) return them. Each prints as a
//! few sentences; the last one says what to do, if anything. Its [`Reason`] and its other parts are
//! fields, and serialize.
//!
//! ```no_run
//! use seriatim::Client;
//! use seriatim::explain::Reason;
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let why = Client::default().explain_group(&pool, "postings", "account-42").await?;
//! println!("{why}");
//! if matches!(why.reason, Reason::GroupPaused { .. }) {
//!     // an operator paused the group
//! }
//! # Ok(())
//! # }
//! ```

pub use crate::job::attempt::AttemptInfo;
pub use crate::job::explanation::{
    BoundedCount, GroupExplanation, JobExplanation, LockedRow, ParkedJobs, ProcessorInfo, Reason,
    SessionInfo, Unserved,
};
