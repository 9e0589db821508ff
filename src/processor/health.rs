//! The health of a running processor.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::job::json::optional_seconds;
use crate::job::queue_options::{Hold, QueueOptions};
use crate::job::shard::ShardId;
use crate::liveness::context::Context;
use crate::liveness::vitals::QueueVitals;

/// The health of a processor at one moment, from [`Running::health`](crate::Running::health). It
/// asks the database nothing. In JSON, times are seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// Whether it claims jobs: the schema fits, each queue's last claim succeeded, and it is not
    /// shutting down, and no background task has just panicked. With a presence, also whether that
    /// is proved. On several servers
    /// ([`Processor::over`](crate::Processor::over)): whether it is so on one of them. A server
    /// that is away makes no process unready.
    pub ready: bool,
    /// Why it is not ready, each in a sentence; empty if it is. With several servers each names
    /// its own, and they are those of all servers that are not ready.
    pub reasons: Vec<String>,
    /// Its queues, in the order of the builder's calls; with several servers, of each server in
    /// turn.
    pub queues: Vec<QueueHealth>,
    /// Whether other processes can see that this one lives, on all servers; `None` without a
    /// [presence](crate::ProcessorBuilder::presence), as behind a transaction pooler.
    pub presence: Option<bool>,
    /// Whether it listens for wake-ups, on all servers; `None` if it
    /// [does not](crate::ProcessorBuilder::listen).
    pub listener: Option<bool>,
    /// The number of running handlers, on all servers.
    pub running: u64,
}

/// The health of one queue of a processor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QueueHealth {
    /// The queue.
    pub queue: String,
    /// The number of the server, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardId>,
    /// How its jobs are held: `transaction` or `lease`.
    pub hold: &'static str,
    /// The number of its slots.
    pub slots: usize,
    /// The number of slots in which a turn runs.
    pub busy: usize,
    /// The number of slots that are free. Queues that share slots may find fewer.
    pub free: usize,
    /// How long ago its last claim that succeeded came back; `None` before the first. An idle queue
    /// claims every 30 s at least; in between, the process polls for it.
    #[serde(serialize_with = "optional_seconds")]
    pub last_claim_age: Option<Duration>,
    /// Whether its last claim failed.
    pub claims_fail: bool,
    /// How long the jobs of the last claim had been due, at most, by this machine's clock. `None`
    /// until a claim has brought a job.
    #[serde(serialize_with = "optional_seconds")]
    pub due_lag: Option<Duration>,
}

/// A queue as its processor shows it.
pub(crate) struct ShownQueue {
    pub(crate) options: QueueOptions,
    pub(crate) vitals: Arc<QueueVitals>,
}

/// A handle that reads the health of a processor, for the state of a web server: it can be cloned,
/// and outlives [`Running::shutdown`](crate::Running::shutdown). From
/// [`Running::health_probe`](crate::Running::health_probe).
#[derive(Clone)]
pub struct HealthProbe {
    servers: Arc<[HealthSource]>,
}

impl HealthProbe {
    pub(crate) fn new(servers: Vec<HealthSource>) -> Self {
        Self { servers: servers.into() }
    }

    /// Returns whether the processor claims jobs and how its parts are. Asks the database nothing,
    /// and takes microseconds. Not ready once the processor stops.
    pub fn health(&self) -> Health {
        let healths: Vec<_> = self.servers.iter().map(HealthSource::read).collect();
        let all = |part: fn(&Health) -> Option<bool>| {
            healths.iter().filter_map(part).reduce(|all, one| all && one)
        };
        Health {
            ready: healths.iter().any(|health| health.ready),
            presence: all(|health| health.presence),
            listener: all(|health| health.listener),
            running: healths.iter().map(|health| health.running).sum(),
            reasons: healths.iter().flat_map(|health| health.reasons.clone()).collect(),
            queues: healths.into_iter().flat_map(|health| health.queues).collect(),
        }
    }

    /// Returns [`Health::ready`].
    pub fn is_ready(&self) -> bool {
        self.health().ready
    }

    pub(crate) fn contexts(&self) -> impl Iterator<Item = &Arc<Context>> {
        self.servers.iter().map(|server| &server.context)
    }
}

impl fmt::Debug for HealthProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthProbe").finish_non_exhaustive()
    }
}

/// The sources that `health` reads, for one server.
pub(crate) struct HealthSource {
    pub(crate) context: Arc<Context>,
    pub(crate) queues: Vec<ShownQueue>,
    pub(crate) listen: bool,
    pub(crate) presence: bool,
}

/// Returns the word for a hold.
pub(crate) fn word_of(hold: Hold) -> &'static str {
    match hold {
        Hold::Transaction => "transaction",
        Hold::Lease(_) => "lease",
    }
}

impl HealthSource {
    fn read(&self) -> Health {
        let (context, now) = (&self.context, Instant::now());
        let queues: Vec<_> =
            self.queues.iter().map(|queue| queue.read(context.shard, now)).collect();
        // A pooler owns the sessions that both would need.
        let sessions = !context.pooler_state.pooled.is_cancelled();
        let presence = (self.presence && sessions).then(|| context.vitals.has_presence(now));
        let listener = (self.listen && sessions).then(|| context.vitals.is_listening());
        let mut reasons = Vec::new();
        if context.stop.is_cancelled() {
            reasons.push(String::from("the processor is stopping"));
        }
        if !context.schema.is_open() {
            reasons.push(String::from("the schema is not known to fit this program"));
        }
        if presence == Some(false) {
            reasons.push(String::from("the presence of this process is not proved"));
        }
        for task in context.vitals.down() {
            reasons.push(format!("{task} panicked, and does not run at the moment"));
        }
        for QueueHealth { queue, last_claim_age, claims_fail, .. } in &queues {
            if *claims_fail {
                reasons.push(format!("the last claim of queue {queue:?} failed"));
            } else if last_claim_age.is_none() {
                reasons.push(format!("queue {queue:?} has not claimed yet"));
            }
        }
        if let Some(shard) = context.shard {
            for reason in &mut reasons {
                *reason = format!("shard {shard}: {reason}");
            }
        }
        let running = context.counters.totals().still_running;
        Health { ready: reasons.is_empty(), reasons, queues, presence, listener, running }
    }
}

impl ShownQueue {
    fn read(&self, shard: Option<ShardId>, now: Instant) -> QueueHealth {
        let (slots, claims) = (self.options.concurrency, self.vitals.claims());
        let busy = self.vitals.slot_usage.taken().min(self.options.concurrency);
        QueueHealth {
            queue: self.options.name().to_owned(),
            shard,
            hold: word_of(self.options.hold),
            slots,
            busy,
            free: slots.saturating_sub(busy),
            last_claim_age: claims.last.map(|last| now.saturating_duration_since(last)),
            claims_fail: claims.failing,
            due_lag: claims.lag,
        }
    }
}
