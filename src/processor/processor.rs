//! The start of a processor: a worker per queue, and beside them the liveness tasks, wake-ups and
//! maintenance.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::attempt::settle_batch;
use crate::attempt::turn::QueueRuntime;
use crate::error::BackgroundError;
use crate::job::queue_options::QueueOptions;
use crate::liveness::context::{self, Context};
use crate::liveness::heartbeat::LoopHeartbeat;
use crate::liveness::pooler;
use crate::liveness::presence::PresenceKeeper;
use crate::liveness::shutdown::ShutdownReport;
use crate::liveness::watchdog::{Watchdog, WatchdogGuard};
use crate::maintenance::maintenance::Maintenance;
use crate::processor::config::Config;
use crate::processor::listener;
use crate::slots::queue_slots;
use crate::store::ProcessorRow;
use crate::worker::worker::Worker;

/// Bounds the time that released jobs may take after the deadline.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// A processor that is ready to start.
///
/// ```no_run
/// # use seriatim::{ActiveJob, JobError, JobHandler, async_trait};
/// # struct Post;
/// # #[async_trait]
/// # impl JobHandler for Post {
/// #     type Data = u32; type Output = (); type Error = JobError;
/// #     async fn handle(&self, _: &mut ActiveJob, _: u32) -> Result<(), JobError> { Ok(()) }
/// # }
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use seriatim::{Processor, QueueOptions};
///
/// let running = Processor::builder(pool)
///     .queue(QueueOptions::new("postings").concurrency(8), Post)
///     .build()?
///     .start();
/// seriatim::shutdown_signal().await?;
/// let report = running.shutdown(Duration::from_secs(20)).await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a Processor does nothing until it is started"]
pub struct Processor {
    pub(crate) config: Config,
}

impl Processor {
    /// Starts the processor in the background.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(self) -> Running {
        let Config {
            pool,
            client,
            queues,
            poll,
            listen,
            presence,
            node,
            maintenance,
            slots,
            watchdog,
            on_error,
        } = self.config;
        let side_stop = CancellationToken::new();
        // Facts about this pool's connections need not hold for the client's others.
        let store = Arc::new(client.store.apart(!client.store.is_nameless()));
        let context = Arc::new(Context::new(store, &pool, on_error));
        let stop = context.stop.clone();
        let mut side_tasks = JoinSet::new();
        let mut workers = JoinSet::new();
        let mut wakes = HashMap::new();
        let mut options = Vec::new();
        spawn_look(&mut side_tasks, &context, listen || presence, &side_stop);
        let (settler, finished) = mpsc::channel(1024);
        side_tasks.spawn(settle_batch::run(finished, Arc::clone(&context)));
        let parts: Vec<_> = queues.iter().map(|(o, _)| (o.weight, o.concurrency)).collect();
        let mut loops = Vec::new();
        for ((queue, handler), slots) in queues.into_iter().zip(queue_slots::share(slots, &parts)) {
            let wake = Arc::new(Notify::new());
            wakes.insert(queue.name().to_owned(), Arc::clone(&wake));
            options.push(queue.clone());
            let heartbeat = Arc::new(LoopHeartbeat::default());
            loops.push((queue.name().to_owned(), Arc::clone(&heartbeat)));
            let worker = Worker {
                context: Arc::clone(&context),
                queue: Arc::new(QueueRuntime::new(queue, handler, settler.clone())),
                pool: pool.clone(),
                wake,
                slots,
                heartbeat: Arc::clone(&heartbeat),
                stop: stop.clone(),
                poll,
            };
            match &watchdog {
                Some(watchdog) => workers.spawn(heartbeat.of(watchdog.heartbeat(), worker.run())),
                None => workers.spawn(worker.run()),
            };
        }
        if let Some(watchdog) = watchdog {
            spawn_watchdog(&mut side_tasks, &context, &side_stop, watchdog, loops);
        }
        let keeper = (processor_row(context.processor, node), presence);
        spawn_monitor(&mut side_tasks, &context, &pool, keeper, &side_stop, &stop);
        if listen {
            spawn_listener(&mut side_tasks, &context, &side_stop, wakes);
        }
        if let Some(interval) = maintenance {
            spawn_janitor(&mut side_tasks, &context, &side_stop, options, interval);
        }
        // A guard: the runtime may end before the workers do, and the monitor's thread is not the
        // runtime's.
        let side_stop = side_stop.drop_guard();
        let ended = tokio::spawn(supervise(workers, side_tasks, side_stop, Arc::clone(&context)));
        Running { stop, context, ended }
    }
}

/// Returns what the process announces of itself.
fn processor_row(id: i64, node: Option<String>) -> ProcessorRow {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME")).ok())
        .map(|host| host.trim().to_owned());
    let node = node.or_else(|| host.clone()).unwrap_or_else(|| String::from("unknown"));
    ProcessorRow { id, node, host, pid: i32::try_from(std::process::id()).unwrap_or(0) }
}

