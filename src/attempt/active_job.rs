//! The handler's view of its job, and the transaction that holds it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::attempt::connection::SlotConnection;
use crate::attempt::failure::{broken_transaction, ended_by_hand, not_left, refused_success};
use crate::attempt::hold::{HeldJob, hold};
use crate::attempt::lost::taken_over;
use crate::attempt::reports::{Reporter, Reports};
use crate::job::bytes::JobData;
use crate::job::error::{EnqueueError, ProgressError};
use crate::job::headers::{self, Headers};
use crate::job::job::{Enqueued, FailureKind};
use crate::job::job_error::storable_text;
use crate::job::new_job::NewJob;
use crate::job::outcome::RunResult;
use crate::job::progress::{MAX_PERCENT, MESSAGE_LIMIT, checkpoint_json};
use crate::job::redact::json_error;
use crate::job::retry::MAX_DELAY;
use crate::job::waits::Waits;
use crate::liveness::context::Context;
use crate::liveness::leases::LeaseGuard;
use crate::liveness::sessions::SessionWatch;
use crate::slots::queue_slots::SlotGuard;
use crate::store::{
    Claim, FREE_PLANS, Hold, NOTE_SETTINGS, PINNED_PLANS, RESTORE_SETTINGS, note_handlers_session,
    transaction,
};

/// Savepoint statements. sqlx did not begin the transaction, and counts the handler's first
/// savepoint as one, so the statements are given to it. Plans are the handler's own after the
/// savepoint, and pinned again after a success.
const SAVEPOINT: &str = "savepoint seriatim_handler; ";
/// Before the savepoint is released, so that an error rolls back to it. Constraints are checked as
/// the handler's role.
const LEAVE: &str = "set local statement_timeout = 0; set constraints all immediate; ";
const RELEASE: &str = "; release savepoint seriatim_handler";
const UNDO: &str = "rollback to savepoint seriatim_handler; release savepoint seriatim_handler";

/// The error of a transaction that is asked for where there is none.
const NO_DATABASE: &str = "this job has no database, because a `testing::TestJob` runs its handler: to test code that calls \
    `tx()` or `enqueue()`, run the job on a `testing::TestDatabase`, by `testing::Jobs` or `Processor::drain`";

/// The job that a handler runs, and the transaction that holds it.
pub struct ActiveJob {
    pub(crate) context: Arc<Context>,
    pub(crate) id: i64,
    pub(crate) queue: Arc<str>,
    pub(crate) group: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    pub(crate) snoozes: u32,
    /// The delay before another run, if the handler has asked for one.
    pub(crate) again: Option<Duration>,
    /// It has asked for a rest: its turn ends with it.
    pub(crate) rests: AtomicBool,
    pub(crate) name: Option<String>,
    pub(crate) reference: Option<String>,
    pub(crate) headers: Headers,
    pub(crate) priority: u8,
    pub(crate) content_type: Option<String>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) run_at: DateTime<Utc>,
    pub(crate) waits: Waits,
    pub(crate) guard: HoldGuard,
    pub(crate) savepoint: Savepoint,
    pub(crate) cancelled: CancellationToken,
    /// Its claim, for its reports.
    pub(crate) reporter: Reporter,
    /// `None` until the handler first reports, or asks for its last checkpoint.
    pub(crate) reports: Option<Reports>,
    /// The slot under a lease: free again when the settler has the job.
    pub(crate) slot: Option<SlotGuard>,
}

/// The guard of the hold: row locks or a lease.
#[derive(Debug)]
pub(crate) enum HoldGuard {
    Locked(Locks),
    Leased(Lease),
}

/// Row locks, in a transaction that is open on a connection.
#[derive(Debug)]
pub(crate) struct Locks {
    pub(crate) conn: SlotConnection,
    pub(crate) hold: Hold,
    pub(crate) watch: SessionWatch,
}

