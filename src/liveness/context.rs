//! What the parts of a processor share: its store, its signals, its way to report.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
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
use crate::liveness::side_pool::SidePool;
use crate::store::{SessionLimits, Store, is_read_only};

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
    pub(crate) side: SidePool,
    pub(crate) counters: Counters,
    /// Cancelled when a shutdown begins: nothing new starts.
    pub(crate) stop: CancellationToken,
    /// Cancelled when the deadline of a shutdown has passed.
    pub(crate) release: CancellationToken,
    /// The deadline of a shutdown, set when it begins.
    pub(crate) deadline: OnceLock<Duration>,
    on_error: Option<ErrorHook>,
    /// That the server is read-only was reported, and it has not been written to since.
    read_only: AtomicBool,
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
            side: SidePool::new(pool),
            counters: Counters::default(),
            stop: CancellationToken::new(),
            release: CancellationToken::new(),
            deadline: OnceLock::new(),
            on_error,
            read_only: AtomicBool::new(false),
        }
    }

    /// Logs an error that no caller gets, and passes it to the error hook. That the server is
    /// read-only is said once: every part of the processor meets that at each of its tries.
    pub(crate) fn report(&self, error: &BackgroundError) {
        if is_of_read_only(error) {
            let source = std::error::Error::source(&error);
            tracing::debug!(source, "{error}");
            if !self.read_only.swap(true, Ordering::Relaxed) {
                self.pass_on(&BackgroundError::ReadOnly);
            }
        } else {
            self.pass_on(error);
        }
    }

    /// The server was written to.
    pub(crate) fn record_write(&self) {
        if self.read_only.swap(false, Ordering::Relaxed) {
            tracing::info!("the server can be written to again");
        }
    }

    fn pass_on(&self, error: &BackgroundError) {
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

/// Returns whether an error comes from a server that cannot be written to.
pub(crate) fn is_of_read_only(error: &BackgroundError) -> bool {
    let source = std::error::Error::source(error);
    source.and_then(|source| source.downcast_ref()).is_some_and(is_read_only)
}
