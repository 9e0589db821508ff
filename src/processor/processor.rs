//! A processor that is built, and its start on each of its servers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::attempt::panics::note_places;
use crate::attempt::turn::AttemptHooks;
use crate::error::{RehearsalError, StartError};
use crate::job::rehearsal::{Rehearsal, RehearsalReport};
use crate::job::shard::ShardId;
use crate::liveness::context::Context;
use crate::processor::config::Config;
use crate::processor::pool_needs::PoolNeed;
use crate::processor::running::Running;
use crate::processor::server::{Server, ServerSettings, may_come_back};
use crate::processor::start_line::{policies, warn_of_overridden};
use crate::processor::stored::Stored;
use crate::slots::queue_slots;

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
    pub(crate) stored: Stored,
    pub(crate) needs: Vec<Arc<PoolNeed>>,
    pub(crate) hooks: AttemptHooks,
    pub(crate) unstarted: Unstarted,
}

/// Warns in the log of a processor that was dropped before it was used.
#[derive(Default)]
pub(crate) struct Unstarted {
    is_used: AtomicBool,
}

impl Unstarted {
    pub(crate) fn disarm(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        if *self.is_used.get_mut() {
            return;
        }
        tracing::warn!(
            target: "seriatim::node",
            "a processor was dropped before it was started: call start().await, and keep what it returns"
        );
    }
}

impl Processor {
    /// Checks that the processor can work, then starts it in the background: the database is
    /// reachable and not read-only, its schema fits this program, and the role of the pool has the
    /// rights. Stores its settings and schedules. Takes some milliseconds, 15 s at most, and 2 s
    /// for each of these that others change.
    ///
    /// If it has several servers ([`over`](Self::over)), one must be so. The others may be away or
    /// read-only, and are given 2 s to answer from then on: the processor works there as soon as
    /// they are back, as after [`start_when_ready`](Self::start_when_ready). All that answer must
    /// fit.
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
        let sessions_wanted = self.config.listen || self.config.presence;
        let mut servers = self.servers();
        let (stored, ready) = (&self.stored, CancellationToken::new());
        let check = |server| Server::check_beside(server, sessions_wanted, stored, &ready);
        let checked = join_all(servers.iter().map(check)).await;
        let one_is_ready = checked.iter().any(Result::is_ok);
        let mut refused = None;
        for (server, checked) in servers.iter_mut().zip(checked) {
            match checked {
                Ok(facts) => server.facts = Some(facts),
                Err(error) if one_is_ready && may_come_back(&error) => server.report_away(error),
                Err(error) => refused = refused.or(Some(server.name(error))),
            }
        }
        if let Some(error) = refused {
            self.unstarted.disarm();
            join_all(servers.iter().map(|server| server.context.side.close())).await;
            return Err(error);
        }
        let queues = self.config.queues.iter().map(|(options, _)| options);
        let policies = policies(queues);
        let ready = servers.iter().filter(|server| server.facts.is_some());
        join_all(ready.map(|server| warn_of_overridden(&server.context, &policies))).await;
        Ok(self.run(servers))
    }

    /// Runs the next jobs of a group with the handler, options and layers of this processor, in a
    /// transaction that is rolled back, and starts nothing else. See
    /// [`Client::rehearse`](crate::Client::rehearse), whose promises and limits these are. Several
    /// servers are asked in turn for jobs of the group; if none has any, an error of one is the
    /// answer.
    ///
    /// # Errors
    /// As [`Client::rehearse`](crate::Client::rehearse), and [`RehearsalError::NoHandler`].
    pub async fn rehearse(
        self,
        queue: &str,
        what: Rehearsal,
    ) -> Result<RehearsalReport, RehearsalError> {
        self.unstarted.disarm();
        let Config { servers, client, queues, .. } = self.config;
        let registered = queues.into_iter().find(|(options, _)| options.name() == queue);
        let registered =
            registered.ok_or_else(|| RehearsalError::NoHandler { queue: queue.to_owned() })?;
        let hooks = AttemptHooks { on_event: None, ..self.hooks };
        let job = what.from.and_then(ShardId::of_job);
        let (group, from) = (what.group.clone(), what.from.unwrap_or_default());
        let mut answer = Err(RehearsalError::NotOfGroup { job: from, group });
        for (shard, pool) in &servers {
            if shard.is_some() && job.is_some() && *shard != job {
                continue;
            }
            let (registered, hooks) = (registered.clone(), hooks.clone());
            let found = client.rehearse_erased(pool, registered, hooks, what.clone()).await;
            if found.as_ref().is_ok_and(|found| !found.jobs.is_empty()) {
                return found;
            }
            // The group may be on the server that failed.
            if !matches!(answer, Err(RehearsalError::Database(_) | RehearsalError::Running { .. }))
            {
                answer = found;
            }
        }
        answer
    }

    /// Starts the processor in the background at once. It claims its first job as soon as the
    /// database is reachable and its schema fits, and reports what is missing until then
    /// ([`on_error`](crate::ProcessorBuilder::on_error)). [`Running::is_ready`] says whether it is.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_when_ready(self) -> Running {
        let servers = self.servers();
        self.run(servers)
    }

    pub(crate) fn servers(&self) -> Vec<Server> {
        let Config { servers, client, on_error, .. } = &self.config;
        let server = |(shard, pool): &(Option<ShardId>, PgPool)| {
            // Facts about this pool's connections need not hold for the client's others.
            let store = Arc::new(client.store.for_another_pool(!client.store.is_nameless()));
            let settings = client.enqueue.clone();
            let context = Context::new(store, (*shard, pool), settings, on_error.clone());
            Server { context: Arc::new(context), pool: pool.clone(), facts: None }
        };
        servers.iter().map(server).collect()
    }

    fn run(self, servers: Vec<Server>) -> Running {
        let Self { config, stored, needs, hooks, unstarted } = self;
        unstarted.disarm();
        note_places();
        let parts: Vec<_> = config.queues.iter().map(|(o, _)| (o.weight, o.concurrency)).collect();
        let parts = queue_slots::share(config.slots, &parts, servers.len());
        let settings = ServerSettings { config, stored: Arc::new(stored), hooks };
        let (mut ends, mut health) = (Vec::new(), Vec::new());
        for (server, parts) in servers.into_iter().zip(parts) {
            let (end, source) = server.spawn(&settings, parts);
            ends.push(end);
            health.push(source);
        }
        let ended = tokio::spawn(async move { drop(join_all(ends).await) });
        Running::new(health, needs, ended)
    }
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}
