//! Changes by hand, and the lists that they start from.
//!
//! [`Operator`] makes the changes: cancel, retry, skip, pause, redrive, purge and more. Each is
//! recorded as an [`Operation`], with who made it and why. Most return their effect ([`Retried`],
//! [`Redriven`], [`Purged`], [`Moved`], …). A [`Change`] is a change as a value, which can be
//! previewed, applied, and read from JSON; its [`Effect`] has a sentence.
//!
//! [`Client`](crate::Client) makes the lists: [`QueueOverview`] and [`GroupOverview`] at a glance,
//! [`TookOver`] for a server that took another one's place,
//! [`FailedJob`] for dead letters, [`HaltedGroup`], [`PausedGroup`] and [`ParkedUnit`] for groups
//! that stand, [`MoveTask`] for move tasks, running and ended, [`StoredSchedule`] for schedules,
//! [`Maintained`] for the effect of maintenance, [`Batch`] and [`BatchJob`] for batches.
//!
//! [`QueueSettings`] are stored in the database, and hold for the whole fleet. An application sets
//! them by [`Client::configure_queue`](crate::Client::configure_queue). A [`KeyLimit`] is the limit
//! of a single limit key, which [`Operator::set_key_limit`] sets.
//!
//! ```no_run
//! use seriatim::Client;
//! use seriatim::admin::FailedFilter;
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::default();
//! let filter = FailedFilter::default().queue("postings");
//! let failed = client.failed_jobs(&pool, &filter).await?;
//! let ids: Vec<i64> = failed.iter().map(|job| job.id).collect();
//!
//! let ann = client.operator("ann", "the bank is open again");
//! let redriven = ann.redrive_jobs(&pool, &ids).await?;
//! println!("{} jobs run again, behind {} later ones", redriven.jobs, redriven.overtaken);
//! # Ok(())
//! # }
//! ```

pub use crate::client::cancel::Cancelled;
pub use crate::client::operator::jobs::Retried;
pub use crate::client::operator::move_jobs::{Moved, MovedJob};
pub use crate::client::operator::node::Released;
pub use crate::client::operator::operator::Operator;
pub use crate::client::operator::purge::Purged;
pub use crate::client::operator::redrive::{Discarded, Redriven};
pub use crate::job::batch::{Batch, BatchJob, BatchState};
pub use crate::job::change::Change;
pub use crate::job::counts::{HaltedGroup, ParkedUnit, PausedGroup, PausedQueue, QueueCounts};
pub use crate::job::effect::{Effect, Undo};
pub use crate::job::failed_filter::{FailedFilter, FailedJob};
pub use crate::job::maintained::Maintained;
pub use crate::job::move_task::{MoveTask, MoveTaskStatus, NewMoveTask};
pub use crate::job::operation::Operation;
pub use crate::job::overview::{
    GroupCounts, GroupFilter, GroupOverview, GroupPage, GroupSort, GroupState, JobCounts,
    QueueOverview, TookOver,
};
pub use crate::job::policy::OverriddenOption;
pub use crate::job::queue_settings::{DedupScope, KeyLimit, QueueSettings, StoredQueueSettings};
pub use crate::job::rate::Rate;
pub use crate::job::schedule::{StoredSchedule, Timing};
