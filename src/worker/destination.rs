//! The server that the pool leads to since its options changed. A claim on one server cannot be
//! held on another.
//!
//! Tests: `led_elsewhere::*`.

use std::sync::Arc;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgPool, Postgres};
use tokio::sync::Mutex;

use crate::liveness::side_pool::one_of;
use crate::store::{ServerId, Store};

/// Where the pool leads since its options changed. The application may still give back connections
/// that were opened before.
pub(crate) struct Destination {
    options: Arc<PgConnectOptions>,
    /// The server that a fresh connection was led to. `None`: none was asked yet.
    server: Mutex<Option<Fresh>>,
}

/// The server that a fresh connection reports; `None` if it reports none.
type Fresh = Option<ServerId>;

impl Destination {
    pub(crate) fn new(options: &Arc<PgConnectOptions>) -> Self {
        Self { options: Arc::clone(options), server: Mutex::default() }
    }

    /// Gets a connection of the pool that leads there. Closes those that lead elsewhere.
    pub(crate) async fn acquire(
        &self,
        pool: &PgPool,
        store: &Store,
    ) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        let mut asked_again = false;
        // No more can have been opened before. An address may lead to several servers: then any
        // connection will do.
        for _ in 0..pool.options().get_max_connections() {
            let mut conn = pool.acquire().await?;
            let here = store.server(&mut conn).await?;
            let mut server = self.server.lock().await;
            // The address itself may have led on since, as with a promotion.
            let in_doubt = *server != Some(here) && *server != Some(None) && !asked_again;
            if in_doubt {
                *server = Some(self.ask(pool, store).await?);
                asked_again = true;
            }
            if *server == Some(here) || *server == Some(None) {
                return Ok(conn);
            }
            conn.close_on_drop();
        }
        pool.acquire().await
    }

    async fn ask(&self, pool: &PgPool, store: &Store) -> Result<Fresh, sqlx::Error> {
        let mut fresh = one_of(pool, &self.options).acquire().await?;
        fresh.close_on_drop();
        store.server(&mut fresh).await
    }
}
