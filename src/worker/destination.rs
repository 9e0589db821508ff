//! The server that the pool leads to since its options changed. A claim on one server cannot be
//! held on another.
//!
//! Tests: `led_elsewhere::*`.

use std::sync::Arc;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgPool, Postgres};
use tokio::sync::OnceCell;

use crate::liveness::side_pool::one_of;
use crate::store::{ServerId, Store};

/// Where the pool leads since its options changed. The application may still give back connections
/// that were opened before.
pub(in crate::worker) struct Destination {
    options: Arc<PgConnectOptions>,
    /// The server, read once; `None` if it does not say.
    server: OnceCell<Option<ServerId>>,
}

impl Destination {
    pub(in crate::worker) fn new(options: &Arc<PgConnectOptions>) -> Self {
        Self { options: Arc::clone(options), server: OnceCell::new() }
    }

    /// Gets a connection of the pool that leads there. Closes those that lead elsewhere.
    pub(in crate::worker) async fn acquire(
        &self,
        pool: &PgPool,
        store: &Store,
    ) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        let read = async || {
            let mut fresh = one_of(pool, &self.options).acquire().await?;
            fresh.close_on_drop();
            store.server(&mut fresh).await
        };
        let server = *self.server.get_or_try_init(read).await?;
        loop {
            let mut conn = pool.acquire().await?;
            if server.is_none() || store.server(&mut conn).await? == server {
                return Ok(conn);
            }
            conn.close_on_drop();
        }
    }
}
