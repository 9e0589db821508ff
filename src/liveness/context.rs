//! The state that the parts of a processor share: its store, its signals, its way to report.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::job::caught::caught;
use crate::job::new_job::EnqueueSettings;
use crate::job::shard::ShardId;
use crate::liveness::leases::Leases;
use crate::liveness::log_throttle::{HookThrottle, LogThrottle};
use crate::liveness::pooler_state::PoolerState;
use crate::liveness::read_only::ReadOnly;
use crate::liveness::schema_gate::SchemaGate;
use crate::liveness::sessions::SessionMonitor;
use crate::liveness::shared_poll::SharedPoll;
use crate::liveness::shutdown::Counters;
use crate::liveness::side_pool::SidePool;
use crate::liveness::side_reports::SideReports;
use crate::liveness::vitals::Vitals;
use crate::metrics::background::record_error;
use crate::store::{SessionLimits, Store, is_read_only};

/// Time between two reports of an exhausted pool.
const SAY_AGAIN: Duration = Duration::from_mins(1);
pub(crate) type ErrorHook = Arc<dyn Fn(&BackgroundError) + Send + Sync>;

/// The state that the parts of a processor share.
pub(crate) struct Context {
    pub(crate) store: Arc<Store>,
    /// The number of its server, if the processor works on several.
    pub(crate) shard: Option<ShardId>,
    pub(crate) pooler_state: PoolerState,
    pub(crate) schema: SchemaGate,
    pub(crate) limits: SessionLimits,
    pub(crate) session_monitor: Arc<SessionMonitor>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) shared_poll: Arc<SharedPoll>,
    /// The id that this process's claims carry.
    pub(crate) processor: i64,
    pub(crate) side: SidePool,
    pub(crate) side_reports: SideReports,
    pub(crate) counters: Counters,
    pub(crate) vitals: Vitals,
    /// For the jobs that handlers enqueue.
    pub(crate) enqueue: EnqueueSettings,
    /// Cancelled when a shutdown begins: nothing new starts.
    pub(crate) stop: CancellationToken,
    /// Cancelled when the deadline of a shutdown has passed.
    pub(crate) release: CancellationToken,
    /// The name of the processor's node; not set in a rehearsal.
    pub(crate) node: OnceLock<String>,
    /// The deadline of a shutdown, set when it begins.
    pub(crate) deadline: OnceLock<Duration>,
    on_error: Option<ErrorHook>,
    log_throttle: LogThrottle,
    hook_throttle: HookThrottle,
    read_only: Mutex<ReadOnly>,
    /// Since when the server has given no connection for claims.
    away: Mutex<Option<Instant>>,
    /// When handlers that wait for the pool were last reported.
    exhausted_pool: Mutex<Option<Instant>>,
}

impl Context {
    pub(crate) fn new(
        store: Arc<Store>,
        (shard, pool): (Option<ShardId>, &PgPool),
        enqueue: EnqueueSettings,
        on_error: Option<ErrorHook>,
    ) -> Self {
        Self {
            store,
            shard,
            pooler_state: PoolerState::default(),
            schema: SchemaGate::default(),
            limits: SessionLimits::default(),
            session_monitor: Arc::default(),
            leases: Arc::default(),
            shared_poll: Arc::default(),
            processor: fastrand::i64(..),
            side: SidePool::new(pool),
            side_reports: SideReports::default(),
            counters: Counters::default(),
            vitals: Vitals::default(),
            enqueue,
            stop: CancellationToken::new(),
            release: CancellationToken::new(),
            node: OnceLock::new(),
            deadline: OnceLock::new(),
            on_error,
            log_throttle: LogThrottle::default(),
            hook_throttle: HookThrottle::default(),
            read_only: Mutex::default(),
            away: Mutex::default(),
            exhausted_pool: Mutex::default(),
        }
    }

    /// Returns the words by which an operator finds this process.
    pub(crate) fn process(&self) -> String {
        let pid = std::process::id();
        match self.node.get() {
            Some(node) => format!("process {pid} of node {node:?}"),
            None => format!("process {pid}"),
        }
    }