/// A lease, and the data to replace it by row locks.
pub(crate) struct Lease {
    pub(crate) context: Arc<Context>,
    /// `None`: a test runs the job without a database.
    pub(crate) pool: Option<PgPool>,
    pub(crate) claim: Claim,
    pub(crate) time: Duration,
    pub(crate) guard: LeaseGuard,
    /// True while a first `tx()` waits for a connection of the pool.
    pub(crate) waits: Arc<AtomicBool>,
    /// Asks for the record of the turn's earlier successes: the handler's own transaction would
    /// lock their rows.
    pub(crate) record_first: Option<mpsc::UnboundedSender<oneshot::Sender<()>>>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("claim", &self.claim).finish_non_exhaustive()
    }
}

impl Lease {
    /// Locks the job by its token, on a connection of the pool.
    async fn lock(&self, queue: &Arc<str>) -> Result<Locks, sqlx::Error> {
        let (answer, recorded) = oneshot::channel();
        if self.record_first.as_ref().is_some_and(|ask| ask.send(answer).is_ok()) {
            // Dropped unanswered if the handler is dropped.
            let _ = recorded.await;
        }
        let signals = &self.guard.signals;
        let Some((conn, held)) = self.lock_on(self.connect(queue).await?).await? else {
            return Err(taken_over(signals));
        };
        let HeldJob { hold, asked_at, .. } = held;
        let (options, signals) = (conn.options.clone(), signals.clone());
        let watch =
            self.context.session_monitor.watch(self.claim.job, hold, options, asked_at, signals);
        Ok(Locks { conn, hold, watch })
    }

    /// Locks the job on this connection. `None` if the claim is lost.
    async fn lock_on(
        &self,
        mut conn: SlotConnection,
    ) -> Result<Option<(SlotConnection, HeldJob)>, sqlx::Error> {
        let context = Arc::clone(&self.context);
        let (claim, lease) = (self.claim.clone(), self.time);
        // In a task of its own: a begin that is dropped half-way leaves the connection in an
        // unknown state.
        let locking = tokio::spawn(async move {
            match hold(&context, &claim, lease, &mut conn).await {
                Ok(Some(held)) => Ok(Some((conn, held))),
                Ok(None) => Ok(None),
                Err(error) => {
                    conn.close();
                    Err(error)
                }
            }
        });
        locking.await.map_err(|error| sqlx::Error::Io(std::io::Error::other(error)))?
    }

    /// Waits for a connection of the pool, as long as the job's own timeout allows. The lease holds
    /// the job meanwhile.
    async fn connect(&self, queue: &str) -> Result<SlotConnection, sqlx::Error> {
        let Some(pool) = &self.pool else {
            return Err(sqlx::Error::InvalidArgument(NO_DATABASE.to_owned()));
        };
        let _waiting = Waiting::begin(&self.waits);
        loop {
            let options = pool.connect_options();
            match pool.acquire().await {
                Err(sqlx::Error::PoolTimedOut) => {
                    self.context.report_exhausted_pool(queue, pool);
                }
                answer => {
                    let mut conn = SlotConnection::from(answer?);
                    conn.options = Some(options);
                    return Ok(conn);
                }
            }
        }
    }
}

/// A wait for a connection, over when it is dropped.
struct Waiting<'a>(&'a AtomicBool);

impl<'a> Waiting<'a> {
    fn begin(waits: &'a AtomicBool) -> Self {
        waits.store(true, Ordering::Relaxed);
        Self(waits)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The savepoint before the handler's writes, which can be rolled back while the locks stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Savepoint {
    None,
    /// Being set. If a later call finds this state, the future that set it was dropped, and the
    /// transaction is broken.
    Entering,
    Set,
}

impl ActiveJob {
    /// The job's id. It gives the order of the group, and may be given again after an asynchronous
    /// failover: other services take [`key`](Self::key).
    pub fn id(&self) -> i64 {
        self.id
    }

    /// The key for calls to other services, to make them once: the same for each attempt of the
    /// job, and for no other job of this schema. It is the id and the time of the enqueue in
    /// microseconds, as in `17-1767225600000000`.
    ///
    /// A standby that is promoted without all that its primary had may give ids again. So an id
    /// alone may have been seen by the other service, for a job that was lost.
    pub fn key(&self) -> String {
        format!("{}-{}", self.id, self.created_at.timestamp_micros())
    }

