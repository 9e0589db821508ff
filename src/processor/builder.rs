//! The builder of a processor, and the checks of its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;

use crate::attempt::event::Event;
use crate::attempt::handler::{ErasedHandler, JobHandler};
use crate::attempt::layer::Layer;
use crate::attempt::turn::AttemptHooks;
use crate::client::client::Client;
use crate::client::shards::Shards;
use crate::error::{BackgroundError, BuildError};
use crate::job::error::{BuildMistake, ConfigureError};
use crate::job::name;
use crate::job::queue_options::{Hold, QueueOptions};
use crate::job::queue_settings::{QueueSettings, SettingsDocument};
use crate::job::schedule::{CheckedSchedule, Schedule};
use crate::liveness::watchdog::Watchdog;
use crate::processor::config::Config;
use crate::processor::pool_needs::PoolNeeds;
use crate::processor::processor::{Processor, Unstarted};
use crate::processor::stored::Stored;

/// Collects a processor's settings; [`build`](Self::build) checks them all.
#[must_use = "call build() and start()"]
pub struct ProcessorBuilder {
    config: Config,
}

impl Processor {
    /// Begins a processor on `pool`, which must have a connection for each slot of each queue (at
    /// most as many as the [`slots`](ProcessorBuilder::slots) that they share), and one for each
    /// queue under a lease. All processors on clones of one pool are added up, until they are
    /// dropped or shut down. Connections that the application takes come on top. An idle queue
    /// gives its connections back 2 s after its last job. Beside the pool the processor opens up to
    /// five connections of its own, with the pool's options.
    pub fn builder(pool: PgPool) -> ProcessorBuilder {
        ProcessorBuilder { config: Config::new(vec![(None, pool)]) }
    }

    /// Begins a processor on several servers. It works on each as a processor of its own would: by
    /// claims, a presence, a monitor, wake-ups and maintenance there. So each pool must be as large
    /// as for [`builder`](Self::builder), and each queue has its concurrency on each server.
    /// [`slots`](ProcessorBuilder::slots) bounds the jobs on all of them together: queues have them
    /// by their weights, and the servers on which a queue has work share its part evenly.
    ///
    /// A server that cannot be reached stops its own jobs, and no others. Errors name their server
    /// ([`BackgroundError::OnShard`], the field `shard` in the log), and so does
    /// [`Health`](crate::observe::Health).
    pub fn over(shards: &Shards) -> ProcessorBuilder {
        let servers = shards.iter().map(|(shard, pool)| (Some(shard), pool.clone()));
        ProcessorBuilder { config: Config::new(servers.collect()) }
    }
}

impl ProcessorBuilder {
    /// Registers a queue and the handler of its jobs.
    pub fn queue(mut self, options: QueueOptions, handler: impl JobHandler) -> Self {
        self.config.queues.push((options, Arc::new(handler)));
        self
    }