/// Detects a pooler before the first claim.
fn spawn_look(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    wants: bool,
    stop: &CancellationToken,
) {
    let (context, stop) = (Arc::clone(context), stop.clone());
    // Made here: the runtime may end before the task begins, and the monitor's thread would wait
    // for ever.
    let looking = context.pooler_state.looking();
    tasks.spawn(async move { pooler::look(&context, wants, &stop, looking).await });
}

/// Starts the monitor and the presence in a thread of their own: handlers that block the runtime's
/// threads must not delay them. Without that thread nothing is claimed.
fn spawn_monitor(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    pool: &PgPool,
    (row, wanted): (ProcessorRow, bool),
    side_stop: &CancellationToken,
    stop: &CancellationToken,
) {
    let (ended, end) = oneshot::channel::<()>();
    let refuse = {
        let (context, stop) = (Arc::clone(context), stop.clone());
        move |error| {
            stop.cancel();
            context.report(&BackgroundError::NoMonitor(error));
        }
    };
    let watch = {
        let (context, side_stop, pool) = (Arc::clone(context), side_stop.clone(), pool.clone());
        async move {
            // Made here, for this runtime.
            let options = (*pool.connect_options()).clone();
            let pool = context::side_pool(&pool, 1);
            let report = |error| context.report(&error);
            let keeper = PresenceKeeper { context: &context, options, row, wanted };
            tokio::join!(
                context.session_monitor.run(&context.store, &pool, &side_stop, report),
                keeper.run(&side_stop, report),
            );
            pool.close().await;
        }
    };
    let thread = {
        let refuse = refuse.clone();
        move || {
            match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(watch),
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

/// Starts the watchdog, and a task that shows it that the runtime polls tasks.
fn spawn_watchdog(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    stop: &CancellationToken,
    watchdog: Watchdog,
    loops: Vec<(String, Arc<LoopHeartbeat>)>,
) {
    let (runtime, stop, every) =
        (Arc::new(LoopHeartbeat::default()), stop.clone(), watchdog.heartbeat());
    let watch = WatchdogGuard {
        watchdog,
        context: Arc::clone(context),
        runtime: Arc::clone(&runtime),
        loops,
    };
    match watch.start() {
        Ok(()) => drop(tasks.spawn(runtime.of(every, async move { stop.cancelled().await }))),
        Err(error) => context.report(&BackgroundError::NoWatchdog(error)),
    }
}

fn spawn_listener(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    stop: &CancellationToken,
    wakes: HashMap<String, Arc<Notify>>,
) {
    let (context, stop) = (Arc::clone(context), stop.clone());
    tasks.spawn(async move {
        let channel = context.store.names().channel();
        if !context.pooler_state.is_open().await {
            return;
        }
        tokio::select! {
            biased;
            // The pooler owns the session that would receive the wake-ups.
            () = context.pooler_state.pooled.cancelled() => {}
            () = listener::run(&context.side, &channel, wakes, &stop, |error| {
                context.report(&error);
            }) => {}
        }
    });
}

fn spawn_janitor(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    stop: &CancellationToken,
    queues: Vec<QueueOptions>,
    interval: Duration,
) {
    let (context, stop) = (Arc::clone(context), stop.clone());
    tasks.spawn(async move {
        if !context.pooler_state.is_open().await {
            return;
        }
        let maintenance =
            Maintenance { store: &context.store, side: &context.side, queues, interval };
        maintenance.run(&context.shared_poll, &stop, |error| context.report(&error)).await;
    });
}

/// Waits for the workers, then ends the side tasks.
async fn supervise(
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

/// A running processor. Dropping it stops the claims; running jobs end by themselves.
#[must_use = "dropping a Running stops its processor"]
pub struct Running {
    stop: CancellationToken,
    context: Arc<Context>,
    ended: JoinHandle<()>,
}

impl Running {
    /// Stops claiming, waits for the running jobs until the deadline, then releases the rest. Their
    /// handlers see [`cancelled`](crate::ActiveJob::cancelled) and are dropped 150 ms later. A
    /// handler that returns `Ok` in that time has finished; all other jobs go back to their place,
    /// and the attempt does not count. That takes 5 s at most.
    ///
    /// A handler that blocks its thread cannot be dropped. It counts as
    /// [`still_running`](ShutdownReport::still_running), its job stays its own until the process
    /// ends, and a runtime that is dropped waits for it. With a [`Watchdog`](crate::Watchdog) the
    /// process ends all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped, claims stop and running jobs end by themselves, as if this
    /// `Running` was dropped.
    pub async fn shutdown(mut self, deadline: Duration) -> ShutdownReport {
        let before = self.context.counters.totals();
        self.stop.cancel();
        // A shutdown happens once.
        let _ = self.context.deadline.set(deadline);
        if timeout(deadline, &mut self.ended).await.is_err() {
            self.context.release.cancel();
            // Jobs that do not end now are reported as still running.
            let _ = timeout(RELEASE_LIMIT, &mut self.ended).await;
        }
        self.context.counters.since(&before)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}