    /// The job's queue.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The job's group, if it has one.
    pub fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// The number of this attempt, from 1. Attempts that a shutdown ended count here too.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The number of attempts that the job may use up.
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// How often the job was [put off](crate::JobError::snooze) or asked to run
    /// [again](Self::again_after), since it was enqueued or retried by hand.
    pub fn snoozes(&self) -> u32 {
        self.snoozes
    }

    /// Asks for another run of this job, `delay` (at most 100 years) after this one: for work in
    /// steps, or a partner that is asked again and again. It counts if the handler returns `Ok`:
    /// the writes of [`tx`](Self::tx) are committed, the output is dropped, and the job keeps its
    /// place. The rest of the group waits. No attempt counts. The last call counts.
    ///
    /// A job may do so [`max_snoozes`](crate::QueueOptions::max_snoozes) times; the next one is a
    /// failed attempt, whose writes are rolled back. A handler that is about to be the last one
    /// sees it by [`snoozes`](Self::snoozes).
    ///
    /// A request to cancel the job counts when it comes again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use seriatim::{ActiveJob, JobError};
    /// async fn copy_a_page(job: &mut ActiveJob) -> Result<(), JobError> {
    ///     let copy = "WITH page AS (
    ///                   DELETE FROM old_row
    ///                   WHERE id IN (SELECT id FROM old_row LIMIT 500) RETURNING *)
    ///                 INSERT INTO new_row SELECT * FROM page";
    ///     let copied = sqlx::query(copy).execute(job.tx().await?).await?;
    ///     if copied.rows_affected() > 0 {
    ///         job.again_after(Duration::ZERO);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn again_after(&mut self, delay: Duration) {
        self.again = Some(delay.min(MAX_DELAY));
    }

    /// Says how far the job is: `percent` of the work is done (0 to 100), and a message, which is
    /// cut to 400 characters. Pages, lists and explanations show it while the job has not
    /// succeeded, as in "40 %, page 4 of 10". The last call counts.
    ///
    /// It is only noted here, and written beside the handler, at most once a second. It is best
    /// effort: a database that is away fails no job. It is not part of [`tx`](Self::tx): it is seen
    /// at once, and it stays if the attempt fails. A success deletes it.
    ///
    /// # Errors
    /// [`ProgressError::OutOfRange`] above 100.
    ///
    /// ```
    /// # use seriatim::{ActiveJob, JobError};
    /// async fn copy_pages(job: &mut ActiveJob) -> Result<(), JobError> {
    ///     for page in 0..10 {
    ///         job.progress(page * 10, &format!("page {} of 10", page + 1))?;
    ///         // … copy it …
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn progress(&mut self, percent: u8, message: &str) -> Result<(), ProgressError> {
        if percent > MAX_PERCENT {
            return Err(ProgressError::OutOfRange { percent });
        }
        let message = storable_text(message).chars().take(MESSAGE_LIMIT).collect();
        self.reports().progress(percent, message);
        Ok(())
    }

    /// Keeps a checkpoint for the next attempt, in place of the one before: as JSON of up to 64
    /// KiB. [`last_checkpoint`](Self::last_checkpoint) returns it. It is kept over failed attempts,
    /// lost workers, snoozes, and a retry or a redrive by hand, until the job succeeds or is
    /// deleted.
    ///
    /// It is not part of the job's transaction, and so **the one write that a failed attempt
    /// leaves**. Writes through [`tx`](Self::tx) are rolled back then: an attempt that goes on at
    /// the checkpoint would skip them. Keep checkpoints of work that stays: calls to other
    /// services, or commits of a connection of your own. For steps that commit with the job take
    /// [`again_after`](Self::again_after).
    ///
    /// At most one write a second is made for each job. A call that comes sooner keeps the value in
    /// memory and returns; it is written with the next, and when the attempt ends without success.
    /// So after a crash the next attempt may begin at a checkpoint that is a second older: the work
    /// in between is done again.
    ///
    /// # Cancel safety
    /// Cancel safe: if the call is dropped, the checkpoint is kept all the same.
    ///
    /// # Errors
    /// [`ProgressError::Serialize`] and [`ProgressError::TooLarge`]: it is not kept.
    /// [`ProgressError::Database`] and [`ProgressError::NotHeld`]: it, or one before, could not be
    /// written; it stays in memory, and is tried again each second. A worker that has lost its
    /// claim writes nothing.
    pub async fn checkpoint<T: Serialize + ?Sized>(
        &mut self,
        checkpoint: &T,
    ) -> Result<(), ProgressError> {
        let json = checkpoint_json(checkpoint)?;
        self.reports().checkpoint(json.into()).await
    }

