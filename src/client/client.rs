//! The producer's and operator's side: migrate, enqueue, look, ask.

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
/// The free functions ([`migrate`](crate::migrate()), [`enqueue`](crate::enqueue()), …) are those of
/// `Client::default()`, which uses the schema `seriatim`.
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
    /// The job is running, or about to, or another transaction has its row. A request is left: the handler's
    /// [`cancelled`](crate::ActiveJob::cancelled) resolves, and if the attempt does not succeed, the job ends as
    /// `cancelled` instead of being retried.
    Requested,
}

/// What [`Client::retry`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retried {
    /// How many later jobs of the group have already begun to run, of those that retention still keeps: this job was
    /// meant to run before them.
    pub overtaken: u64,
}

impl Default for Client {
    /// The schema `seriatim`, data up to 1 MiB, wake-ups on.
    fn default() -> Self {
        Self { store: Store::default_schema(), data_limit: 1024 * 1024, notify: true }
    }
}

impl Client {
    /// A client for the tables in `schema`, which is a schema of its own: at most 50 bytes, any characters but control
    /// characters. An application of its own in the same database takes a schema of its own.
    pub fn new(schema: &str) -> Result<Self, NameError> {
        name::check_schema(schema)?;
        Ok(Self { store: Arc::new(Store::new(schema)), ..Self::default() })
    }

    /// The largest data of a job, in bytes of JSON or raw bytes. Default 1 MiB. It counts for enqueues through this client,
    /// not for the SQL function.
    pub fn data_limit(mut self, bytes: usize) -> Self {
        self.data_limit = bytes;
        self
    }

    /// Whether an enqueue wakes idle workers by `NOTIFY`. Default true.
    ///
    /// Even then not each does that comes in a burst, as `PostgreSQL` lets only one notifying transaction commit at a time:
    /// where sixteen jobs were enqueued into other idle groups in the last 20 ms, and no worker has taken them yet, the
    /// worker that comes for those looks again 30 ms later. A connection that saw so many relies on it for up to 10 ms. A job
    /// without a group wakes nobody where others wait. A job waits for the poll (0.5 s by default) if its transaction commits
    /// more than 20 ms later though it enqueued in its first 5 ms, if those sixteen came without wake-ups, or if they have
    /// filled all slots of the worker that looks again, and other workers are idle.
    ///
    /// Switched off, workers come by polling. Switch it off for transactions that are to be prepared (`PREPARE TRANSACTION`
    /// refuses one that has notified), and where thousands of longer transactions enqueue and commit per second. The SQL
    /// function `enqueue` has it on.
    pub fn notify(mut self, wake: bool) -> Self {
        self.notify = wake;
        self
    }

    /// Whether statements are prepared under names, once for a connection. Default true. A
    /// [`Processor`](crate::Processor) sees by itself what it needs.
    ///
    /// False is for connections through a transaction pooler that keeps no track of names (`PgBouncer` before 1.21): in a
    /// transaction everything works there then, whatever other clients left behind. What is called out of a transaction, on
    /// a pool, does not: the driver sends it in two parts, and each may meet another session.
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

    /// The schema's name.
    pub fn schema(&self) -> &str {
        self.store.names().schema()
    }

    /// Creates the schema and its tables, or brings them up to date.
    ///
    /// Safe to call from several processes at once and at every start; a role that may create nothing can call it on a
    /// schema that is up to date. All or nothing. The host's own migrations are not touched: the history is in the
    /// schema's table `migration`.
    ///
    /// A newer schema is left as it is, and logged, if this version can run on it: the version before the schema's always
    /// can. `docs/guide/upgrading.md` has the order of a deploy.
    ///
    /// # Errors
    /// [`MigrateError::Newer`] if this version is too old for the schema; [`MigrateError::Different`] if a different
    /// build of the same version made it, or one of its functions was changed by hand; [`MigrateError::Distributed`] and
    /// [`MigrateError::CitusOption`] if Citus would not leave it to its node; [`MigrateError::Database`] otherwise.
    pub async fn migrate(&self, pool: &PgPool) -> Result<(), MigrateError> {
        let schema = || self.schema().to_owned();
        let mut conn = pool
            .acquire()
            .await
            .map_err(|source| MigrateError::Database { schema: schema(), source })?;
        self.store.migrate(&mut conn).await
    }

