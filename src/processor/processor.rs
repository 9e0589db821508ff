//! The start of a processor: a worker per queue, and beside them the liveness tasks, wake-ups and
//! maintenance.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::attempt::panics::note_places;
use crate::attempt::settle_batch;
use crate::attempt::turn::{AttemptHooks, QueueRuntime};
use crate::error::{RehearsalError, StartError};
use crate::job::queue_options::QueueOptions;
use crate::job::redact::redact_detail;
use crate::job::rehearsal::{Rehearsal, RehearsalReport};
use crate::job::schedule::CheckedSchedule;
use crate::liveness::context::Context;
use crate::liveness::heartbeat::LoopHeartbeat;
use crate::liveness::vitals::QueueVitals;
use crate::processor::check::check;
use crate::processor::config::Config;
use crate::processor::health::{HealthSource, ShownQueue};
use crate::processor::monitor_thread::MonitorThread;
use crate::processor::pool_needs::{PoolNeed, PoolNeeds};
use crate::processor::running::Running;
use crate::processor::schedules;
use crate::processor::spawn::{
    spawn_listener, spawn_maintenance, spawn_pooler_detection, spawn_schema_check,
    spawn_start_line, spawn_watchdog, supervise,
};
use crate::processor::start_line::{StartLine, policies, warn_of_overridden};
use crate::slots::queue_slots;
use crate::store::{ProcessorRow, ServedQueue, ServerFacts};
use crate::worker::worker::Worker;

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
///     .start()
///     .await?;
/// seriatim::shutdown_signal().await?;
/// let report = running.shutdown(Duration::from_secs(20)).await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a Processor does nothing until it is started"]
pub struct Processor {
    pub(crate) config: Config,
    pub(crate) schedules: Vec<CheckedSchedule>,
    pub(crate) need: Arc<PoolNeed>,
    pub(crate) unstarted: Unstarted,
}

/// Says in the log that a processor was dropped before its start.
pub(crate) struct Unstarted;

impl Unstarted {
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        tracing::warn!(
            target: "seriatim::node",
            "a processor was dropped before it was started: call start().await, and keep what it returns"
        );
    }
}

impl Processor {
    /// Checks that the processor can work, then starts it in the background: the database is
    /// reachable and not read-only, its schema fits this program, and the role of the pool has the
    /// rights. Stores its schedules. Takes some milliseconds, 15 s at most, and 2 s for a schedule
    /// that others change.
    ///
    /// # Errors
    /// [`StartError`] says what to do. Nothing runs then.
    /// [`start_when_ready`](Self::start_when_ready) waits instead.
    ///
    /// Sets a panic hook, once in a process: it notes where a handler panicked, for the log, and
    /// calls the hook that was there.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing runs.
    pub async fn start(self) -> Result<Running, StartError> {
        let context = self.context();
        let sessions_wanted = self.config.listen || self.config.presence;
        let checked = async {
            let facts = check(&context, sessions_wanted).await?;
            let stored = schedules::store(&context, &self.schedules).await;
            stored.map(|()| facts).map_err(|error| StartError::Database(redact_detail(error)))
        };
        match checked.await {
            Ok(facts) => {
                let queues = self.config.queues.iter().map(|(options, _)| options);
                warn_of_overridden(&context, &policies(queues)).await;
                Ok(self.run(context, Some(&facts)))
            }
            Err(error) => {
                self.unstarted.disarm();
                context.side.close().await;
                Err(error)
            }
        }
    }

    /// Runs the next jobs of a group with the handler, options and layers of this processor, in a
    /// transaction that is rolled back, and starts nothing else. See
    /// [`Client::rehearse`](crate::Client::rehearse), whose promises and limits these are.
    ///
    /// # Errors
    /// As [`Client::rehearse`](crate::Client::rehearse), and [`RehearsalError::NoHandler`].
    pub async fn rehearse(
        self,
        queue: &str,
        what: Rehearsal,
    ) -> Result<RehearsalReport, RehearsalError> {
        self.unstarted.disarm();
        let Config { pool, client, queues, layers, .. } = self.config;
        let registered = queues.into_iter().find(|(options, _)| options.name() == queue);
        let registered =
            registered.ok_or_else(|| RehearsalError::NoHandler { queue: queue.to_owned() })?;
        let hooks = AttemptHooks { layers: layers.into(), on_event: None };
        client.rehearse_erased(&pool, registered, hooks, what).await
    }