    /// Adds settings of a queue, which hold for the whole fleet: limits, rates, deduplication,
    /// attempts and backoff. They are stored when the processor starts, as
    /// [`Client::configure_queue`](crate::Client::configure_queue) stores them. Settings that are
    /// not named stay as they are. If versions of a program differ in them, the last that starts
    /// wins. Each server of several gets them.
    ///
    /// [`QueueOptions`] are about this process: slots, hold, time slice. Where a stored setting and
    /// an option differ, the setting counts.
    ///
    /// The role needs the rights of an operator (`docs/roles.sql`), unless the same is stored
    /// already.
    ///
    /// ```no_run
    /// # use seriatim::{ActiveJob, JobError, JobHandler, async_trait};
    /// # struct Call;
    /// # #[async_trait]
    /// # impl JobHandler for Call {
    /// #     type Data = u32; type Output = (); type Error = JobError;
    /// #     async fn handle(&self, _: &mut ActiveJob, _: u32) -> Result<(), JobError> { Ok(()) }
    /// # }
    /// # fn example(pool: sqlx::PgPool) -> Result<(), seriatim::BuildError> {
    /// use seriatim::admin::{QueueSettings, Rate};
    /// use seriatim::{Processor, QueueOptions};
    ///
    /// let processor = Processor::builder(pool)
    ///     .queue(QueueOptions::new("webhooks").concurrency(16), Call)
    ///     .settings(QueueSettings::new("webhooks").rate(Rate::per_second(10)).limit_per_key(4))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn settings(mut self, settings: QueueSettings) -> Self {
        self.config.settings.push(settings);
        self
    }

    /// Adds a schedule: a job at set times. It is stored when the processor starts, under its name,
    /// and stays when the processor does not know it any more
    /// ([`Operator::remove_schedule`](crate::admin::Operator::remove_schedule) removes it). One
    /// that is stored already is set to this one: with another timing it begins from now and makes
    /// up for nothing, with the same its due times go on as they were. A paused one stays paused.
    /// If versions of a program differ in it, the last that starts wins.
    ///
    /// A processor of several servers takes none, as each of them would fire it
    /// ([`BuildMistake::ScheduleOnShards`](crate::BuildMistake::ScheduleOnShards)).
    ///
    /// Any processor with [maintenance](Self::maintenance_interval) fires it, whichever queues it
    /// serves.
    ///
    /// ```no_run
    /// # use seriatim::{ActiveJob, JobError, JobHandler, async_trait};
    /// # struct Report;
    /// # #[async_trait]
    /// # impl JobHandler for Report {
    /// #     type Data = u32; type Output = (); type Error = JobError;
    /// #     async fn handle(&self, _: &mut ActiveJob, _: u32) -> Result<(), JobError> { Ok(()) }
    /// # }
    /// # fn example(pool: sqlx::PgPool) -> Result<(), seriatim::BuildError> {
    /// use std::time::Duration;
    /// use seriatim::{NewJob, Processor, QueueOptions, Schedule};
    ///
    /// let job = NewJob::new("reports", &7).group("customer-7");
    /// let processor = Processor::builder(pool)
    ///     .queue(QueueOptions::new("reports"), Report)
    ///     .schedule(Schedule::every("report", Duration::from_hours(1)).job(job))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.config.schedules.push(schedule);
        self
    }

    /// Uses the schema of `client` instead of `seriatim`.
    pub fn client(mut self, client: &Client) -> Self {
        self.config.client = client.clone();
        self
    }

    /// Sets how often an idle queue is polled for work: the delay, to a tenth of a second, of a job
    /// whose wake-up was missed. 1 ms to 1 hour, default 0.5 s. From the default upwards the
    /// process polls all its idle queues in one statement, if that comes in time. Below, or without
    /// [`presence`](Self::presence), each queue is polled by itself.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.config.poll = interval;
        self
    }

    /// Sets whether to listen for wake-ups, in a session of its own. Default true, and false as
    /// soon as a transaction pooler is seen: see [`presence`](Self::presence).
    pub fn listen(mut self, listen: bool) -> Self {
        self.config.listen = listen;
        self
    }

    /// Sets whether to show by an advisory lock, in a session of its own, that this process lives.
    /// Then others take its jobs over soon after it died, however long their leases are. Default
    /// true, and false as soon as a transaction pooler is seen. Then leases alone decide.
    ///
    /// # Behind a pooler
    /// All connections of a processor have the options of its pool, so they all go through the
    /// pooler. The processor detects its kind before the first claim. Behind a transaction pooler
    /// it reports that ([`BackgroundError::TransactionPooler`]) and goes on without wake-ups,
    /// presence and named statements; it reports nothing if `listen` and `presence` are both off.
    /// Behind a statement pooler it claims nothing ([`BackgroundError::StatementPooler`]).
    ///
    /// The processor's own statements are all in transactions, which set for themselves what they
    /// need; nothing that matters to others stays in a session. Both [holds](crate::Hold) work: the
    /// locks of a [`Hold::Transaction`](crate::Hold::Transaction) go with the connection to the
    /// pooler. A handler's own statements with arguments need `.persistent(false)` there, unless
    /// the pooler keeps track of prepared statements, or forgets them after each transaction. Calls
    /// of a [`Client`] need a transaction and
    /// [`named_statements(false)`](Client::named_statements). `PgBouncer` needs
    /// `ignore_startup_parameters = extra_float_digits`, for the driver. The guide's page
    /// on poolers has it all as a table.
    pub fn presence(mut self, show: bool) -> Self {
        self.config.presence = show;
        self
    }

    /// Names this node, for operators and for
    /// [`Operator::release_node`](crate::admin::Operator::release_node). Default: the host's name.
    /// 1 to 200 characters.
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.config.node = Some(name.into());
        self
    }

    /// Sets how often this process runs retention and the sweep for jobs that nothing would wake;
    /// `None`: never (another process must). With it goes all other maintenance, which comes when
    /// there is some to do: schedules are fired when they are due. If several processes do so, one
    /// works at a time. 10 ms to 1 day, default 10 s.
    pub fn maintenance_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        self.config.maintenance = interval.into();
        self
    }

    /// Sets how many jobs all queues of this processor together run at once; each queue's own
    /// [`concurrency`](QueueOptions::concurrency) holds as well. 1 or more; default: no such bound.
    ///
    /// While more queues have work than there are slots, a free slot goes to the queue that is
    /// furthest behind its [`weight`](QueueOptions::weight). A queue without work leaves its share
    /// to the others, and saves nothing up. Take any span in which queues A and B both have due
    /// work that claims find, and neither is at its own concurrency. The numbers of jobs `a` and
    /// `b` that they start differ by `|a / weight(A) - b / weight(B)| <= (1 + slots) * (1 /
    /// weight(A) + 1 / weight(B))`. The factor is one slot, plus the slots that were taken for jobs
    /// that had not started at an end of the span. The bound does not grow with the span, and no
    /// queue with work starves. Slots are shared, whatever their jobs last, and jobs that run in
    /// one turn share one: the bound is one for [turns](QueueOptions::time_slice).
    ///
    /// A queue without work takes one slot for each of its polls, for the milliseconds of a claim.
    ///
    /// ```no_run
    /// # use seriatim::{ActiveJob, JobError, JobHandler, async_trait};
    /// # struct Mail;
    /// # #[async_trait]
    /// # impl JobHandler for Mail {
    /// #     type Data = u32; type Output = (); type Error = JobError;
    /// #     async fn handle(&self, _: &mut ActiveJob, _: u32) -> Result<(), JobError> { Ok(()) }
    /// # }
    /// # fn example(pool: sqlx::PgPool) -> Result<(), seriatim::BuildError> {
    /// use seriatim::{Processor, QueueOptions};
    ///
    /// let processor = Processor::builder(pool)
    ///     .queue(QueueOptions::new("sign-ups").concurrency(20).weight(4), Mail)
    ///     .queue(QueueOptions::new("newsletters").concurrency(20).weight(1), Mail)
    ///     .slots(20)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn slots(mut self, slots: usize) -> Self {
        self.config.slots = Some(slots);
        self
    }

    /// Sets a watchdog, which ends the process when this processor has stopped making progress, or
    /// its shutdown hangs. Default: none.
    pub fn watchdog(mut self, watchdog: Watchdog) -> Self {
        self.config.watchdog = Some(watchdog);
        self
    }

    /// Sets after how long a handler that blocks its thread is reported
    /// ([`BackgroundError::HandlerBlocks`]); `None`: never. The thread of the monitor sees it, so
    /// that it is reported also if all threads of the runtime are blocked. 10 ms to 1 day, default
    /// 1 s.
    pub fn blocked_after(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.config.blocked_after = limit.into();
        self
    }

    /// Sets a hook that is called with every error that no caller gets. They go to `tracing` as
    /// well: each cause at once, and then at most once a minute, with the number of those that were
    /// left out. The hook gets each error of a job. A state that lasts, such as a server that is
    /// away, it gets at once, then after 1 s, 2 s, 4 s and each further 8 s. It must not block.
    pub fn on_error(mut self, hook: impl Fn(&BackgroundError) + Send + Sync + 'static) -> Self {
        self.config.on_error = Some(Arc::new(hook));
        self
    }

    /// Adds a [`Layer`]: code around the handlers of all queues of this processor. The first that
    /// is added is the outermost. Default: none.
    pub fn layer(mut self, layer: impl Layer) -> Self {
        self.config.layers.push(Box::new(layer));
        self
    }

    /// Sets a hook that is called with each ended attempt, after the commit of its outcome.
    /// Default: none.
    ///
    /// It runs in the processor's own tasks: it must not block, and sends slow work to a channel.
    /// Its panic is caught, and logged. It is never called for an attempt whose commit is not known
    /// to have succeeded. So it is best effort: an attempt is not reported if the process dies
    /// between the commit and the call, or if the answer to the commit is lost. Work that must
    /// happen with the job is written through [`ActiveJob::tx`](crate::ActiveJob::tx). Attempts of
    /// receivers, and of workers that died, are not reported.
    ///
    /// ```
    /// # fn example(pool: sqlx::PgPool) {
    /// use seriatim::Processor;
    /// use seriatim::observe::{EndedAs, Event};
    ///
    /// let (failed, mut reports) = tokio::sync::mpsc::unbounded_channel::<Event>();
    /// let processor = Processor::builder(pool).on_event(move |event| {
    ///     if event.outcome == EndedAs::Failed {
    ///         let _ = failed.send(event.clone());
    ///     }
    /// });
    /// # }
    /// ```
    pub fn on_event(mut self, hook: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.config.on_event = Some(Arc::new(hook));
        self
    }

    /// Checks the settings. Logs a warning if more handlers can run under leases than the pool has
    /// connections: those that call [`tx`](crate::ActiveJob::tx) at once wait for each other.
    ///
    /// # Errors
    /// [`BuildError`] with every mistake: no queue, a queue or a schedule twice, a value out of its
    /// range, a cron expression that cannot be read, a time zone that there is not, a pool too
    /// small for the slots of its processors.
    pub fn build(mut self) -> Result<Processor, BuildError> {
        // Destructured whole, so that a new setting cannot be forgotten here.
        let Config { settings, schedules, .. } = &mut self.config;
        let (settings, given) = (std::mem::take(settings), std::mem::take(schedules));
        let Config {
            servers,
            client,
            queues,
            settings: _,
            schedules: _,
            poll,
            listen: _,
            presence: _,
            node,
            maintenance,
            slots,
            watchdog,
            blocked_after,
            on_error: _,
            layers: _,
            on_event: _,
        } = &self.config;
        let mut mistakes = Vec::new();
        check_queues(queues, &mut mistakes);
        let several = servers.iter().any(|(shard, _)| shard.is_some());
        let limit = client.enqueue.data_limit;
        let stored = Stored {
            settings: checked_settings(settings, &mut mistakes),
            schedules: checked_schedules(given, several, limit, &mut mistakes),
        };
        let out_of_range = |setting, value: &Duration, range| BuildMistake::OutOfRange {
            queue: String::from("(all)"),
            setting,
            value: format!("{value:?}"),
            range,
        };
        if *poll < Duration::from_millis(1) || *poll > Duration::from_hours(1) {
            mistakes.push(out_of_range("poll_interval", poll, "1 ms to 1 hour"));
        }
        if let Some(interval) = maintenance
            && (*interval < Duration::from_millis(10) || *interval > Duration::from_hours(24))
        {
            mistakes.push(out_of_range("maintenance_interval", interval, "10 ms to 1 day"));
        }
        if let Some(limit) = blocked_after
            && (*limit < Duration::from_millis(10) || *limit > Duration::from_hours(24))
        {
            mistakes.push(out_of_range("blocked_after", limit, "10 ms to 1 day"));
        }
        if let Some(node) = node
            && let Err(error) = name::check("node", node, name::QUEUE_LIMIT)
        {
            mistakes.push(error.into());
        }
        if *slots == Some(0) {
            let (queue, value) = (String::from("(all)"), String::from("0"));
            let range = "1 or more";
            mistakes.push(BuildMistake::OutOfRange { queue, setting: "slots", value, range });
        }
        if let Some(watchdog) = watchdog {
            watchdog.mistakes(&mut mistakes);
        }
        let mut needs = PoolNeeds::lock();
        let options = || queues.iter().map(|(options, _)| options);
        let mut own = 0;
        for (shard, pool) in servers {
            let need = pool_need(options(), *slots, needs.of(pool));
            let connections = pool.options().get_max_connections();
            if !reaches(connections, need.all) {
                let (slots, mut detail) = (need.all, need.detail);
                if let Some(shard) = shard {
                    detail = format!("shard {shard}: {detail}");
                }
                mistakes.push(BuildMistake::PoolTooSmall { connections, slots, detail });
            }
            own = need.own;
        }
        if !mistakes.is_empty() {
            return Err(BuildError::new(mistakes));
        }
        let connections = servers.iter().map(|(_, pool)| pool.options().get_max_connections());
        if let Some(connections) = connections.min() {
            warn_of_many_leases(connections, options(), *slots);
        }
        let needs = servers.iter().map(|(_, pool)| needs.add(pool.clone(), own)).collect();
        let hooks = AttemptHooks {
            layers: std::mem::take(&mut self.config.layers).into(),
            on_event: self.config.on_event.take(),
        };
        let unstarted = Unstarted::default();
        Ok(Processor { config: self.config, stored, needs, hooks, unstarted })
    }
}

