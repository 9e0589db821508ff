//! The state of a worker from claim to claim.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::attempt::connection::SlotConnection;
use crate::attempt::turn::TurnEnd;
use crate::job::queue_options::QueueOptions;
use crate::liveness::vitals::QueueVitals;
use crate::slots::queue_slots::SlotUsage;
use crate::worker::cursor::ClaimCursor;
use crate::worker::destination::Destination;
use crate::worker::prefetch::Prefetch;
use crate::worker::recheck::Recheck;

/// Delay after a claim that failed: doubled from the first up to the second.
pub(crate) const BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(2));

/// How long a claim keeps shared slots from other queues and servers before it has a connection,
/// and competes for more until it is answered. A server that is away or frozen takes longer.
pub(crate) const KEEP_SLOTS: Duration = Duration::from_millis(100);

/// The state of a worker from claim to claim.
pub(crate) struct WorkerState {
    /// The tasks of the slots. Each returns how its last attempt ended, and its connection if that
    /// can be used again.
    pub(crate) slots: JoinSet<(TurnEnd, Option<SlotConnection>)>,
    /// The slots whose handlers run or may run.
    pub(crate) slot_usage: Arc<SlotUsage>,
    /// Connections of finished jobs, for the next jobs. By transaction a claim takes no more jobs
    /// than it has connections.
    pub(crate) spare: Vec<SlotConnection>,
    /// Connections that were asked for. Each has a task: opening one may take longer than a claim
    /// waits, and would begin anew each time if it was dropped.
    pub(crate) coming: JoinSet<Result<PoolConnection<Postgres>, sqlx::Error>>,
    /// The pool's options when a connection was last asked for.
    pub(crate) options: Option<Arc<PgConnectOptions>>,
    /// Where those lead; `None` if they never changed.
    pub(crate) destination: Option<Arc<Destination>>,
    /// True if the last claim left more and took jobs.
    pub(crate) busy: bool,
    /// True if the queue has a limit or a rate, as far as the last claim saw.
    pub(crate) limited: bool,
    /// True if the last claim took all that was due: only a wake-up, or an end that did not drain
    /// its group, calls for a claim.
    pub(crate) all_taken: bool,
    /// The number of slots that the next claim gets connections for. It grows while claims leave
    /// more.
    pub(crate) reach: usize,
    /// When the last job was claimed, or ended.
    pub(crate) last_job: Option<Instant>,
    pub(crate) cursor: ClaimCursor,
    pub(crate) backoff: Duration,
    /// How long the next claim keeps shared slots before it has a connection: [`KEEP_SLOTS`], and
    /// longer where connections are slow to come.
    pub(crate) keep_slots: Duration,
    pub(crate) recheck: Recheck,
    pub(crate) prefetch: Arc<Prefetch>,
    /// When to check for orphaned claims.
    pub(crate) orphan_checks: [Option<Instant>; 2],
    /// The moves of the claims to other servers that were checked for.
    pub(crate) moves: u64,
}

impl WorkerState {
    /// Returns the first state of a worker that `wake` wakes.
    pub(crate) fn new(queue: &QueueOptions, wake: &Arc<Notify>, vitals: &QueueVitals) -> Self {
        let slot_usage = Arc::clone(&vitals.slot_usage);
        let prefetch = Arc::new(Prefetch::new(queue, Arc::clone(&slot_usage), Arc::clone(wake)));
        Self {
            slots: JoinSet::new(),
            slot_usage,
            spare: Vec::new(),
            coming: JoinSet::new(),
            options: None,
            destination: None,
            busy: false,
            limited: false,
            all_taken: false,
            reach: 1,
            last_job: None,
            cursor: ClaimCursor::default(),
            backoff: BACKOFF.0,
            keep_slots: KEEP_SLOTS,
            recheck: Recheck::default(),
            prefetch,
            orphan_checks: [None; 2],
            moves: 0,
        }
    }

    /// Takes a slot's connection back. Returns how its job ended.
    pub(crate) fn take_back(&mut self, (end, conn): (TurnEnd, Option<SlotConnection>)) -> TurnEnd {
        let now = Instant::now();
        self.recheck.record_end(now);
        self.last_job = Some(now);
        if let Some(conn) = conn {
            self.keep(conn);
        }
        end
    }

    /// Keeps a connection for the next jobs, unless the pool was led elsewhere since it was opened.
    fn keep(&mut self, conn: SlotConnection) {
        match (&conn.options, &self.options) {
            (Some(of), Some(now)) if !Arc::ptr_eq(of, now) => conn.close(),
            _ => self.spare.push(conn),
        }
    }

    /// Records the end of a claim, which left `more` or not. Returns whether a job that ended
    /// meanwhile has passed its group's turn on.
    pub(crate) fn end_claim(&mut self, more: bool) -> bool {
        let ended = self.prefetch.end_claim(more);
        if ended.is_some() {
            self.recheck.record_end(Instant::now());
        }
        ended.unwrap_or_default()
    }
}
