//! A change that an operator made.

use chrono::{DateTime, Utc};
use serde::Serialize;

/// A change that an operator made: a row of the table `operation`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Operation {
    /// Its number; a later one has a higher one.
    pub id: i64,
    /// When, by the database's clock.
    pub at: DateTime<Utc>,
    /// The actor, as given to [`Client::operator`](crate::Client::operator); the user of the
    /// session if it was made by a SQL function.
    pub actor: String,
    /// The action: `pause`, `resume`, `retry`, …
    pub action: String,
    /// The queue.
    pub queue: Option<String>,
    /// The group, if it was about one.
    pub group: Option<String>,
    /// The job, if it was about one.
    pub job: Option<i64>,
    /// The reason that was given.
    pub reason: Option<String>,
    /// The number of jobs; 1 for a queue, a group, a schedule or a key.
    pub affected: u64,
    /// The schedule, if it was about one.
    pub schedule: Option<String>,
    /// The key of SQS clients, if it was about one: its id, its role and its queues, in words.
    pub sqs_key: Option<String>,
    /// The database user whose session made the change. The actor is only a name that the session
    /// gave. `None`: a checkout of before 0.1.0 made the change, and did not record the user.
    pub db_user: Option<String>,
}
