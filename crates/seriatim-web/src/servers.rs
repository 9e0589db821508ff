//! `/` over several servers: each at a glance, with the page of each behind it.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Extension, Query, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Json, Router, middleware};
use futures::StreamExt;
use futures::future::{join, join_all};
use futures::stream::FuturesUnordered;
use serde::Serialize;
use seriatim::admin::{QueueOverview, TookOver};
use seriatim::explain::BoundedCount;
use seriatim::observe::Metrics;
use seriatim::shards::{ShardId, Shards};

use crate::app::{App, healthz};
use crate::config::{Config, Identity};
use crate::error::{PageError, WebError};
use crate::metrics::{self, of_fleet};
use crate::pages::find::FindQuery;
use crate::pages::frame::Asked;
use crate::pages::url::{encode, field};
use crate::pages::view::{When, bounded};
use crate::{access, assets, data, error, headers, page_of};

/// The pages of all servers.
type Servers = Arc<[(ShardId, Arc<App>)]>;

/// Returns the page and its API over several servers as a router. `/` shows each server at a
/// glance, also one that gives no answer; `/shard/N/` is the page of one of them, and
/// `/api/v1/servers` has the same as JSON. `/metrics` has those of all servers, with the label
/// `shard`.
///
/// It opens connections to each as [`router`](crate::router) does. A
/// [`write_pool`](Config::write_pool) is for one server, and is not used.
///
/// # Panics
/// Outside of a Tokio runtime.
pub fn router_over(shards: &Shards, mut config: Config) -> Router {
    config.write_pool = None;
    let app = |shard, pool| Arc::new(App::new(pool, config.clone(), Some(shard)));
    let servers: Servers = shards.iter().map(|(shard, pool)| (shard, app(shard, pool))).collect();
    let guard = middleware::from_fn_with_state(Arc::new(config), access::require_viewer);
    let front = Router::new()
        .route("/", get(show))
        .route("/find", get(find))
        .route("/api/v1/servers", get(list))
        .route("/metrics", get(all_metrics))
        .fallback(error::no_such_page)
        .layer(middleware::from_fn(error::without_nul))
        .layer(guard);
    let front = Router::new()
        .route("/assets/{name}", get(assets::asset))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .merge(front)
        .layer(middleware::from_fn(headers::secure))
        .with_state(Arc::clone(&servers));
    servers.iter().fold(front, |front, (shard, app)| {
        front.nest_service(&format!("/shard/{shard}"), page_of(Arc::clone(app)))
    })
}

/// Says whether the database of a server answers. It waits for none that is away if another does.
async fn readyz(State(servers): State<Servers>) -> (StatusCode, &'static str) {
    let ask = async |app: &App| sqlx::query("select 1").execute(&app.reads()).await;
    let mut asked: FuturesUnordered<_> = servers.iter().map(|(_, app)| ask(app)).collect();
    while let Some(answer) = asked.next().await {
        if answer.is_ok() {
            return (StatusCode::OK, "ok\n");
        }
    }
    (StatusCode::SERVICE_UNAVAILABLE, "no database can be reached\n")
}

/// Shows the metrics of all servers, and of this process.
async fn all_metrics(State(servers): State<Servers>) -> Response {
    let asked = servers.iter().map(|(shard, app)| async move {
        let metrics = of_fleet(app).await.inspect_err(
            |error| tracing::warn!(%error, %shard, "the metrics of a server could not be read"),
        );
        (*shard, metrics.ok())
    });
    let all = join_all(asked).await;
    let all = Metrics::all_to_prometheus(all.iter().map(|(shard, of)| (*shard, of.as_ref())));
    match servers.first() {
        Some((_, app)) => metrics::text(all, &app.config).into_response(),
        None => all.into_response(),
    }
}

/// A server at a glance.
#[derive(Serialize)]
struct Server {
    shard: ShardId,
    /// Why it gives no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// When it took another server's place.
    #[serde(skip_serializing_if = "Option::is_none")]
    took_over: Option<TookOver>,
    queues: Vec<QueueOverview>,
}

async fn ask(servers: &Servers) -> Vec<Server> {
    let asked = servers.iter().map(|(shard, app)| async move {
        match join(data::queues(app), data::took_over(app)).await {
            (Ok(queues), Ok(took_over)) => {
                Server { shard: *shard, error: None, took_over, queues: queues.to_vec() }
            }
            (Err(error), _) | (_, Err(error)) => {
                let error = Some(error.to_string());
                Server { shard: *shard, error, took_over: None, queues: Vec::new() }
            }
        }
    });
    join_all(asked).await
}

