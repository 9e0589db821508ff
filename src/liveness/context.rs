//! What the parts of a processor share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::liveness::leases::Leases;
use crate::liveness::pooler_state::PoolerState;
use crate::liveness::schema_gate::SchemaGate;
use crate::liveness::sessions::SessionMonitor;
use crate::liveness::shared_poll::SharedPoll;
use crate::liveness::shutdown::Counters;
use crate::store::{SessionLimits, Store};

/// Connections of its own beside the pool's, never waiting behind its jobs: one for wake-ups, and two for maintenance
/// and late records. The monitor has one more.
const SIDE_CONNECTIONS: u32 = 3;
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
    /// Whose claims this process's are.
    pub(crate) processor: i64,
    pub(crate) side: PgPool,
    pub(crate) counters: Counters,
    /// Nothing more is begun.
    pub(crate) stop: CancellationToken,
    /// A shutdown's deadline has passed.
    pub(crate) release: CancellationToken,
    /// That of a shutdown, from its begin on.
    pub(crate) deadline: OnceLock<Duration>,
    on_error: Option<ErrorHook>,
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
        }
    }

    /// The exit of every error that no caller gets.
    pub(crate) fn report(&self, error: &BackgroundError) {
        let source = std::error::Error::source(&error);
        if matches!(error, BackgroundError::Stalled(_) | BackgroundError::UnusableSchema(_)) {
            tracing::error!(source, "{error}");
        } else {
            tracing::warn!(source, "{error}");
        }
        if let Some(hook) = &self.on_error {
            // The callers are what keeps the processor going: a panic here would end a worker, or the monitor.
            if catch_unwind(AssertUnwindSafe(|| hook(error))).is_err() {
                tracing::error!("the hook for background errors panicked");
            }
        }
    }
}

/// Connections beside the pool's, with the pool's options. Belongs to the runtime in which it is made.
pub(crate) fn side_pool(pool: &PgPool, connections: u32) -> PgPool {
    pool.options()
        .clone()
        .max_connections(connections)
        .min_connections(0)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with((*pool.connect_options()).clone())
}
