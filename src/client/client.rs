//! The handle of an application, for one schema, and the calls that need no job: migrate and
//! settings.

use std::sync::Arc;

use sqlx::{PgExecutor, PgPool};

use crate::error::{ControlError, MigrateError};
use crate::job::counts::{HaltedGroup, QueueCounts};
use crate::job::error::{ConfigureError, EnqueueError, NameError};
use crate::job::job::{Enqueued, Job, JobStatus};
use crate::job::name;
use crate::job::new_job::NewJob;
use crate::job::queue_settings::{QueueSettings, StoredQueueSettings};
use crate::job::redact::redact_detail;
use crate::store::{RequestReport, Store};

/// Everything but running jobs, for one schema. Cheap to clone; holds no connection.
///
/// The free functions ([`migrate`](crate::migrate()), [`enqueue`](crate::enqueue()), …) are those
/// of `Client::default()`, which uses the schema `seriatim`.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use seriatim::{Client, NewJob};
///
/// let jobs = Client::new("billing_jobs")?.data_limit(64 * 1024);
/// jobs.migrate(&pool).await?;
/// jobs.enqueue(&pool, NewJob::new("invoices", &7).group("customer-7")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) store: Arc<Store>,
    data_limit: usize,
    notify: bool,
}

/// What [`Client::cancel`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The job will not run.
    Now,
    /// The job is running, or about to run, or another transaction has its row. A request is left:
    /// the handler's [`cancelled`](crate::ActiveJob::cancelled) resolves. If the attempt does not
    /// succeed, the job ends as `cancelled` instead of being retried.
    Requested,
}

/// What [`Client::retry`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retried {
    /// The number of later jobs of the group that have already begun, of those that retention still
    /// keeps. The retried job was meant to run before them.
    pub overtaken: u64,
}

impl Default for Client {
    /// Returns a client for the schema `seriatim`, with data up to 1 MiB and wake-ups.
    fn default() -> Self {
        Self { store: Store::default_schema(), data_limit: 1024 * 1024, notify: true }
    }
}

impl Client {
    /// Returns a client for the tables in `schema`, which holds nothing else: at most 50 bytes,
    /// without control characters. Each application in a database needs its own schema.
    ///
    /// # Errors
    /// [`NameError`] if the name cannot be used.
    pub fn new(schema: &str) -> Result<Self, NameError> {
        name::check_schema(schema)?;
        Ok(Self { store: Arc::new(Store::new(schema)), ..Self::default() })
    }

    /// Limits the data of a job, in bytes of JSON or raw bytes. Default 1 MiB. It holds for
    /// enqueues through this client, not for the SQL function.
    pub fn data_limit(mut self, bytes: usize) -> Self {
        self.data_limit = bytes;
        self
    }

    /// Sets whether an enqueue wakes idle workers by `NOTIFY`. Default true.
    ///
    /// In a burst not every enqueue does, as `PostgreSQL` lets only one notifying transaction
    /// commit at a time. If sixteen jobs were enqueued into other idle groups in the last 20 ms,
    /// and no worker has taken them yet, the worker that comes for those claims again 30 ms later.
    /// A connection that saw so many relies on it for up to 10 ms. A job without a group wakes no
    /// worker if others wait. A job waits for the poll (0.5 s by default) in three cases: its
    /// transaction commits more than 20 ms after an enqueue in its first 5 ms; those sixteen came
    /// without wake-ups; or they have filled all slots of the worker that claims again, while other
    /// workers are idle.
    ///
    /// Without wake-ups, workers find jobs by polling. Switch them off for transactions that are to
    /// be prepared (`PREPARE TRANSACTION` refuses one that has notified), and if thousands of
    /// longer transactions enqueue and commit per second. The SQL function `enqueue` always wakes.
    pub fn notify(mut self, wake: bool) -> Self {
        self.notify = wake;
        self
    }

