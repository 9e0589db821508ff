//! Redrive: failed jobs of a queue, queued again.

use sqlx::PgExecutor;

use crate::client::client::Client;
use crate::error::ControlError;
use crate::job::name;

/// The result of a redrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Redriven {
    /// The number of jobs that are queued again.
    pub jobs: u64,
    /// The number of their groups; jobs without one are not counted.
    pub groups: u64,
    /// The number of later jobs of those groups that have already begun, of those that retention
    /// still keeps.
    pub overtaken: u64,
}

impl Client {
    /// Queues failed jobs of a queue again, the oldest first and at most `limit`. Those of one
    /// group run in their original order, before all other jobs of the group. Their attempts begin
    /// anew, an expiry is cleared, and halts by them end. For one job there is
    /// [`retry`](Self::retry).
    ///
    /// Call it again for more than `limit`. [`Redriven::jobs`] is 0 once none is left. Beside
    /// workers whose jobs fail again, that may be never.
    ///
    /// Left out are jobs that others were parked with ([`redrive_parked`](Self::redrive_parked)),
    /// and those that another transaction is changing.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn redrive(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        limit: u32,
    ) -> Result<Redriven, ControlError> {
        name::check_queue(queue)?;
        let report = self.store.redrive(executor, queue, limit.into()).await?;
        Ok(Redriven { jobs: report.jobs, groups: report.groups, overtaken: report.overtaken })
    }
}
