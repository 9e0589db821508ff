//! The state that all requests share: pools, the client, the settings, the last renderings.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use seriatim::Client;
use seriatim::admin::QueueOverview;
use seriatim::shards::ShardId;
use sqlx::PgPool;
use tokio::sync::{Mutex, OnceCell};
use tokio::time::timeout;

use crate::config::{Access, Config};
use crate::error::WebError;
use crate::own_pool::OwnPool;
use crate::poll::Poll;

/// The time for which all viewers of one address get one rendering.
const RENDERED_FOR: Duration = Duration::from_secs(1);
/// Bounds the read of the queues: its statement ends after 2 s.
const READS_WITHIN: Duration = Duration::from_secs(5);
/// The longest time for which the queues at a glance are shown again.
const OVERVIEWS_FOR: Duration = Duration::from_secs(10);
/// Bounds how many renderings are kept.
const RENDERINGS: usize = 256;

type Rendering = Arc<OnceCell<Arc<Rendered>>>;

/// The main part of a page, and how long it took to make.
pub(crate) struct Rendered {
    pub(crate) title: String,
    pub(crate) main: String,
    pub(crate) took: Duration,
}

pub(crate) struct App {
    pub(crate) client: Client,
    reads: OwnPool,
    writes: OwnPool,
    pub(crate) config: Arc<Config>,
    /// The number of its server, if there are several.
    pub(crate) shard: Option<ShardId>,
    pub(crate) poll: Poll,
    rendered: Mutex<HashMap<(String, Access), (Instant, Rendering)>>,
    queues: Mutex<Option<Overviews>>,
}

/// The queues at a glance, as they were read last.
struct Overviews {
    at: Instant,
    cost: Duration,
    queues: Arc<Vec<QueueOverview>>,
}

impl Overviews {
    /// With many groups they cost more, and are read less often.
    fn are_fresh(&self) -> bool {
        let for_so_long = (self.cost * 10).clamp(RENDERED_FOR, OVERVIEWS_FOR);
        self.at.elapsed() < for_so_long
    }
}

impl App {
    pub(crate) fn new(pool: &PgPool, config: Config, shard: Option<ShardId>) -> Self {
        let reads = OwnPool::new(pool, 4, true);
        let writes = OwnPool::new(config.write_pool.as_ref().unwrap_or(pool), 2, false);
        let client = config.client.clone();
        Self {
            // Data that may not be shown is not even read, so the reads need no right to it.
            client: if config.show_data { client } else { client.without_data() },
            reads,
            writes,
            config: Arc::new(config),
            shard,
            poll: Poll::new(),
            rendered: Mutex::default(),
            queues: Mutex::default(),
        }
    }

    pub(crate) fn reads(&self) -> PgPool {
        self.reads.get()
    }

    pub(crate) fn writes(&self) -> PgPool {
        self.writes.get()
    }

    /// Returns the rendering of an address for a role: that of the last second, or a new one that
    /// all who ask meanwhile wait for.
    pub(crate) async fn rendered(
        &self,
        address: String,
        access: Access,
        render: impl AsyncFnOnce() -> Result<(String, String), WebError>,
    ) -> Result<Arc<Rendered>, WebError> {
        let cell = {
            let mut all = self.rendered.lock().await;
            if all.len() >= RENDERINGS {
                all.clear();
            }
            let now = Instant::now();
            let fresh = || (now, Rendering::default());
            let entry = all.entry((address, access)).or_insert_with(fresh);
            if now.duration_since(entry.0) > RENDERED_FOR {
                *entry = fresh();
            }
            Arc::clone(&entry.1)
        };
        let make = async || {
            let begin = Instant::now();
            let (title, main) = render().await?;
            Ok::<_, WebError>(Arc::new(Rendered { title, main, took: begin.elapsed() }))
        };
        cell.get_or_try_init(make).await.map(Arc::clone)
    }

    /// Forgets what was read and rendered, as something was changed.
    pub(crate) async fn forget(&self) {
        *self.queues.lock().await = None;
        self.rendered.lock().await.clear();
    }

    /// Returns the queues at a glance, as they are or were a moment ago. All who ask share them.
    pub(crate) async fn queues(&self) -> Result<Arc<Vec<QueueOverview>>, sqlx::Error> {
        let mut last = self.queues.lock().await;
        if let Some(last) = last.as_ref().filter(|last| last.are_fresh()) {
            return Ok(Arc::clone(&last.queues));
        }
        self.read_queues(&mut last).await
    }

    /// Reads the queues anew, for all. Returns also how long that took.
    pub(crate) async fn poll_queues(
        &self,
    ) -> Result<(Arc<Vec<QueueOverview>>, Duration), sqlx::Error> {
        let mut last = self.queues.lock().await;
        let queues = self.read_queues(&mut last).await?;
        let cost = last.as_ref().map(|last| last.cost).unwrap_or_default();
        Ok((queues, cost))
    }

    async fn read_queues(
        &self,
        last: &mut Option<Overviews>,
    ) -> Result<Arc<Vec<QueueOverview>>, sqlx::Error> {
        let at = Instant::now();
        // A host that vanished answers never, and everybody waits for the lock.
        let read = timeout(READS_WITHIN, self.client.queues(&self.reads())).await;
        let queues = Arc::new(read.map_err(|_| sqlx::Error::PoolTimedOut)??);
        *last = Some(Overviews { at, cost: at.elapsed(), queues: Arc::clone(&queues) });
        Ok(queues)
    }
}

/// Says that the process answers.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Says whether the database answers.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, &'static str) {
    match sqlx::query("select 1").execute(&app.reads()).await {
        Ok(_) => (StatusCode::OK, "ok\n"),
        Err(error) => {
            tracing::warn!(%error, "the page cannot reach the database");
            (StatusCode::SERVICE_UNAVAILABLE, "the database cannot be reached\n")
        }
    }
}
