//! What all requests share: pools, the client, the settings, what was rendered last.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use seriatim::Client;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::sync::{Mutex, OnceCell};

use crate::config::{Access, Config};
use crate::error::WebError;
use crate::live::Poll;

/// Limits each statement, so that no page burdens the database for long.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// The time for which all viewers of one address get one rendering.
const RENDERED_FOR: Duration = Duration::from_secs(1);
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
    pub(crate) reads: PgPool,
    pub(crate) writes: PgPool,
    pub(crate) config: Config,
    pub(crate) poll: Poll,
    rendered: Mutex<HashMap<(String, Access), (Instant, Rendering)>>,
}

impl App {
    pub(crate) fn new(pool: &PgPool, config: Config) -> Self {
        let reads = own_pool(pool, 4, true);
        let writes = own_pool(config.write_pool.as_ref().unwrap_or(pool), 2, false);
        Self {
            client: config.client.clone(),
            reads,
            writes,
            config,
            poll: Poll::new(),
            rendered: Mutex::default(),
        }
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

    /// Forgets all renderings, as something was changed.
    pub(crate) async fn forget_rendered(&self) {
        self.rendered.lock().await.clear();
    }
}

/// Returns a pool that connects as `pool` does, with a limit for each statement.
fn own_pool(pool: &PgPool, connections: u32, read_only: bool) -> PgPool {
    let options: PgConnectOptions = pool.connect_options().as_ref().clone();
    // Set once connected: a pooler may refuse it as a start-up parameter.
    let settings = format!(
        "set statement_timeout = {limit}; set lock_timeout = {limit}; \
         set default_transaction_read_only = {read_only}; set application_name = 'seriatim-web'",
        limit = STATEMENT_TIMEOUT.as_millis(),
    );
    let settings: Arc<str> = settings.into();
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(Duration::from_secs(60))
        .after_connect(move |connection, _| {
            let settings = Arc::clone(&settings);
            Box::pin(async move {
                sqlx::raw_sql(AssertSqlSafe(settings)).execute(connection).await?;
                Ok(())
            })
        })
        .connect_lazy_with(options)
}

/// Says that the process answers.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Says whether the database answers.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, &'static str) {
    match sqlx::query("select 1").execute(&app.reads).await {
        Ok(_) => (StatusCode::OK, "ok\n"),
        Err(error) => {
            tracing::warn!(%error, "the page cannot reach the database");
            (StatusCode::SERVICE_UNAVAILABLE, "the database cannot be reached\n")
        }
    }
}