/// Checks the queues and their handlers.
fn check_queues(
    queues: &[(QueueOptions, Arc<dyn ErasedHandler>)],
    mistakes: &mut Vec<BuildMistake>,
) {
    if queues.is_empty() {
        mistakes.push(BuildMistake::NoQueue);
    }
    for (place, (options, handler)) in queues.iter().enumerate() {
        options.mistakes(mistakes);
        let name = options.name();
        if let Some(kinds) = handler.kinds() {
            kinds.mistakes(name, mistakes);
        }
        if queues[..place].iter().any(|(earlier, _)| earlier.name() == name) {
            mistakes.push(BuildMistake::Twice { queue: name.to_owned() });
        }
    }
}

/// Returns the settings that can be stored.
fn checked_settings(
    given: Vec<QueueSettings>,
    mistakes: &mut Vec<BuildMistake>,
) -> Vec<(String, SettingsDocument)> {
    let mut checked = Vec::new();
    for settings in given {
        match settings.check() {
            Ok(settings) => checked.push(settings),
            Err(ConfigureError::Name(error)) => mistakes.push(error.into()),
            Err(ConfigureError::OutOfRange { queue, setting, value, range }) => {
                mistakes.push(BuildMistake::OutOfRange { queue, setting, value, range });
            }
            // Nothing was asked of a database.
            Err(ConfigureError::Database(_)) => {}
        }
    }
    checked
}