    /// Returns the last [`checkpoint`](Self::checkpoint) of the job, of this attempt or of one
    /// before; `None` if there is none. The first call reads it, on a connection beside the pool.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`ProgressError::Decode`]: it is no `T`, as after an upgrade of the program.
    /// [`ProgressError::Database`].
    ///
    /// ```no_run
    /// # use seriatim::{ActiveJob, JobError};
    /// # async fn import(lines: std::ops::Range<u64>) -> Result<(), JobError> { Ok(()) }
    /// async fn import_file(job: &mut ActiveJob) -> Result<(), JobError> {
    ///     let mut line = job.last_checkpoint::<u64>().await?.unwrap_or(0);
    ///     while line < 1_000_000 {
    ///         import(line..line + 500).await?;
    ///         line += 500;
    ///         job.checkpoint(&line).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn last_checkpoint<T: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<T>, ProgressError> {
        let Some(json) = self.reports().last_checkpoint().await? else { return Ok(None) };
        let decoded = serde_json::from_str(&json);
        decoded.map(Some).map_err(|e| ProgressError::Decode { reason: json_error(&e) })
    }

    fn reports(&mut self) -> &mut Reports {
        self.reports.get_or_insert_with(|| self.reporter.clone().reports())
    }

    /// The kind of job, as the producer named it ([`NewJob::name`](crate::NewJob::name)).
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The headers of the job, by name ([`NewJob::header`](crate::NewJob::header)).
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.headers
    }

    /// The due time that a [`Schedule`](crate::Schedule) made the job for: the place of this run in
    /// the schedule, however late it is. `None` if no schedule made it.
    pub fn scheduled_for(&self) -> Option<DateTime<Utc>> {
        headers::scheduled_for(&self.headers)
    }

    /// The batch whose follow-up the job is ([`NewBatch`](crate::NewBatch)): for
    /// [`Client::batch_jobs`](crate::Client::batch_jobs). `None` if it is no follow-up.
    pub fn ended_batch(&self) -> Option<i64> {
        headers::ended_batch(&self.headers)
    }

    /// The id of the processor that runs the job, as
    /// [`Client::processors`](crate::Client::processors) has it.
    pub fn processor_id(&self) -> i64 {
        self.context.processor
    }

    /// Returns whether this is a [rehearsal](crate::Client::rehearse): what is not written through
    /// [`tx`](Self::tx) would not be undone.
    pub fn is_rehearsal(&self) -> bool {
        self.reporter.suppressed.as_ref().is_some_and(|calls| calls.is_rehearsal())
    }

    /// Returns how many bytes of JSON the handler's output may have: as many as data.
    pub(crate) fn output_limit(&self) -> usize {
        self.context.enqueue.data_limit
    }

    /// The producer's own id of the job ([`NewJob::reference`](crate::NewJob::reference)).
    pub fn reference(&self) -> Option<&str> {
        self.reference.as_deref()
    }

    /// The priority, 0 to 9; a higher priority is served sooner.
    pub fn priority(&self) -> u8 {
        self.priority
    }

    /// The content type of the job's raw bytes; `None` for a job with JSON data.
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// The time when the job was enqueued.
    pub fn created_at(&self) -> DateTime<Utc> {
        self.created_at
    }

    /// The time when the job was due.
    pub fn run_at(&self) -> DateTime<Utc> {
        self.run_at
    }

    /// How long the job waited, from when it was due, for its place in its group: until the jobs
    /// before it had ended, or its group was no longer halted. Zero for a job without a group. More
    /// slots do not shorten this wait.
    ///
    /// With [`slot_wait`](Self::slot_wait) it is the whole time from when the job was due
    /// (enqueued, at its [delay](crate::NewJob::delay), or to be retried) until this attempt began.
    /// It is measured by the database's clock up to the claim, and by this process's from there on.
    /// An attempt that takes a lost one over has waited since it could be taken over.
    pub fn lane_wait(&self) -> Duration {
        self.waits.lane
    }

    /// How long the job waited, from when it was due and its group was ready for it, until this
    /// attempt began: for a claim and a free slot. Zero for a job that runs in the same turn behind
    /// another one. A limit of jobs in flight counts here as well, and so does a pause, but for one
    /// of the group that ended by itself.
    pub fn slot_wait(&self) -> Duration {
        self.waits.slot
    }

    /// The transaction that holds the job's and the group's row locks. Under
    /// [`Hold::Lease`](crate::Hold::Lease) the first call opens it, on a connection of the
    /// processor's pool.
    ///
    /// Writes through it commit together with the job's success. If the attempt fails, they are
    /// rolled back, and the failure is recorded all the same. Jobs enqueued through it exist if and
    /// only if this job succeeds. `begin()` on it gives a savepoint. It borrows the job: copy
    /// values that are bound beside it, such as `job.group()`, before the call.
    ///
    /// Its isolation level is READ COMMITTED, and it has no statement timeout: the job's timeout
    /// counts.
    ///
    /// Change settings with `SET LOCAL`, or `set_config(…, true)`: they end with the transaction.
    /// Other jobs use the connection next and, under a lease, the application does. They find what
    /// a handler that succeeded has left in the session: a plain `SET`, session advisory locks,
    /// temporary tables (unless `ON COMMIT DROP`), `LISTEN`, and the effects of `DEALLOCATE`. The
    /// library restores only the role, the session's user, `search_path`, `row_security`,
    /// `client_encoding` and the defaults of transactions, because its own statements follow. A
    /// statement timeout of the handler holds for the handler's own statements. A failed attempt
    /// leaves no settings.
    ///
    /// Do not send `COMMIT` or `ROLLBACK`: that gives the locks up. Such a job has failed for good
    /// ([`FailureKind::TransactionEnded`](crate::FailureKind::TransactionEnded)), whatever its
    /// handler returns. Another attempt would write again what was committed, and what was sent
    /// behind it, each statement of which commits by itself. A handler that goes on is dropped
    /// about 0.6 s later. If its process dies before, or its session is lost, the job runs again.
    /// For parts of the work use a savepoint, for what must stay in any case a connection of your
    /// own.
    ///
    /// Under a lease the first call waits for a connection until the job's own timeout, however
    /// short the pool's `acquire_timeout` is. An attempt whose timeout passes meanwhile does not
    /// count, and the job keeps its place.
    ///
    /// # Cancel safety
    /// A first call that is dropped before it returns ends the attempt as failed. Under a lease it
    /// may be dropped while it waits for a connection.
    ///
    /// # Errors
    /// The database's error. The hold is lost then, and the attempt will be retried.
    pub async fn tx(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        if let HoldGuard::Leased(lease) = &self.guard {
            // From here on the locks hold the job, and its lease is not extended any more.
            self.guard = HoldGuard::Locked(lease.lock(&self.queue).await?);
        }
        let HoldGuard::Locked(Locks { conn, .. }) = &mut self.guard else {
            return Err(sqlx::Error::PoolClosed);
        };
        match self.savepoint {
            Savepoint::Set => {}
            Savepoint::None => {
                note_handlers_session();
                self.savepoint = Savepoint::Entering;
                let savepoint = [SAVEPOINT, NOTE_SETTINGS, FREE_PLANS].concat();
                if transaction::depth(conn) == 0 {
                    transaction::begin(conn, savepoint).await?;
                } else {
                    // sqlx still counts the savepoint of an earlier job of the rehearsal.
                    sqlx::raw_sql(AssertSqlSafe(savepoint)).execute(&mut **conn).await?;
                }
                self.savepoint = Savepoint::Set;
            }
            Savepoint::Entering => {
                let message = "an earlier call of ActiveJob::tx was dropped, which broke the job's transaction";
                return Err(sqlx::Error::Protocol(message.to_owned()));
            }
        }
        Ok(conn)
    }

    /// Enqueues a job in the processor's schema, in the transaction of [`tx`](Self::tx): it exists
    /// if and only if this job succeeds. The limits, layers and wake-ups are those of the
    /// processor's [`client`](crate::ProcessorBuilder::client).
    ///
    /// Under a [`Hold::Lease`](crate::Hold::Lease) the first call opens that transaction, as `tx`
    /// does. A job that is to exist at once, or whatever becomes of this one, is enqueued through a
    /// [`Client`](crate::Client) on a pool: each attempt enqueues it again, unless it has a
    /// [deduplication id](crate::NewJob::dedup_id).
    ///
    /// # Errors
    /// [`EnqueueError`]. After [`EnqueueError::Database`] the transaction is broken, and the
    /// attempt will be retried.
    pub async fn enqueue(&mut self, job: impl Into<NewJob>) -> Result<Enqueued, EnqueueError> {
        let context = Arc::clone(&self.context);
        let conn = self.tx().await.map_err(EnqueueError::Database)?;
        context.store.enqueue(conn, job.into(), &context.enqueue).await
    }

    /// Reads the job's data, which the claim has left out.
    pub(crate) async fn read_data(&mut self) -> Result<JobData, sqlx::Error> {
        let (context, id) = (Arc::clone(&self.context), self.id);
        if let HoldGuard::Leased(lease) = &self.guard {
            let mut conn = lease.connect(&self.queue).await?;
            return context.store.job_data(&mut conn, id).await;
        }
        context.store.job_data(self.tx().await?, id).await
    }

    /// Returns what says whether a first `tx()` waits for a connection now.
    pub(crate) fn waits_for_connection(&self) -> Option<Arc<AtomicBool>> {
        match &self.guard {
            HoldGuard::Leased(lease) => Some(Arc::clone(&lease.waits)),
            HoldGuard::Locked(_) => None,
        }
    }

    /// Returns whether a lease holds the job, and no transaction is open for it.
    pub(crate) fn is_leased(&self) -> bool {
        matches!(self.guard, HoldGuard::Leased(_))
    }

    /// Resolves when the handler should stop: its hold is lost, it ran into its timeout, a request
    /// to cancel the job came, or a shutdown's deadline has passed.
    ///
    /// After a lost hold, a timeout or a deadline the handler is dropped 150 ms later. A request to
    /// cancel drops no handler: an error that it then returns ends the job as `cancelled`, and `Ok`
    /// is a success.
    ///
    /// The future borrows nothing, so it can be awaited beside [`tx`](Self::tx), or in a task that
    /// the handler spawned.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        self.cancelled.clone().cancelled_owned()
    }

    /// Returns whether [`cancelled`](Self::cancelled) has resolved.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }
}

