//! A test's handle to jobs: runs them, waits for them, lists them.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use tokio::time::{Instant, sleep};

use crate::admin::QueueCounts;
use crate::attempt::turn::{AttemptHooks, QueueRuntime};
use crate::job::reason::failed_call;
use crate::liveness::context::Context;
use crate::maintenance::schedules::fire_schedules;
use crate::store::WorkConnection;
use crate::testing::drain::{Drain, DrainedQueue, POLL};
use crate::{Client, Job, JobHandler, QueueOptions};

/// How long schedules that wait for locks are tried.
const LOCKED: Duration = Duration::from_secs(5);

/// Runs and reads jobs from a test, with or without a processor.
///
/// ```no_run
/// # use seriatim::{ActiveJob, JobError, JobHandler, NewJob, QueueOptions, async_trait};
/// # struct Post;
/// # #[async_trait]
/// # impl JobHandler for Post {
/// #     type Data = u32; type Output = u32; type Error = JobError;
/// #     async fn handle(&self, _: &mut ActiveJob, n: u32) -> Result<u32, JobError> { Ok(n) }
/// # }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use seriatim::testing::{Jobs, TestDatabase};
///
/// let database = TestDatabase::create().await?;
/// let jobs = Jobs::new(database.pool());
///
/// // … code that is to enqueue a job …
/// # seriatim::enqueue(database.pool(), NewJob::new("postings", &7).group("account-42")).await?;
/// assert_eq!(jobs.enqueued("postings").await?[0].group.as_deref(), Some("account-42"));
///
/// let ran = jobs.run_next(QueueOptions::new("postings"), Post).await?;
/// assert!(ran.is_some_and(|job| job.error.is_none()));
/// database.remove().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Jobs {
    pool: PgPool,
    client: Client,
}

/// A queue did not become idle in time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The queue still has work.
    #[error("queue {queue:?} was not idle after {limit:?}: {counts:?}")]
    NotIdle {
        /// The queue.
        queue: String,
        /// How long the call waited.
        limit: Duration,
        /// The work that is left.
        counts: QueueCounts,
    },
    /// The database could not be reached.
    #[error("{}", failed_call("read of the queue", .0))]
    Database(#[from] sqlx::Error),
}

impl Jobs {
    /// Returns a handle to the jobs of the schema `seriatim`.
    pub fn new(pool: &PgPool) -> Self {
        Self::of(pool, &Client::default())
    }

    /// Returns a handle to the jobs of `client`'s schema.
    pub fn of(pool: &PgPool, client: &Client) -> Self {
        Self { pool: pool.clone(), client: client.clone() }
    }

    /// Returns every job of `queue` that the database has, in the order of their enqueues, finished
    /// ones included.
    pub async fn enqueued(&self, queue: &str) -> Result<Vec<Job>, sqlx::Error> {
        self.client.store.all_jobs(&self.pool, queue).await
    }

    /// Runs the next due job of the queue in this task, through the same claim, hold and settle as
    /// a processor. Returns the job as it is afterwards; `None` if no job was due, or if the queue
    /// does not keep jobs of that status.
    pub async fn run_next(
        &self,
        queue: QueueOptions,
        handler: impl JobHandler,
    ) -> Result<Option<Job>, sqlx::Error> {
        match self.in_one_task(queue, handler).run_next().await? {
            Some(id) => self.client.job(&self.pool, id).await,
            None => Ok(None),
        }
    }

    /// Fires the schedules that are due at `now`, as processors with maintenance do by the
    /// database's clock. Returns how many jobs were made. A schedule whose job waits for a lock is
    /// tried for 5 s, and then left as it is.
    pub async fn fire_schedules(&self, now: DateTime<Utc>) -> Result<u64, sqlx::Error> {
        let mut conn = WorkConnection::from(self.pool.acquire().await?);
        let (mut jobs, deadline) = (0, Instant::now() + LOCKED);
        let refused = loop {
            let fired = fire_schedules(&self.client.store, &mut conn, Some(now)).await?;
            jobs += fired.jobs;
            if !fired.refused.is_empty() || fired.waiting == 0 || Instant::now() >= deadline {
                break fired.refused;
            }
        };
        conn.done();
        match refused.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(jobs),
        }
    }

    /// Runs jobs of the queue in this task, one after the other, until none is due. Returns the
    /// number of attempts. A job that is delayed or waits for a retry is left, and so are the jobs
    /// behind it. [`Processor::drain`](crate::Processor::drain) does so with all queues of a
    /// processor, and its layers.
    pub async fn drain(
        &self,
        queue: QueueOptions,
        handler: impl JobHandler,
    ) -> Result<usize, sqlx::Error> {
        self.in_one_task(queue, handler).run_all(false).await
    }

    /// Runs jobs of the queue as [`drain`](Self::drain) does, and does not wait for delays, retries
    /// and snoozes: when no job is due, all that wait for their time are made due. Returns the
    /// number of attempts, when none waits for its time. A job that fails each time is tried as
    /// often as its policy says, and then its group does what the policy says.
    ///
    /// A pause stays, also one that a job asked for ([`rest_group`](crate::ActiveJob::rest_group)):
    /// end it by [`resume_group`](crate::admin::Operator::resume_group).
    ///
    /// The clock stays: a job that looks at the time sees the time of the test.
    pub async fn drain_ignoring_delays(
        &self,
        queue: QueueOptions,
        handler: impl JobHandler,
    ) -> Result<usize, sqlx::Error> {
        self.in_one_task(queue, handler).run_all(true).await
    }

    /// Waits until `queue` has no unfinished job and no ready group, for at most `limit`. A
    /// processor must be running. A halted group counts as idle only if it has no unfinished job.
    ///
    /// # Errors
    /// [`WaitError::NotIdle`] with the work that is left; [`WaitError::Database`].
    pub async fn wait_until_idle(&self, queue: &str, limit: Duration) -> Result<(), WaitError> {
        let deadline = Instant::now() + limit;
        while !self.client.store.is_idle(&self.pool, queue).await? {
            if Instant::now() >= deadline {
                let counts = self.client.counts(&self.pool, queue).await?;
                return Err(WaitError::NotIdle { queue: queue.to_owned(), limit, counts });
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Returns a queue whose jobs run in this task.
    fn in_one_task(&self, queue: QueueOptions, handler: impl JobHandler) -> Drain {
        let store = Arc::clone(&self.client.store);
        let settings = self.client.enqueue.clone();
        let context = Arc::new(Context::new(store, (None, &self.pool), settings, None));
        let hooks = AttemptHooks::default();
        let queue = Arc::new(QueueRuntime::in_one_task(queue, Arc::new(handler), hooks));
        let queues = vec![DrainedQueue { pool: self.pool.clone(), context, queue }];
        Drain { client: self.client.clone(), queues }
    }
}
