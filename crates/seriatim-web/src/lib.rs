//! The page of [`seriatim`]: see the groups of each queue, learn why one
//! stands, and mend it, in a browser. Also the same as a JSON API.
//!
//! [`router`] makes an axum router for an application to mount; [`serve`] serves it alone.
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use axum::Router;
//! use seriatim_web::{Access, Auth, Config, User};
//!
//! let secret = std::env::var("PAGE_PASSWORD")?;
//! let page = seriatim_web::router(
//!     pool,
//!     Config::new().auth(Auth::Basic(vec![User::new("ann", &secret, Access::Operator)])),
//! );
//! let app: Router = Router::new().nest_service("/jobs", page);
//! # Ok(())
//! # }
//! ```
//!
//! Without [`Config::auth`] or [`Config::access`] every request is refused.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
mod action;
mod api;
mod app;
mod assets;
mod chart;
mod config;
mod data;
mod error;
mod headers;
mod live;
mod metrics;
mod own_pool;
mod pages;
mod poll;
mod servers;
mod timeline;
mod track;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::routing::get;
use axum::{Router, middleware};
use seriatim::shards::Shards;
use sqlx::PgPool;
use tokio::net::TcpListener;

pub use config::{Access, Auth, Config, Identity, User};
pub use servers::router_over;

use crate::app::App;

/// Returns the page and its API as a router.
///
/// It opens connections of its own with the options of `pool`, at most 4 to read and 2 to write,
/// each statement of which ends after 2 s. They follow where the pool is led.
///
/// Mount it by `nest_service`, under any path.
///
/// # Panics
/// Outside of a Tokio runtime.
#[expect(clippy::needless_pass_by_value, reason = "a pool is a handle, and `serve` takes one too")]
pub fn router(pool: PgPool, config: Config) -> Router {
    page_of(Arc::new(App::new(&pool, config, None)))
}

/// Returns the page of one server.
fn page_of(app: Arc<App>) -> Router {
    let guard = middleware::from_fn_with_state(Arc::clone(&app.config), access::require_viewer);
    let guarded = pages::routes()
        .nest("/api/v1", api::routes())
        .route("/events", get(live::events))
        .route("/metrics", get(metrics::metrics))
        .fallback(error::no_such_page)
        .layer(middleware::from_fn(error::without_nul))
        .layer(guard);
    Router::new()
        .route("/assets/{name}", get(assets::asset))
        .route("/healthz", get(app::healthz))
        .route("/readyz", get(app::readyz))
        .merge(guarded)
        .layer(middleware::from_fn(headers::secure))
        .with_state(app)
}

/// Serves the page on a listener, until the process ends.
///
/// # Errors
/// Those of the listener.
pub async fn serve(listener: TcpListener, pool: PgPool, config: Config) -> std::io::Result<()> {
    serve_router(listener, router(pool, config)).await
}

/// Serves the page over several servers on a listener, until the process ends.
///
/// # Errors
/// Those of the listener.
pub async fn serve_over(
    listener: TcpListener,
    shards: &Shards,
    config: Config,
) -> std::io::Result<()> {
    serve_router(listener, router_over(shards, config)).await
}

async fn serve_router(listener: TcpListener, router: Router) -> std::io::Result<()> {
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await
}
