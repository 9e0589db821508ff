//! The start on one server: a worker per queue, and beside them the liveness tasks, wake-ups and
//! maintenance.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::attempt::turn::{AttemptHooks, QueueRuntime};
use crate::error::{BackgroundError, StartError};
use crate::job::queue_options::QueueOptions;
use crate::job::redact::redact_detail;
use crate::liveness::context::Context;
use crate::liveness::heartbeat::LoopHeartbeat;
use crate::liveness::vitals::QueueVitals;
use crate::processor::check::check;
use crate::processor::config::Config;
use crate::processor::health::{HealthSource, ShownQueue};
use crate::processor::monitor_thread::MonitorThread;
use crate::processor::pool_needs::PoolNeeds;
use crate::processor::spawn::{
    is_away, spawn_listener, spawn_maintenance, spawn_pooler_detection, spawn_schema_check,
    spawn_settler, spawn_start_line, spawn_watchdog, supervise,
};
use crate::processor::start_line::{StartLine, policies};
use crate::processor::stored::{self, Stored};
use crate::slots::queue_slots::QueueSlots;
use crate::store::{ProcessorRow, ServedQueue, ServerFacts};
use crate::worker::worker::Worker;

/// A server that a processor works on.
pub(crate) struct Server {
    pub(crate) context: Arc<Context>,
    pub(crate) pool: PgPool,
    /// The facts that the check before the start has read; `None`: nothing is known yet.
    pub(crate) facts: Option<ServerFacts>,
}

/// The settings of a processor that hold on each of its servers.
pub(crate) struct ServerSettings {
    pub(crate) config: Config,
    pub(crate) stored: Arc<Stored>,
    /// The hooks for all servers.
    pub(crate) hooks: AttemptHooks,
}

/// How long a start waits for the answers of other servers when one is ready.
const LATE: Duration = Duration::from_secs(2);

impl Server {
    /// Checks as [`check`](Self::check) does, but not for long once another server is ready.
    pub(crate) async fn check_beside(
        &self,
        sessions_wanted: bool,
        stored: &Stored,
        ready: &CancellationToken,
    ) -> Result<ServerFacts, StartError> {
        let late = async {
            ready.cancelled().await;
            sleep(LATE).await;
        };
        tokio::select! {
            biased;
            checked = self.check(sessions_wanted, stored) => {
                if checked.is_ok() {
                    ready.cancel();
                }
                checked
            }
            () = late => Err(StartError::NoAnswer { limit: LATE }),
        }
    }

    /// Checks whether a processor can work there, and stores its settings and
    /// schedules.
    async fn check(
        &self,
        sessions_wanted: bool,
        stored: &Stored,
    ) -> Result<ServerFacts, StartError> {
        let facts = check(&self.context, sessions_wanted).await?;
        let stored = stored.store(&self.context).await;
        stored.map(|()| facts).map_err(|error| StartError::Database(redact_detail(error)))
    }

    /// Returns the error with the number of the server, if it has one.
    pub(crate) fn name(&self, error: StartError) -> StartError {
        match self.context.shard {
            None => error,
            Some(shard) => StartError::OnShard { shard, error: Box::new(error) },
        }
    }

    /// Reports why the server is waited for.
    pub(crate) fn report_away(&self, error: StartError) {
        self.context.report(BackgroundError::Away(error));
    }