    /// Sets whether statements are prepared under names, once for a connection. Default true. A
    /// [`Processor`](crate::Processor) finds out by itself what it needs.
    ///
    /// False is for connections through a transaction pooler that keeps no track of names
    /// (`PgBouncer` before 1.21). Calls in a transaction work there then, whatever other clients
    /// left behind. Calls outside of a transaction, on a pool, do not: the driver sends them in two
    /// parts, and each may meet another session.
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use seriatim::{Client, NewJob};
    ///
    /// let jobs = Client::default().named_statements(false);
    /// let mut tx = pool.begin().await?;
    /// jobs.enqueue(&mut *tx, NewJob::new("invoices", &7).group("customer-7")).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn named_statements(mut self, names: bool) -> Self {
        self.store = Arc::new(self.store.apart(names));
        self
    }

    /// Returns the name of the schema.
    pub fn schema(&self) -> &str {
        self.store.names().schema()
    }

    /// Creates the schema and its tables, or brings them up to date, in one transaction.
    ///
    /// Several processes may call it at once and at every start. A role that may create nothing can
    /// call it on a schema that is up to date. The application's own migrations are not touched:
    /// the history is in the schema's table `migration`.
    ///
    /// # Errors
    /// [`MigrateError::Newer`] if the database was migrated by a newer seriatim;
    /// [`MigrateError::Different`] if by a different build of it; [`MigrateError::Database`]
    /// otherwise.
    pub async fn migrate(&self, pool: &PgPool) -> Result<(), MigrateError> {
        let schema = || self.schema().to_owned();
        let mut conn = pool
            .acquire()
            .await
            .map_err(|source| MigrateError::Database { schema: schema(), source })?;
        self.store.migrate(&mut conn).await
    }

    /// Enqueues one job: on a pool, on a connection, or in the caller's transaction (`&mut *tx`).
    /// There it exists if and only if the transaction commits.
    ///
    /// It is one `INSERT` that waits for nothing: no handler, no worker, no other producer, at any
    /// isolation level. One exception: another open transaction with the same deduplication id
    /// ([`NewJob::dedup_id`]).
    ///
    /// # Errors
    /// [`EnqueueError`]; nothing was written then. An error from the database aborts the caller's
    /// transaction, as any failed statement does; the others are found before any SQL.
    pub async fn enqueue(
        &self,
        executor: impl PgExecutor<'_>,
        job: NewJob,
    ) -> Result<Enqueued, EnqueueError> {
        let mut enqueued = self.enqueue_many(executor, [job]).await?;
        enqueued.pop().ok_or(EnqueueError::Database(sqlx::Error::RowNotFound))
    }

    /// Enqueues any number of jobs in one statement, all or none. Returns the results in the order
    /// of the jobs.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); the error names the job by its position.
    pub async fn enqueue_many(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        let checked = jobs
            .into_iter()
            .enumerate()
            .map(|(index, job)| job.check(index, self.data_limit))
            .collect::<Result<Vec<_>, _>>()?;
        if checked.is_empty() {
            return Ok(Vec::new());
        }
        let inserted = self.store.insert_jobs(executor, checked, self.notify).await;
        inserted.map_err(|error| EnqueueError::Database(redact_detail(error)))
    }

    /// Enqueues those of many jobs that pass their checks, in one statement. Returns the results in
    /// the order of the jobs: a job that fails its checks gets its error and does not hold up the
    /// others.
    ///
    /// # Errors
    /// [`EnqueueError::Database`]; nothing was written then.
    pub async fn enqueue_batch(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Result<Vec<Result<Enqueued, EnqueueError>>, EnqueueError> {
        let mut checked = Vec::new();
        let refusals: Vec<Option<EnqueueError>> = jobs
            .into_iter()
            .enumerate()
            .map(|(index, job)| {
                job.check(index, self.data_limit).map(|job| checked.push(job)).err()
            })
            .collect();
        let mut enqueued = Vec::new();
        if !checked.is_empty() {
            let inserted = self.store.insert_jobs(executor, checked, self.notify).await;
            enqueued = inserted.map_err(|error| EnqueueError::Database(redact_detail(error)))?;
        }
        let mut enqueued = enqueued.into_iter();
        refusals
            .into_iter()
            .map(|refusal| match refusal {
                Some(refusal) => Ok(Err(refusal)),
                None => {
                    enqueued.next().map(Ok).ok_or(EnqueueError::Database(sqlx::Error::RowNotFound))
                }
            })
            .collect()
    }

    /// Changes the settings of a queue for the whole fleet. Settings that are not named stay as
    /// they are. In a transaction it takes effect when that commits; until then only other calls
    /// for the same queue wait.
    ///
    /// # Errors
    /// [`ConfigureError`]; nothing was changed then.
    pub async fn configure_queue(
        &self,
        executor: impl PgExecutor<'_>,
        settings: QueueSettings,
    ) -> Result<(), ConfigureError> {
        let change = settings.check()?;
        Ok(self.store.configure_queue(executor, change).await?)
    }

    /// Returns the settings of a queue; the defaults if it was never configured.
    pub async fn queue_settings(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<StoredQueueSettings, sqlx::Error> {
        self.store.queue_settings(executor, queue).await
    }

    /// Cancels a job that has not ended. In a transaction it takes effect when that commits; until
    /// then the job's group waits.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it has ended;
    /// [`ControlError::Busy`] if it is parked and another transaction has its row;
    /// [`ControlError::Database`].
    pub async fn cancel(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<Cancelled, ControlError> {
        let report = self.store.cancel(executor, job).await?;
        match report.status {
            Some(_) if report.done => Ok(Cancelled::Now),
            Some(JobStatus::Queued | JobStatus::Started) => Ok(Cancelled::Requested),
            Some(JobStatus::Parked) => Err(ControlError::Busy { id: job }),
            status => Err(refused(job, status, "cancelled", "it has ended")),
        }
    }

    /// Queues a failed or cancelled job again, with all its attempts. It keeps its id, and so runs
    /// next in its group. A halt of the group by this job ends. An expiry that has passed is
    /// cleared.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it is neither failed nor
    /// cancelled; [`ControlError::Busy`] if another transaction is changing it;
    /// [`ControlError::Parked`] if others were parked with it; [`ControlError::Database`].
    pub async fn retry(
        &self,
        executor: impl PgExecutor<'_>,
        job: i64,
    ) -> Result<Retried, ControlError> {
        let report = self.store.retry(executor, job).await?;
        if report.parked {
            return Err(ControlError::Parked { id: job });
        }
        let dead = [JobStatus::Failed, JobStatus::Cancelled];
        carried_out(report, job, &dead, "retried", "only a failed or cancelled job can be")?;
        Ok(Retried { overtaken: report.overtaken })
    }

    /// Gives a job up, so that its group goes on: a queued job ends as `failed`; a failed job stays
    /// failed, and the halt of its group ends.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it is running or has ended
    /// otherwise; [`ControlError::Busy`] if a worker or another transaction has it for a moment;
    /// [`ControlError::Database`].
    pub async fn skip(&self, executor: impl PgExecutor<'_>, job: i64) -> Result<(), ControlError> {
        let report = self.store.skip(executor, job).await?;
        let skippable = [JobStatus::Queued, JobStatus::Failed];
        carried_out(report, job, &skippable, "skipped", "cancel a running one instead")
    }

    /// Ends a halt: the group goes on with its next job. The job that halted it stays a dead
    /// letter. [`unpause_group`](Self::unpause_group) ends a pause.
    ///
    /// # Errors
    /// [`ControlError::NotHalted`], also while jobs of the group are being parked;
    /// [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn unhalt_group(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
    ) -> Result<(), ControlError> {
        name::check_queue(queue)?;
        name::check("group", group, name::GROUP_LIMIT)?;
        if self.store.unhalt_group(executor, queue, group).await? {
            return Ok(());
        }
        Err(ControlError::NotHalted { queue: queue.to_owned(), group: group.to_owned() })
    }

    /// Returns a job by its id; `None` if there is no such job, or retention has deleted it.
    pub async fn job(
        &self,
        executor: impl PgExecutor<'_>,
        id: i64,
    ) -> Result<Option<Job>, sqlx::Error> {
        self.store.job(executor, id).await
    }

    /// Returns the first `limit` unfinished jobs of a group, in the order in which they will run.
    pub async fn group_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        most: u32,
    ) -> Result<Vec<Job>, sqlx::Error> {
        self.store.group_jobs(executor, queue, group, most.into()).await
    }

    /// Returns up to `limit` jobs of a queue with the producer's own id ([`NewJob::reference`]),
    /// the newest first, finished ones included.
    pub async fn jobs_by_reference(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        reference: &str,
        most: u32,
    ) -> Result<Vec<Job>, sqlx::Error> {
        self.store.jobs_by_reference(executor, queue, reference, most.into()).await
    }

    /// Returns the halted groups of a queue, the longest halted first.
    pub async fn halted_groups(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<HaltedGroup>, sqlx::Error> {
        self.store.halted_groups(executor, queue).await
    }

    /// Returns the numbers of a queue's jobs by state. A long history does not slow it down: see
    /// [`QueueCounts`].
    pub async fn counts(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<QueueCounts, sqlx::Error> {
        self.store.counts(executor, queue).await
    }
}

/// Returns why a request was not carried out. An allowed one that was not done met a locked row.
fn carried_out(
    report: RequestReport,
    job: i64,
    allowed: &[JobStatus],
    request: &'static str,
    advice: &'static str,
) -> Result<(), ControlError> {
    match report.status {
        Some(_) if report.done => Ok(()),
        Some(status) if allowed.contains(&status) => Err(ControlError::Busy { id: job }),
        status => Err(refused(job, status, request, advice)),
    }
}

fn refused(
    id: i64,
    status: Option<JobStatus>,
    request: &'static str,
    advice: &'static str,
) -> ControlError {
    match status {
        None => ControlError::NoSuchJob { id },
        Some(status) => ControlError::WrongStatus { id, status, request, advice },
    }
}

/// Calls [`Client::migrate`] for the schema `seriatim`.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    Client::default().migrate(pool).await
}

/// Calls [`Client::enqueue`] for the schema `seriatim`.
pub async fn enqueue(executor: impl PgExecutor<'_>, job: NewJob) -> Result<Enqueued, EnqueueError> {
    Client::default().enqueue(executor, job).await
}

/// Calls [`Client::enqueue_many`] for the schema `seriatim`.
pub async fn enqueue_many(
    executor: impl PgExecutor<'_>,
    jobs: impl IntoIterator<Item = NewJob>,
) -> Result<Vec<Enqueued>, EnqueueError> {
    Client::default().enqueue_many(executor, jobs).await
}