impl fmt::Debug for ActiveJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveJob")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("group", &self.group)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// Leaves the handler's savepoint: releases it after a success, else rolls back to it. The locks
/// were taken before it and stay. A deferred constraint fails here, as the attempt, and not at the
/// commit.
pub(crate) async fn leave_savepoint(
    job: &mut ActiveJob,
    result: RunResult,
) -> Result<RunResult, RunResult> {
    let conn = match (&mut job.guard, job.savepoint) {
        (HoldGuard::Leased(_), _) | (HoldGuard::Locked(_), Savepoint::None) => return Ok(result),
        (HoldGuard::Locked(_), Savepoint::Entering) => return Err(broken_transaction(result)),
        (HoldGuard::Locked(locks), Savepoint::Set) => &mut locks.conn,
    };
    // A nested transaction that the handler left open.
    while transaction::depth(conn) > 1 {
        if let Err(error) = transaction::rollback(conn).await {
            return Err(not_left(&error, result));
        }
    }
    if transaction::depth(conn) < 1 {
        return Err(ended_by_hand());
    }
    let result = match result {
        kept if kept.keeps_writes() => {
            let leave = AssertSqlSafe([LEAVE, RESTORE_SETTINGS, PINNED_PLANS, RELEASE].concat());
            match sqlx::raw_sql(leave).execute(&mut **conn).await {
                Ok(_) => return Ok(kept),
                Err(error) => match refused_success(&error) {
                    lost @ RunResult::Broken(FailureKind::ConnectionLost, _) => return Err(lost),
                    refused => refused,
                },
            }
        }
        other => other,
    };
    match sqlx::raw_sql(UNDO).execute(&mut **conn).await {
        Ok(_) => Ok(result),
        Err(error) => Err(not_left(&error, result)),
    }
}