    /// Starts the processor in the background at once. It claims its first job as soon as the
    /// database is reachable and its schema fits, and reports what is missing until then
    /// ([`on_error`](crate::ProcessorBuilder::on_error)). [`Running::is_ready`] says whether it is.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_when_ready(self) -> Running {
        let context = self.context();
        self.run(context, None)
    }

    fn context(&self) -> Arc<Context> {
        let Config { pool, client, on_error, .. } = &self.config;
        // Facts about this pool's connections need not hold for the client's others.
        let store = Arc::new(client.store.for_another_pool(!client.store.is_nameless()));
        Arc::new(Context::new(store, pool, client.enqueue.clone(), on_error.clone()))
    }

    fn run(self, context: Arc<Context>, server: Option<&ServerFacts>) -> Running {
        let Self { config, schedules, need, unstarted } = self;
        unstarted.disarm();
        note_places();
        let Config {
            pool,
            client: _,
            queues,
            schedules: _,
            poll,
            listen,
            presence,
            node,
            maintenance,
            slots,
            watchdog,
            blocked_after,
            on_error: _,
            layers,
            on_event,
        } = config;
        let hooks = AttemptHooks { layers: layers.into(), on_event };
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
        side_tasks.spawn(settle_batch::run(finished, Arc::clone(&context)));
        let parts: Vec<_> = queues.iter().map(|(o, _)| (o.weight, o.concurrency)).collect();
        let (mut loops, mut shown) = (Vec::new(), Vec::new());
        let options: Vec<_> = queues.iter().map(|(options, _)| options.clone()).collect();
        let parts = queue_slots::share(slots, &parts);
        // Half of what the pool has beyond the needs of its processors: the rest is the
        // application's.
        let needed = PoolNeeds::lock().of(&pool);
        let room = (pool.options().get_max_connections() as usize).saturating_sub(needed);
        let more_connections = room / 2 / queues.len().max(1);
        for ((queue, handler), slots) in queues.into_iter().zip(parts) {
            let wake = Arc::new(Notify::new());
            wakes.insert(queue.name().to_owned(), Arc::clone(&wake));
            let heartbeat = Arc::new(LoopHeartbeat::default());
            loops.push((queue.name().to_owned(), Arc::clone(&heartbeat)));
            let vitals = Arc::new(QueueVitals::new(queue.name(), queue.concurrency));
            shown.push(ShownQueue { options: queue.clone(), vitals: Arc::clone(&vitals) });
            let worker = Worker {
                context: Arc::clone(&context),
                queue: Arc::new(QueueRuntime::new(queue, handler, settler.clone(), hooks.clone())),
                pool: pool.clone(),
                wake,
                slots,
                vitals,
                heartbeat: Arc::clone(&heartbeat),
                stop: stop.clone(),
                poll,
                more_connections,
            };
            match &watchdog {
                Some(watchdog) => {
                    workers.spawn(heartbeat.run(watchdog.heartbeat_interval(), worker.run()))
                }
                None => workers.spawn(worker.run()),
            };
        }
        if let Some(watchdog) = watchdog {
            spawn_watchdog(&mut side_tasks, &context, &side_stop, watchdog, loops);
        }
        let row = processor_row(context.processor, node, &options);
        let line = StartLine::new(&options, slots, &row.node, (listen, presence));
        if let Some(facts) = server {
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
            blocked_after,
            stop: side_stop.clone(),
        };
        monitor.spawn(&mut side_tasks);
        if listen {
            spawn_listener(&mut side_tasks, &context, &side_stop, wakes);
        }
        if server.is_none() && !schedules.is_empty() {
            schedules::spawn(&mut side_tasks, &context, &side_stop, schedules);
        }
        if let Some(interval) = maintenance {
            let wake = maintenance_wake;
            spawn_maintenance(&mut side_tasks, &context, &side_stop, options, interval, wake);
        }
        // A guard: the runtime may end before the workers do, and the monitor's thread is not the
        // runtime's.
        let side_stop = side_stop.drop_guard();
        let ended = tokio::spawn(supervise(workers, side_tasks, side_stop, Arc::clone(&context)));
        let health = HealthSource { context, queues: shown, listen, presence };
        Running::new(stop, health, need, ended)
    }
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

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}
