//! The thread of the monitor, the presence and the watch over blocked handlers. Handlers that block
//! the runtime's threads must not delay them.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::liveness::blocked;
use crate::liveness::context::Context;
use crate::liveness::presence::PresenceKeeper;
use crate::liveness::supervised::supervised;
use crate::store::ProcessorRow;

pub(crate) struct MonitorThread {
    pub(crate) context: Arc<Context>,
    pub(crate) pool: PgPool,
    /// The row by which the process announces itself.
    pub(crate) row: ProcessorRow,
    /// Whether it announces itself.
    pub(crate) presence: bool,
    /// When a handler counts as blocking its thread; `None` if that is not watched.
    pub(crate) blocked_after: Option<Duration>,
    /// Ends the thread.
    pub(crate) stop: CancellationToken,
}

impl MonitorThread {
    /// Starts the thread, and a task that ends with it. Without the thread nothing is claimed: the
    /// processor stops.
    pub(crate) fn spawn(self, tasks: &mut JoinSet<()>) {
        let (ended, end) = oneshot::channel::<()>();
        let context = Arc::clone(&self.context);
        let refuse = move |error| {
            context.stop.cancel();
            context.report(BackgroundError::NoMonitor(error));
        };
        let thread = {
            let refuse = refuse.clone();
            move || {
                match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime.block_on(self.watch()),
                    Err(error) => refuse(error),
                }
                drop(ended);
            }
        };
        match std::thread::Builder::new().name("seriatim-monitor".into()).spawn(thread) {
            Ok(_) => drop(tasks.spawn(async { drop(end.await) })),
            Err(error) => refuse(error),
        }
    }

    async fn watch(self) {
        let Self { context, pool, row, presence, blocked_after, stop } = self;
        let report = |error| context.report(error);
        let monitor = || context.session_monitor.run(&context.store, &pool, &stop, report);
        let keep = || async {
            let row = row.clone();
            let keeper = PresenceKeeper { context: &context, pool: &pool, row, wanted: presence };
            keeper.run(&stop, report).await;
        };
        let watch = || watch_polls(context.processor, blocked_after, &stop, report);
        tokio::join!(
            supervised(&context, "the monitor of sessions", &stop, monitor),
            supervised(&context, "the presence", &stop, keep),
            supervised(&context, "the watch over blocked handlers", &stop, watch),
        );
    }
}

/// Reports handlers that block their threads, unless that is switched off.
async fn watch_polls(
    processor: i64,
    limit: Option<Duration>,
    stop: &CancellationToken,
    report: impl Fn(BackgroundError),
) {
    if let Some(limit) = limit {
        blocked::run(processor, limit, stop, report).await;
    }
}