    /// Reports that handlers wait for connections of the pool: once, and again after a while.
    pub(crate) fn report_exhausted_pool(&self, queue: &str, pool: &PgPool) {
        let (now, connections) = (Instant::now(), pool.options().get_max_connections());
        if pool.size() < connections {
            // The server gives no connection, which other parts of the processor report.
            return;
        }
        {
            // Nothing panics under the lock.
            let mut last = self.exhausted_pool.lock().unwrap_or_else(PoisonError::into_inner);
            if last.is_some_and(|last| now < last + SAY_AGAIN) {
                return;
            }
            *last = Some(now);
        }
        self.report(BackgroundError::PoolExhausted { queue: queue.to_owned(), connections });
    }

    /// Passes an error that no caller gets to the error hook, and logs it: at once, then at most
    /// once a minute for each cause. The hook gets a state that lasts less and less often. A
    /// read-only server is reported only once: every part of the processor meets it at each try.
    pub(crate) fn report(&self, error: BackgroundError) {
        if is_of_read_only(&error) {
            tracing::debug!(target: "seriatim::node", "{error}");
            if self.read_only().refused(Instant::now()) {
                self.pass_on(BackgroundError::ReadOnly);
            }
        } else {
            self.pass_on(error);
        }
    }

    /// The server was written to, by a transaction that began then.
    pub(crate) fn record_write(&self, begun: Instant) {
        if self.read_only().written(begun, Instant::now()) {
            let shard = self.shard.map(ShardId::number);
            tracing::info!(shard, "the server can be written to again");
        }
    }

    /// The server answered a claim.
    pub(crate) fn record_answer(&self) {
        // Nothing panics under the lock.
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(since) = away {
            tracing::info!(
                target: "seriatim::node",
                shard = self.shard.map(ShardId::number),
                away_s = since.elapsed().as_secs(),
                "the database can be reached again"
            );
        }
    }

    fn read_only(&self) -> MutexGuard<'_, ReadOnly> {
        // Nothing panics under the lock.
        self.read_only.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_on(&self, error: BackgroundError) {
        // A recorder of metrics is the application's, as the subscriber and the hook below are.
        let _ = caught(|| record_error(&error));
        if let BackgroundError::Connection { source, .. } = &error
            && !matches!(source, sqlx::Error::PoolTimedOut)
        {
            let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
            away.get_or_insert_with(Instant::now);
        }
        if let Some(left_out) = self.log_throttle.admit(&error, Instant::now()) {
            // The message has its reason; the count is of the lines since the last one.
            let repeated = (left_out > 0).then_some(left_out);
            let shard = self.shard.map(ShardId::number);
            let grave = matches!(
                error,
                BackgroundError::Stalled(_)
                    | BackgroundError::UnusableSchema(_)
                    | BackgroundError::Panicked { .. }
            );
            // A subscriber of the log that panics must not keep the error from the hook, nor end
            // the caller.
            let _ = caught(|| {
                if grave {
                    tracing::error!(target: "seriatim::node", shard, repeated, "{error}");
                } else {
                    tracing::warn!(target: "seriatim::node", shard, repeated, "{error}");
                }
            });
        }
        if let Some(hook) = &self.on_error
            && self.hook_throttle.admit(&error, Instant::now())
        {
            let error = match self.shard {
                None => error,
                Some(shard) => BackgroundError::OnShard { shard, error: Box::new(error) },
            };
            // A panic of the hook would end the caller: a worker, or the monitor.
            if let Err(panic) = caught(|| hook(&error)) {
                tracing::error!(target: "seriatim::node", panic, "the hook for background errors panicked");
            }
        }
    }
}

/// Returns whether an error comes from a server that cannot be written to.
pub(crate) fn is_of_read_only(error: &BackgroundError) -> bool {
    let source = std::error::Error::source(error);
    source.and_then(|source| source.downcast_ref()).is_some_and(is_read_only)
}
