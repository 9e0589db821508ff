//! The pools of roles, and the keys.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim::Client;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool, Row};
use tokio::sync::OnceCell;

use crate::cache::Cache;
use crate::caller::Caller;
use crate::error::SqsError;
use crate::handle::Handles;
use crate::patterns::Patterns;
use crate::queue::Queue;

/// The most connections of each role that keys name.
const CONNECTIONS_OF_ROLE: u32 = 10;
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the name of a client's schema as SQL takes it.
pub(crate) fn schema_of(client: &Client) -> String {
    format!("\"{}\"", client.schema().replace('"', "\"\""))
}

/// A key with its secret.
pub(crate) struct StoredKey {
    pub(crate) secret: String,
    pub(crate) role: Option<String>,
    /// The queues that it is for; `None`: all.
    pub(crate) queues: Option<Arc<Patterns>>,
}

/// The pools, caches and secret that the statements need.
pub(crate) struct Database {
    pub(crate) client: Client,
    pool: PgPool,
    schema: String,
    /// With the options of the server's own pool that each was made by.
    of_roles: Mutex<HashMap<String, (Arc<PgConnectOptions>, PgPool)>>,
    /// The key of the server's settings.
    key: Option<(String, Arc<StoredKey>)>,
    /// Also that there is none: a client whose key is wrong asks again and again.
    keys: Cache<String, Option<Arc<StoredKey>>>,
    health: Cache<(), ()>,
    /// By the role that reads them, which may lack the right to.
    pub(super) queues: Cache<(Option<String>, String), Queue>,
    /// Read once: it is there from the first time on that the database has answered.
    handles: OnceCell<Handles>,
}

impl Database {
    /// Asks nothing yet: [`open`](Self::open) does.
    pub(crate) fn new(pool: PgPool, client: Client, key: Option<(String, Arc<StoredKey>)>) -> Self {
        Self {
            schema: schema_of(&client),
            client,
            pool,
            of_roles: Mutex::default(),
            key,
            keys: Cache::default(),
            health: Cache::default(),
            queues: Cache::default(),
            handles: OnceCell::new(),
        }
    }

    /// Reads the secret of the schema, if it is not known.
    pub(crate) async fn open(&self) -> Result<(), sqlx::Error> {
        let read = async {
            let secret = self.sql("select secret from {schema}.sqs_secret limit 1");
            sqlx::query_scalar(secret).fetch_one(&self.pool).await.map(Handles::new)
        };
        self.handles.get_or_try_init(|| read).await.map(drop)
    }

    /// Signs and checks handles. Fails as long as the secret is not known.
    pub(crate) fn handles(&self) -> Result<&Handles, SqsError> {
        self.handles.get().ok_or_else(SqsError::unavailable)
    }

    /// The pool of the server's own role.
    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Returns the pool for a caller. A role has its own: its connections begin in that role. It is
    /// another one after the server's own pool was led elsewhere, as by a failover.
    pub(crate) fn pool_of(&self, caller: &Caller) -> PgPool {
        let Some(role) = &caller.role else { return self.pool.clone() };
        let led_by = self.pool.connect_options();
        let mut pools = self.of_roles.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((made_by, pool)) = pools.get(role)
            && Arc::ptr_eq(made_by, &led_by)
        {
            return pool.clone();
        }
        let options = (*led_by).clone().options([("role", role)]);
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS_OF_ROLE)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_lazy_with(options);
        if let Some((_, left)) = pools.insert(role.clone(), (led_by, pool.clone())) {
            // Requests that have it still are not to write where it leads.
            tokio::spawn(async move { left.close().await });
        }
        pool
    }

    /// Fails if the database has not answered in the last 500 ms, nor does now.
    pub(crate) async fn answers(&self) -> Result<(), SqsError> {
        let ask = async { Ok(sqlx::query("select").execute(&self.pool).await.map(drop)?) };
        self.health.get((), Box::pin(ask)).await.map(drop)
    }

    /// Returns a statement with the name of the schema.
    pub(super) fn sql(&self, text: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(text.replace("{schema}", &self.schema))
    }

    /// Returns a key as it was at most 500 ms ago, unless it is disabled.
    pub(crate) async fn key(&self, access_key: &str) -> Result<Option<Arc<StoredKey>>, SqsError> {
        if let Some((_, key)) = self.key.as_ref().filter(|(name, _)| name == access_key) {
            return Ok(Some(Arc::clone(key)));
        }
        let read = Box::pin(self.find_key(access_key));
        Ok(self.keys.get(access_key.to_owned(), read).await?.as_ref().clone())
    }

    async fn find_key(&self, access_key: &str) -> Result<Option<Arc<StoredKey>>, SqsError> {
        if access_key.contains('\0') {
            return Ok(None);
        }
        let sql = self.sql(
            "select coalesce(secret, guarded_secret), role, queues from {schema}.sqs_key
             where access_key = $1 and disabled_at is null",
        );
        let row = sqlx::query(sql).bind(access_key).fetch_optional(&self.pool).await?;
        let key = row.map(|row| -> Result<_, sqlx::Error> {
            let queues: Option<Vec<String>> = row.try_get(2)?;
            let queues = queues.map(|queues| Arc::new(Patterns::stored(queues)));
            Ok(Arc::new(StoredKey { secret: row.try_get(0)?, role: row.try_get(1)?, queues }))
        });
        Ok(key.transpose()?)
    }
}
