//! What the parts of a processor share.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::monitor::Monitor;
use crate::shutdown::Counters;
use crate::store::{SessionLimits, Store};

/// Connections of its own beside the pool's: monitor, wake-ups, and one for housekeeping and late records. Made with
/// the pool's options, and never waiting behind its jobs.
const SIDE_CONNECTIONS: u32 = 3;
pub(crate) type ErrorHook = Arc<dyn Fn(&BackgroundError) + Send + Sync>;

/// What the parts of a processor share.
pub(crate) struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) limits: SessionLimits,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) side: PgPool,
    pub(crate) counters: Counters,
    /// A shutdown's deadline has passed.
    pub(crate) release: CancellationToken,
    on_error: Option<ErrorHook>,
}

impl Shared {
    pub(crate) fn new(store: Arc<Store>, pool: &PgPool, on_error: Option<ErrorHook>) -> Self {
        let side = pool
            .options()
            .clone()
            .max_connections(SIDE_CONNECTIONS)
            .min_connections(0)
            .acquire_timeout(Duration::from_secs(5))
            .connect_lazy_with((*pool.connect_options()).clone());
        Self {
            store,
            limits: SessionLimits::default(),
            monitor: Arc::default(),
            side,
            counters: Counters::default(),
            release: CancellationToken::new(),
            on_error,
        }
    }

    /// The exit of every error that no caller gets.
    pub(crate) fn report(&self, error: &BackgroundError) {
        let source = std::error::Error::source(&error);
        tracing::warn!(source, "{error}");
        if let Some(hook) = &self.on_error {
            hook(error);
        }
    }
}