/// Returns the schedules that can be stored.
fn checked_schedules(
    given: Vec<Schedule>,
    several_servers: bool,
    data_limit: usize,
    mistakes: &mut Vec<BuildMistake>,
) -> Vec<CheckedSchedule> {
    let mut schedules: Vec<CheckedSchedule> = Vec::new();
    for schedule in given {
        let name = || schedule.name().to_owned();
        if several_servers {
            mistakes.push(BuildMistake::ScheduleOnShards { schedule: name() });
        } else if schedules.iter().any(|earlier| earlier.name == schedule.name()) {
            mistakes.push(BuildMistake::ScheduleTwice { schedule: name() });
        } else {
            match schedule.check(data_limit) {
                Ok(checked) => schedules.push(checked),
                Err(mistake) => mistakes.push(mistake.into()),
            }
        }
    }
    schedules
}

/// The connections that may be needed at once.
struct Need {
    /// By the processor that is built.
    own: usize,
    /// By all processors on its pool.
    all: usize,
    detail: String,
}

fn reaches(connections: u32, needed: usize) -> bool {
    usize::try_from(connections).map_or(true, |connections| connections >= needed)
}

/// Warns if more handlers may run under leases than the pool has connections.
fn warn_of_many_leases<'a>(
    connections: u32,
    queues: impl Iterator<Item = &'a QueueOptions>,
    bound: Option<usize>,
) {
    let leased = queues.filter(|options| options.hold.is_leased());
    let handlers = leased.fold(0, |sum: usize, options| sum.saturating_add(options.concurrency));
    let handlers = bound.map_or(handlers, |bound| handlers.min(bound));
    if !reaches(connections, handlers) {
        tracing::warn!(
            handlers,
            connections,
            "more handlers can run under leases than the pool has connections: those that call tx() at once wait for \
             each other. If many do, raise max_connections or lower the concurrency"
        );
    }
}

/// Returns what the queues and the other processors on their pool may need at once.
fn pool_need<'a>(
    queues: impl Iterator<Item = &'a QueueOptions>,
    bound: Option<usize>,
    others: usize,
) -> Need {
    let (mut each, mut held, mut leased) = (Vec::new(), 0_usize, 0_usize);
    for options in queues {
        each.push(format!("{} {}", options.name(), options.connections()));
        match options.hold {
            Hold::Transaction => held = held.saturating_add(options.connections()),
            Hold::Lease(_) => leased = leased.saturating_add(options.connections()),
        }
    }
    // A queue whose jobs are kept by leases claims beside the jobs that run.
    let own = match bound {
        Some(bound) if bound < held => {
            each.push(format!("of which {bound} at once"));
            bound
        }
        _ => held,
    }
    .saturating_add(leased);
    if others > 0 {
        each.push(format!("other processors on this pool {others}"));
    }
    Need { own, all: own.saturating_add(others), detail: each.join(", ") }
}

impl fmt::Debug for ProcessorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}