async fn list(State(servers): State<Servers>) -> Json<Vec<Server>> {
    Json(ask(&servers).await)
}

#[derive(Template)]
#[template(path = "servers.html")]
struct ServersPage<'a> {
    style: String,
    user: &'a str,
    role: &'a str,
    find: String,
    /// The seconds until it is read anew.
    refresh: u32,
    servers: Vec<ServerRow>,
}

struct ServerRow {
    shard: ShardId,
    error: Option<String>,
    /// When it took another server's place, and its timeline.
    took_over: Option<(When, Option<i64>)>,
    queues: usize,
    /// Counts of groups and jobs that are not zero: their word, and where they are.
    groups: Vec<(&'static str, String)>,
    jobs: Vec<(&'static str, String)>,
    oldest: Option<When>,
    /// Where the results of a search are, and how many.
    found: Option<(String, usize)>,
}

/// A count of a queue.
type CountOf = fn(&QueueOverview) -> BoundedCount;

/// Adds the counts of queues, and leaves out those that are zero.
fn sums<const N: usize>(
    queues: &[QueueOverview],
    counts: [(&'static str, CountOf); N],
) -> Vec<(&'static str, String)> {
    let sum = |of: CountOf| queues.iter().map(of).sum::<BoundedCount>();
    let summed = counts.map(|(word, of)| (word, sum(of)));
    let any = summed.into_iter().filter(|(_, count)| count.count > 0);
    any.map(|(word, count)| (word, bounded(count))).collect()
}

impl ServerRow {
    fn new(server: Server) -> Self {
        let queues = &server.queues;
        Self {
            shard: server.shard,
            groups: sums(
                queues,
                [
                    ("running", |queue| queue.groups.running),
                    ("ready", |queue| queue.groups.ready),
                    ("delayed", |queue| queue.groups.delayed),
                    ("halted", |queue| queue.groups.halted),
                    ("paused", |queue| queue.groups.paused),
                    ("parked", |queue| queue.groups.parked),
                ],
            ),
            jobs: sums(
                queues,
                [
                    ("queued", |queue| queue.jobs.queued),
                    ("started", |queue| queue.jobs.started),
                    ("failed", |queue| queue.jobs.failed),
                ],
            ),
            oldest: queues.iter().filter_map(|queue| queue.oldest_due).min().map(When::new),
            queues: queues.len(),
            error: server.error,
            took_over: server.took_over.map(|took| (When::new(took.at), took.timeline)),
            found: None,
        }
    }
}

fn page(identity: &Identity, find: &str, servers: Vec<ServerRow>) -> Result<Response, PageError> {
    let page = ServersPage {
        style: assets::style_path(),
        user: &identity.name,
        role: identity.access.as_str(),
        find: field(find),
        refresh: if servers.iter().any(|server| server.error.is_some()) { 3 } else { 15 },
        servers,
    };
    Ok(Html(page.render().map_err(WebError::from)?).into_response())
}

async fn show(
    State(servers): State<Servers>,
    Extension(identity): Extension<Identity>,
) -> Result<Response, PageError> {
    let rows = ask(&servers).await.into_iter().map(ServerRow::new).collect();
    page(&identity, "", rows)
}

/// Leads to the server of a job, or shows on which servers something is found.
async fn find(
    State(servers): State<Servers>,
    Extension(identity): Extension<Identity>,
    query: Asked<FindQuery>,
) -> Result<Response, PageError> {
    let Query(FindQuery { q }) = query?;
    let url = |shard: ShardId| format!("shard/{shard}/find?q={}", encode(&q));
    let id = q.trim().trim_start_matches('#').parse().ok();
    let of_job = id.and_then(ShardId::of_job);
    if let Some(shard) = of_job.filter(|of| servers.iter().any(|(shard, _)| shard == of)) {
        return Ok(Redirect::to(&url(shard)).into_response());
    }
    let mut rows: Vec<_> = ask(&servers).await.into_iter().map(ServerRow::new).collect();
    let found = join_all(servers.iter().map(|(_, app)| data::find(app, &q))).await;
    for (row, found) in rows.iter_mut().zip(found) {
        match found {
            Ok(found) => {
                let number = found.queues.len() + found.groups.len() + found.jobs.len();
                row.found = Some((url(row.shard), number));
            }
            Err(error) => row.error = Some(error.to_string()),
        }
    }
    page(&identity, &q, rows)
}
