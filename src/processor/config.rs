//! The settings of a processor, with their defaults.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;

use crate::attempt::event::EventHook;
use crate::attempt::handler::ErasedHandler;
use crate::attempt::layer::Layer;
use crate::client::client::Client;
use crate::job::queue_options::QueueOptions;
use crate::job::queue_settings::QueueSettings;
use crate::job::schedule::Schedule;
use crate::job::shard::ShardId;
use crate::liveness::context::ErrorHook;
use crate::liveness::watchdog::Watchdog;

/// The settings of a processor, as its builder collects them.
pub(crate) struct Config {
    /// Each with its number if there are several.
    pub(crate) servers: Vec<(Option<ShardId>, PgPool)>,
    pub(crate) client: Client,
    pub(crate) queues: Vec<(QueueOptions, Arc<dyn ErasedHandler>)>,
    pub(crate) settings: Vec<QueueSettings>,
    pub(crate) schedules: Vec<Schedule>,
    pub(crate) poll: Duration,
    pub(crate) listen: bool,
    pub(crate) presence: bool,
    pub(crate) node: Option<String>,
    pub(crate) maintenance: Option<Duration>,
    pub(crate) slots: Option<usize>,
    pub(crate) watchdog: Option<Watchdog>,
    pub(crate) blocked_after: Option<Duration>,
    pub(crate) on_error: Option<ErrorHook>,
    pub(crate) layers: Vec<Box<dyn Layer>>,
    pub(crate) on_event: Option<EventHook>,
}

impl Config {
    /// Returns the defaults that each method of the builder states.
    pub(crate) fn new(servers: Vec<(Option<ShardId>, PgPool)>) -> Self {
        Self {
            servers,
            client: Client::default(),
            queues: Vec::new(),
            settings: Vec::new(),
            schedules: Vec::new(),
            poll: Duration::from_millis(500),
            listen: true,
            presence: true,
            node: None,
            maintenance: Some(Duration::from_secs(10)),
            slots: None,
            watchdog: None,
            blocked_after: Some(Duration::from_secs(1)),
            on_error: None,
            layers: Vec::new(),
            on_event: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues: Vec<_> = self.queues.iter().map(|(options, _)| options).collect();
        f.debug_struct("Processor")
            .field("schema", &self.client.schema())
            .field(
                "shards",
                &self.servers.iter().filter_map(|(shard, _)| *shard).collect::<Vec<_>>(),
            )
            .field("queues", &queues)
            .field("settings", &self.settings)
            .field("schedules", &self.schedules)
            .field("poll", &self.poll)
            .field("listen", &self.listen)
            .field("presence", &self.presence)
            .field("node", &self.node)
            .field("maintenance_interval", &self.maintenance)
            .field("slots", &self.slots)
            .field("watchdog", &self.watchdog)
            .finish_non_exhaustive()
    }
}
