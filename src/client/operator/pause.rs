//! Pauses of queues and groups.

use sqlx::PgExecutor;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::name;
use crate::job::until::Until;
use crate::store::is_end_refused;

impl Operator {
    /// Pauses a queue: none of its jobs starts, in any process, until
    /// [`resume_queue`](Self::resume_queue). Enqueues go on, and so do running jobs. Jobs that
    /// are being claimed, or were prefetched (0.1 s before at most), may still start. A job whose
    /// worker dies meanwhile waits for the end of the pause.
    ///
    /// The pause has the operator's reason. A paused queue stays paused, with the new reason and no
    /// end. In a transaction it takes effect when that commits; until then a queue with a limit of
    /// jobs in flight claims nothing.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn pause_queue(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<(), ControlError> {
        self.start_pause(executor, queue, None, None).await
    }

    /// Pauses a queue as [`pause_queue`](Self::pause_queue) does, until `until`, a `Duration` from
    /// now or a time by the database's clock: then it resumes by itself, never sooner, and within
    /// the poll of an idle worker (0.5 s by default). Nothing has to run for it but a worker or a
    /// receiver.
    ///
    /// A queue that is paused gets this end instead of its own.
    ///
    /// # Errors
    /// As [`pause_queue`](Self::pause_queue), and [`ControlError::OutOfRange`] for an `until` that
    /// is over.
    pub async fn pause_queue_until(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        until: impl Into<Until>,
    ) -> Result<(), ControlError> {
        self.start_pause(executor, queue, None, Some(until.into())).await
    }

    /// Ends the pause of a queue, and wakes its workers.
    ///
    /// # Errors
    /// [`ControlError::NotPaused`]; [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn resume_queue(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<(), ControlError> {
        name::check_queue(queue)?;
        if self.store().resume(executor, queue, None, self.acting()?).await? {
            return Ok(());
        }
        Err(ControlError::NotPaused { queue: queue.to_owned(), group: None })
    }

    /// Pauses a group: none of its jobs starts until [`resume_group`](Self::resume_group). It
    /// need not have any jobs yet. Enqueues go on, and so does the running job, also on another
    /// worker if its own dies. A claim that is under way may still start a job.
    ///
    /// The pause has the operator's reason. A paused group stays paused, with the new reason and no
    /// end. A pause is not a halt: each ends by its own request.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn pause_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
    ) -> Result<(), ControlError> {
        self.start_pause(executor, queue, Some(group), None).await
    }

    /// Pauses a group as [`pause_group`](Self::pause_group) does, until `until`, a `Duration` from
    /// now or a time by the database's clock: then it resumes by itself, never sooner, as a job
    /// does that is delayed until then.
    ///
    /// A group that is paused gets this end instead of its own.
    ///
    /// # Errors
    /// As [`pause_group`](Self::pause_group), and [`ControlError::OutOfRange`] for an `until` that
    /// is over.
    pub async fn pause_group_until(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        until: impl Into<Until>,
    ) -> Result<(), ControlError> {
        self.start_pause(executor, queue, Some(group), Some(until.into())).await
    }

    pub(crate) async fn start_pause(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: Option<&str>,
        until: Option<Until>,
    ) -> Result<(), ControlError> {
        name::check_lane(queue, group)?;
        let acting = self.acting()?;
        let paused = self.store().pause(executor, queue, group, until, acting).await;
        paused.map_err(|error| match until {
            Some(until) if is_end_refused(&error) => ControlError::OutOfRange {
                setting: "the end of the pause",
                value: until.to_string(),
                range: "a time to come, by the database's clock, within 100 years",
            },
            _ => error.into(),
        })
    }

    /// Ends the pause of a group, which goes on with its next job.
    ///
    /// In a transaction it takes effect when that commits. Call it at READ COMMITTED (the default):
    /// at a stricter level it may miss a job that ran when the transaction began, and the group
    /// then waits for the sweep of maintenance.
    ///
    /// # Errors
    /// [`ControlError::NotPaused`]; [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn resume_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
    ) -> Result<(), ControlError> {
        name::check_queue(queue)?;
        name::check("group", group, name::GROUP_LIMIT)?;
        if self.store().resume(executor, queue, Some(group), self.acting()?).await? {
            return Ok(());
        }
        Err(ControlError::NotPaused { queue: queue.to_owned(), group: Some(group.to_owned()) })
    }
}
