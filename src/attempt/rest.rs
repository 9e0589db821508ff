//! Rests: a handler whose partner takes no more requests pauses its group or its queue for a while.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::Instant;

use crate::attempt::active_job::ActiveJob;
use crate::error::RestError;
use crate::job::until::Until;
use crate::metrics::rests::record_rest;
use crate::store::{RestArguments, RestState, in_short_tx, is_end_refused};

/// Bounds the wait for a pause that another transaction is changing.
const LIMIT: Duration = Duration::from_secs(5);

impl ActiveJob {
    /// Lets the job's group rest until `until`, a [`Duration`] from now or a time, by the clock of
    /// the database: no job of it starts before that. Other groups go on. It is for a partner that
    /// answers "too many requests" for one account: [`rest_queue`](Self::rest_queue) is for one
    /// that does so for all.
    ///
    /// The rest counts at once and whatever becomes of the attempt: it is written on a connection
    /// beside the pool, in no transaction of the handler's. The job itself goes on. It should
    /// return [`JobError::snooze`](crate::JobError::snooze): it keeps its place then, no attempt
    /// counts, and it runs when the rest is over.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use seriatim::{ActiveJob, JobError};
    /// # enum Answer { Done, TooMany { retry_after: Duration } }
    /// # async fn charge(_: i64) -> Result<Answer, std::io::Error> { Ok(Answer::Done) }
    /// async fn handle(job: &mut ActiveJob, cents: i64) -> Result<(), JobError> {
    ///     match charge(cents).await? {
    ///         Answer::Done => Ok(()),
    ///         Answer::TooMany { retry_after } => {
    ///             job.rest_group(retry_after, "429 from the payment provider").await?;
    ///             Err(JobError::snooze(retry_after))
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// A rest is a pause that ends by itself, and all that shows pauses shows it, with the job that
    /// asked for it and the reason. An operator may end it early by
    /// [`resume_group`](crate::admin::Operator::resume_group). It never shortens a pause: one
    /// that ends later, or by an operator alone, stays as it is. A pause that ends sooner, of a job
    /// or of an operator, takes the end and the reason of this rest.
    ///
    /// Returns whether the rest counts: `false` if such a longer pause stands, or `until` is over.
    /// The first 4,000 characters of the reason are kept.
    ///
    /// # Errors
    /// [`RestError::NoGroup`] for a job without a group; [`RestError::TakenOver`] if this attempt
    /// has lost its claim; [`RestError::OutOfRange`]; [`RestError::Busy`];
    /// [`RestError::Database`].
    ///
    /// # Cancel safety
    /// Not cancel safe: the rest may have been written.
    pub async fn rest_group(
        &self,
        until: impl Into<Until>,
        reason: &str,
    ) -> Result<bool, RestError> {
        if self.group.is_none() {
            return Err(RestError::NoGroup { job: self.id });
        }
        self.rest(RestArguments { whole_queue: false, until: until.into(), reason }).await
    }

    /// Lets the whole queue rest until `until`, as [`rest_group`](Self::rest_group) does with the
    /// job's group: no job of the queue starts in any process. Jobs that run, are being claimed, or
    /// were prefetched (0.1 s before at most) go on. [`resume_queue`] ends it early.
    ///
    /// # Errors
    /// As [`rest_group`](Self::rest_group), but for [`RestError::NoGroup`].
    ///
    /// # Cancel safety
    /// Not cancel safe: the rest may have been written.
    ///
    /// [`resume_queue`]: crate::admin::Operator::resume_queue
    pub async fn rest_queue(
        &self,
        until: impl Into<Until>,
        reason: &str,
    ) -> Result<bool, RestError> {
        self.rest(RestArguments { whole_queue: true, until: until.into(), reason }).await
    }

    async fn rest(&self, arguments: RestArguments<'_>) -> Result<bool, RestError> {
        let RestArguments { whole_queue, until, reason } = arguments;
        if let Some(suppressed) = &self.reporter.suppressed {
            let what = if whole_queue { "queue" } else { "group" };
            suppressed.note(format!("the {what} rests until {until}: {reason}"));
            return Ok(true);
        }
        let deadline = Instant::now() + LIMIT;
        loop {
            let state = self.try_rest(arguments).await.map_err(|error| {
                if is_end_refused(&error) { RestError::OutOfRange { until } } else { error.into() }
            })?;
            match state {
                RestState::Busy if Instant::now() < deadline => {}
                RestState::Busy => return Err(RestError::Busy { job: self.id }),
                RestState::Stale => return Err(RestError::TakenOver { job: self.id }),
                RestState::Kept => return Ok(false),
                RestState::Set => break,
            }
        }
        self.rests.store(true, Ordering::Relaxed);
        record_rest(&self.queue, whole_queue);
        let (queue, group) = (&*self.queue, self.group().filter(|_| !whole_queue));
        let what = if whole_queue { "queue" } else { "group" };
        let until = until.to_string();
        tracing::info!(
            target: "seriatim::job", queue, group, job = self.id, until, reason, "{what} rests"
        );
        Ok(true)
    }

    /// Tries once. It waits for half a second for a lock.
    async fn try_rest(&self, arguments: RestArguments<'_>) -> Result<RestState, sqlx::Error> {
        let receipt = format!("{}.{}", self.id, self.reporter.token);
        let rest = async |conn: &mut PgConnection| {
            let rest = async |conn: &mut PgConnection| {
                self.context.store.rest(conn, &receipt, arguments).await
            };
            in_short_tx(conn, rest).await
        };
        self.reporter.on_side(rest).await
    }
}