    /// Starts all tasks. Returns a task that ends with them, and what shows their health.
    pub(crate) fn spawn(
        self,
        settings: &ServerSettings,
        parts: Vec<QueueSlots>,
    ) -> (JoinHandle<()>, HealthSource) {
        let Self { context, pool, facts } = self;
        let ServerSettings { config, stored, hooks } = settings;
        let &Config { listen, presence, poll, slots, .. } = config;
        let side_stop = CancellationToken::new();
        let stop = context.stop.clone();
        let mut side_tasks = JoinSet::new();
        let mut workers = JoinSet::new();
        let maintenance_wake = Arc::new(Notify::new());
        // A notification that names no queue is for maintenance.
        let mut wakes = HashMap::from([(String::new(), Arc::clone(&maintenance_wake))]);
        if !context.pooler_state.is_detected() {
            spawn_pooler_detection(&mut side_tasks, &context, listen || presence, &side_stop);
        }
        spawn_schema_check(&mut side_tasks, &context, &side_stop);
        let (settler, finished) = mpsc::channel(1024);
        spawn_settler(&mut side_tasks, &context, finished);
        let (mut loops, mut shown) = (Vec::new(), Vec::new());
        let options: Vec<_> = config.queues.iter().map(|(options, _)| options.clone()).collect();
        let more_connections = more_connections(&pool, options.len());
        for ((queue, handler), slots) in config.queues.iter().cloned().zip(parts) {
            let wake = Arc::new(Notify::new());
            wakes.insert(queue.name().to_owned(), Arc::clone(&wake));
            let heartbeat = Arc::new(LoopHeartbeat::default());
            loops.push((queue.name().to_owned(), Arc::clone(&heartbeat)));
            let vitals = Arc::new(QueueVitals::new(queue.name(), queue.concurrency));
            shown.push(ShownQueue { options: queue.clone(), vitals: Arc::clone(&vitals) });
            let hooks = hooks.clone();
            let worker = Worker {
                context: Arc::clone(&context),
                queue: Arc::new(QueueRuntime::new(queue, handler, settler.clone(), hooks)),
                pool: pool.clone(),
                wake,
                slots,
                vitals,
                heartbeat: Arc::clone(&heartbeat),
                stop: stop.clone(),
                poll,
                more_connections,
            };
            match &config.watchdog {
                Some(watchdog) => {
                    let interval = watchdog.heartbeat_interval();
                    // It ends the process of a loop that panicked.
                    workers.spawn(heartbeat.run(interval, async move { worker.run().await }))
                }
                None => workers.spawn(worker.run_supervised()),
            };
        }
        if let Some(watchdog) = config.watchdog.clone() {
            spawn_watchdog(&mut side_tasks, &context, &side_stop, watchdog, loops);
        }
        let row = processor_row(context.processor, config.node.clone(), &options);
        // A server is started once.
        let _ = context.node.set(row.node.clone());
        let line = StartLine::new(&options, slots, &row.node, (listen, presence));
        if let Some(facts) = &facts {
            line.log(&context, Some(&facts.version));
        } else {
            let lines = (line, policies(&options));
            spawn_start_line(&mut side_tasks, &context, lines, &side_stop);
        }
        let monitor = MonitorThread {
            context: Arc::clone(&context),
            pool,
            row,
            presence,
            blocked_after: config.blocked_after,
            stop: side_stop.clone(),
        };
        monitor.spawn(&mut side_tasks);
        if listen {
            spawn_listener(&mut side_tasks, &context, &side_stop, wakes);
        }
        if facts.is_none() && !stored.is_empty() {
            stored::spawn(&mut side_tasks, &context, &side_stop, Arc::clone(stored));
        }
        if let Some(interval) = config.maintenance {
            let wake = maintenance_wake;
            spawn_maintenance(&mut side_tasks, &context, &side_stop, options, interval, wake);
        }
        // A guard: the runtime may end before the workers do, and the monitor's thread is not the
        // runtime's.
        let side_stop = side_stop.drop_guard();
        let ended = tokio::spawn(supervise(workers, side_tasks, side_stop, Arc::clone(&context)));
        (ended, HealthSource { context, queues: shown, listen, presence })
    }
}

/// Returns whether a server that refused a start may become usable by itself.
pub(crate) fn may_come_back(error: &StartError) -> bool {
    match error {
        StartError::Database(
            sqlx::Error::Configuration(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_),
        ) => false,
        StartError::Database(error) => is_away(error),
        StartError::NoAnswer { .. } | StartError::ReadOnly => true,
        _ => false,
    }
}

/// Returns how many connections a queue may use beyond its slots: half of what the pool has beyond
/// the needs of its processors. The rest is the application's.
fn more_connections(pool: &PgPool, queues: usize) -> usize {
    let needed = PoolNeeds::lock().of(pool);
    let room = (pool.options().get_max_connections() as usize).saturating_sub(needed);
    room / 2 / queues.max(1)
}

/// Returns what the process announces of itself.
fn processor_row(id: i64, node: Option<String>, queues: &[QueueOptions]) -> ProcessorRow {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME")).ok())
        .map(|host| host.trim().to_owned());
    let node = node.or_else(|| host.clone()).unwrap_or_else(|| String::from("unknown"));
    let pid = i32::try_from(std::process::id()).unwrap_or(0);
    let queues = queues.iter().map(|queue| ServedQueue {
        name: queue.name().to_owned(),
        policy: queue.into(),
        timeout: queue.timeout,
    });
    let queues = queues.collect();
    ProcessorRow { id, node, host, pid, queues }
}
