//! What the parts of a processor share: its store, its side connections, its signals.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::liveness::leases::Leases;
use crate::liveness::pooler_state::PoolerState;
use crate::liveness::schema_gate::SchemaGate;
use crate::liveness::sessions::SessionMonitor;
use crate::liveness::shared_poll::SharedPoll;
use crate::liveness::shutdown::Counters;
use crate::store::{SessionLimits, Store};

/// Connections beside the pool's, which never wait behind its jobs. One is for wake-ups, two are
/// for maintenance and late records; the monitor opens one more.
const SIDE_CONNECTIONS: u32 = 3;
/// Time between two reports of an exhausted pool.
const SAY_AGAIN: Duration = Duration::from_mins(1);
pub(crate) type ErrorHook = Arc<dyn Fn(&BackgroundError) + Send + Sync>;

/// What the parts of a processor share.
pub(crate) struct Context {
    pub(crate) store: Arc<Store>,
    pub(crate) pooler_state: PoolerState,
    pub(crate) schema: SchemaGate,
    pub(crate) limits: SessionLimits,
    pub(crate) session_monitor: Arc<SessionMonitor>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) shared_poll: Arc<SharedPoll>,
    /// The id that this process's claims carry.
    pub(crate) processor: i64,
    pub(crate) side: PgPool,
    pub(crate) counters: Counters,
    /// Cancelled when a shutdown begins: nothing new starts.
    pub(crate) stop: CancellationToken,
    /// Cancelled when the deadline of a shutdown has passed.
    pub(crate) release: CancellationToken,
    /// The deadline of a shutdown, set when it begins.
    pub(crate) deadline: OnceLock<Duration>,
    on_error: Option<ErrorHook>,
    /// When handlers that wait for the pool were last reported.
    exhausted_pool: Mutex<Option<Instant>>,
}

impl Context {
    pub(crate) fn new(store: Arc<Store>, pool: &PgPool, on_error: Option<ErrorHook>) -> Self {
        Self {
            store,
            pooler_state: PoolerState::default(),
            schema: SchemaGate::default(),
            limits: SessionLimits::default(),
            session_monitor: Arc::default(),
            leases: Arc::default(),
            shared_poll: Arc::default(),
            processor: fastrand::i64(..),
            side: side_pool(pool, SIDE_CONNECTIONS),
            counters: Counters::default(),
            stop: CancellationToken::new(),
            release: CancellationToken::new(),
            deadline: OnceLock::new(),
            on_error,
            exhausted_pool: Mutex::default(),
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
        self.report(&BackgroundError::PoolExhausted { queue: queue.to_owned(), connections });
    }

    /// Logs an error that no caller gets, and passes it to the error hook.
    pub(crate) fn report(&self, error: &BackgroundError) {
        let source = std::error::Error::source(&error);
        if matches!(error, BackgroundError::Stalled(_) | BackgroundError::UnusableSchema(_)) {
            tracing::error!(source, "{error}");
        } else {
            tracing::warn!(source, "{error}");
        }
        if let Some(hook) = &self.on_error {
            // A panic of the hook would end the caller: a worker, or the monitor.
            if catch_unwind(AssertUnwindSafe(|| hook(error))).is_err() {
                tracing::error!("the hook for background errors panicked");
            }
        }
    }
}

/// Returns a pool of connections with the options of `pool`. Belongs to the runtime that calls it.
pub(crate) fn side_pool(pool: &PgPool, connections: u32) -> PgPool {
    pool.options()
        .clone()
        .max_connections(connections)
        .min_connections(0)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with((*pool.connect_options()).clone())
}
