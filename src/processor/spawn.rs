//! Starts the tasks beside the workers, and ends them after the workers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::attempt::settle_batch;
use crate::attempt::turn::Finished;
use crate::error::BackgroundError;
use crate::job::queue_options::QueueOptions;
use crate::liveness::context::Context;
use crate::liveness::heartbeat::LoopHeartbeat;
use crate::liveness::pooler;
use crate::liveness::schema_check;
use crate::liveness::supervised::supervised;
use crate::liveness::watchdog::{Watchdog, WatchdogGuard};
use crate::maintenance::maintenance::Maintenance;
use crate::processor::check;
use crate::processor::listener;
use crate::processor::start_line::{Policies, StartLine, warn_of_overridden};

/// Time between two questions to a server that cannot be reached.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Returns whether the server could not be reached, or lets nobody in for now: classes 08, 53 and
/// 57P.
pub(crate) fn is_away(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_none_or(|code| ["08", "53", "57P"].iter().any(|class| code.starts_with(class)))
}

/// Detects a pooler before the first claim.
pub(crate) fn spawn_pooler_detection(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    sessions_wanted: bool,
    stop: &CancellationToken,
) {
    let (context, stop) = (Arc::clone(context), stop.clone());
    // Made here: the runtime may end before the task begins, and the monitor's thread would wait
    // for ever.
    let detecting = context.pooler_state.detection_guard();
    tasks.spawn(async move {
        let detect = || pooler::detect(&context, sessions_wanted, &stop);
        supervised(&context, "the detection of a pooler", &stop, detect).await;
        drop(detecting);
    });
}

/// Logs the start, as soon as it is known what the processor works on.
pub(crate) fn spawn_start_line(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    (line, policies): (StartLine, Policies),
    stop: &CancellationToken,
) {
    let (context, stop) = (Arc::clone(context), stop.clone());
    tasks.spawn(async move {
        let log = || log_start(&context, &line, &policies, &stop);
        supervised(&context, "the log line of the start", &stop, log).await;
    });
}

async fn log_start(
    context: &Context,
    line: &StartLine,
    policies: &Policies,
    stop: &CancellationToken,
) {
    if !context.pooler_state.has_transactions().await {
        return;
    }
    tokio::select! {
        () = context.schema.opened() => {}
        () = stop.cancelled() => return,
    }
    // Nothing has started before the server answers. A fact that it refuses is left out of the
    // line.
    let facts = loop {
        tokio::select! {
            facts = check::facts(context) => match facts {
                Err(error) if is_away(&error) => {}
                facts => break facts.ok(),
            },
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = sleep(ASK_AGAIN) => {}
            () = stop.cancelled() => return,
        }
    };
    line.log(context, facts.as_ref().map(|facts| &*facts.version));
    warn_of_overridden(context, policies).await;
}

/// Checks at intervals whether this program fits the schema.
pub(crate) fn spawn_schema_check(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    stop: &CancellationToken,
) {
    let (context, stop) = (Arc::clone(context), stop.clone());
    tasks.spawn(async move {
        let check = || schema_check::run(&context, &stop);
        supervised(&context, "the check of the schema", &stop, check).await;
    });
}

/// Starts the watchdog, and a task that shows it that the runtime polls tasks.
pub(crate) fn spawn_watchdog(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    stop: &CancellationToken,
    watchdog: Watchdog,
    loops: Vec<(String, Arc<LoopHeartbeat>)>,
) {
    let (runtime, stop, interval) =
        (Arc::new(LoopHeartbeat::default()), stop.clone(), watchdog.heartbeat_interval());
    let watch = WatchdogGuard {
        watchdog,
        context: Arc::clone(context),
        runtime: Arc::clone(&runtime),
        loops,
    };
    match watch.start() {
        Ok(()) => drop(tasks.spawn(runtime.run(interval, async move { stop.cancelled().await }))),
        Err(error) => context.report(BackgroundError::NoWatchdog(error)),
    }
}

pub(crate) fn spawn_listener(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    stop: &CancellationToken,
    wakes: HashMap<String, Arc<Notify>>,
) {
    let (context, stop) = (Arc::clone(context), stop.clone());
    tasks.spawn(async move {
        let channel = context.store.names().channel();
        let report = |error| context.report(error);
        let listen = || async {
            if !context.pooler_state.has_transactions().await {
                return;
            }
            tokio::select! {
                biased;
                // The pooler owns the session that would receive the wake-ups.
                () = context.pooler_state.pooled.cancelled() => {}
                () = listener::run(&context.side, &channel, &wakes, &stop, &context.vitals, report) => {}
            }
        };
        supervised(&context, "the listener for wake-ups", &stop, listen).await;
    });
}

pub(crate) fn spawn_maintenance(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    stop: &CancellationToken,
    queues: Vec<QueueOptions>,
    interval: Duration,
    wake: Arc<Notify>,
) {
    let (context, stop) = (Arc::clone(context), stop.clone());
    tasks.spawn(async move {
        let maintenance = Maintenance { store: &context.store, queues, interval };
        let report = |error| context.report(error);
        let maintain = || async {
            if !context.pooler_state.has_transactions().await {
                return;
            }
            tokio::select! {
                () = context.schema.opened() => {}
                () = stop.cancelled() => return,
            }
            maintenance.run(&context.side, &context.shared_poll, &wake, &stop, report).await;
        };
        supervised(&context, "maintenance", &stop, maintain).await;
    });
}

/// Starts the settler of leased jobs. It ends when all queues have, and their turns with them.
pub(crate) fn spawn_settler(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    finished: mpsc::Receiver<Finished>,
) {
    let context = Arc::clone(context);
    tasks.spawn(async move {
        let inbox = Mutex::new(finished);
        let settle = || async { settle_batch::run(&mut *inbox.lock().await, &context).await };
        // It is needed as long as there are turns, whatever stops before.
        supervised(&context, "the settler of leased jobs", &CancellationToken::new(), settle).await;
    });
}

/// Waits for the workers, then ends the side tasks.
pub(crate) async fn supervise(
    mut workers: JoinSet<()>,
    mut side_tasks: JoinSet<()>,
    side_stop: DropGuard,
    context: Arc<Context>,
) {
    while workers.join_next().await.is_some() {}
    drop(side_stop);
    while side_tasks.join_next().await.is_some() {}
    context.side.close().await;
}