    /// Enqueues one job: on a pool, a connection, or in the caller's transaction (`&mut *tx`), where it exists if and
    /// only if the transaction commits.
    ///
    /// It is one `INSERT` that waits for nobody: no handler, no worker, no other producer, at any isolation level. One
    /// exception: another open transaction with the same deduplication id ([`NewJob::dedup_id`]).
    ///
    /// # Errors
    /// [`EnqueueError`]; nothing was written then. An error from the database aborts the caller's transaction, as any
    /// failed statement does; the others are found before any SQL.
    pub async fn enqueue(
        &self,
        executor: impl PgExecutor<'_>,
        job: NewJob,
    ) -> Result<Enqueued, EnqueueError> {
        let mut enqueued = self.enqueue_many(executor, [job]).await?;
        enqueued.pop().ok_or(EnqueueError::Database(sqlx::Error::RowNotFound))
    }

    /// Enqueues any number of jobs in one statement; the results come in the order of the jobs. All or none.
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

    /// Enqueues those of many jobs that can be enqueued, in one statement; the results come in the order of the jobs. A
    /// job that fails its checks gets its error, which does not hold up the others.
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

    /// Changes what holds for a queue in the whole fleet. Settings that are not named stay as they are. In a
    /// transaction it takes effect when that commits; until then other calls for the same queue wait, and nobody else.
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

    /// What holds for a queue in the whole fleet; the defaults for one that was never configured.
    pub async fn queue_settings(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<StoredQueueSettings, sqlx::Error> {
        self.store.queue_settings(executor, queue).await
    }

    /// Cancels a job that has not ended. In a transaction it takes effect when that commits; until then the job's
    /// group waits.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it has ended; [`ControlError::Busy`] if it is parked
    /// and another transaction has its row; [`ControlError::Database`].
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

    /// Queues a dead job (failed or cancelled) again, with all its attempts. It keeps its id, and so runs next in its
    /// group. If it had halted the group, the group goes on. An expiry that has passed is forgotten.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it is not dead; [`ControlError::Busy`] if another
    /// transaction is changing it; [`ControlError::Parked`] if others were parked with it.
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

    /// Gives a job up, so that its group goes on: a queued one ends as `failed`; a failed one stays so, and the group
    /// that it halted goes on.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJob`]; [`ControlError::WrongStatus`] if it is running or has ended otherwise;
    /// [`ControlError::Busy`] if a worker or another transaction has it for a moment.
    pub async fn skip(&self, executor: impl PgExecutor<'_>, job: i64) -> Result<(), ControlError> {
        let report = self.store.skip(executor, job).await?;
        let skippable = [JobStatus::Queued, JobStatus::Failed];
        carried_out(report, job, &skippable, "skipped", "cancel a running one instead")
    }

    /// Lets a halted group go on with its next job. The job that halted it stays a dead letter. A group that is paused is
    /// resumed by [`resume_group`](Self::unpause_group).
    ///
    /// # Errors
    /// [`ControlError::NotHalted`], also while jobs of the group are being parked; [`ControlError::Database`].
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

    /// A job by its id; none if there is no such job, or retention has deleted it.
    pub async fn job(
        &self,
        executor: impl PgExecutor<'_>,
        id: i64,
    ) -> Result<Option<Job>, sqlx::Error> {
        self.store.job(executor, id).await
    }

    /// The first `most` unfinished jobs of a group, in the order in which they will run.
    pub async fn group_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        most: u32,
    ) -> Result<Vec<Job>, sqlx::Error> {
        self.store.group_jobs(executor, queue, group, most.into()).await
    }

    /// Up to `most` jobs of a queue with the caller's own id ([`NewJob::reference`]), the newest first, finished ones
    /// included.
    pub async fn jobs_by_reference(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        reference: &str,
        most: u32,
    ) -> Result<Vec<Job>, sqlx::Error> {
        self.store.jobs_by_reference(executor, queue, reference, most.into()).await
    }

    /// The halted groups of a queue, the longest halted first.
    pub async fn halted_groups(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<HaltedGroup>, sqlx::Error> {
        self.store.halted_groups(executor, queue).await
    }

    /// How many jobs of a queue are in which state. History does not slow it down: see [`QueueCounts`].
    pub async fn counts(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<QueueCounts, sqlx::Error> {
        self.store.counts(executor, queue).await
    }
}

/// Ok, or why a request was not carried out; one that was allowed met a locked row.
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

/// [`Client::migrate`] for the schema `seriatim`.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    Client::default().migrate(pool).await
}

/// [`Client::enqueue`] for the schema `seriatim`.
pub async fn enqueue(executor: impl PgExecutor<'_>, job: NewJob) -> Result<Enqueued, EnqueueError> {
    Client::default().enqueue(executor, job).await
}

/// [`Client::enqueue_many`] for the schema `seriatim`.
pub async fn enqueue_many(
    executor: impl PgExecutor<'_>,
    jobs: impl IntoIterator<Item = NewJob>,
) -> Result<Vec<Enqueued>, EnqueueError> {
    Client::default().enqueue_many(executor, jobs).await
}
