//! Pools of the page's own, which lead where the application's pool does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};

/// Limits each statement, so that no page burdens the database for long.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// A pool with a limit for each statement, beside another one.
pub(crate) struct OwnPool {
    of: PgPool,
    connections: u32,
    read_only: bool,
    /// The pool, and the options of the other one that it connects by.
    last: Mutex<(Arc<PgConnectOptions>, PgPool)>,
}

impl OwnPool {
    pub(crate) fn new(of: &PgPool, connections: u32, read_only: bool) -> Self {
        let options = of.connect_options();
        let pool = pool_by(&options, connections, read_only);
        Self { of: of.clone(), connections, read_only, last: Mutex::new((options, pool)) }
    }

    /// Returns the pool; a new one, if the other one was led elsewhere.
    pub(crate) fn get(&self) -> PgPool {
        let options = self.of.connect_options();
        // Nothing panics under the lock.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&last.0, &options) {
            let pool = pool_by(&options, self.connections, self.read_only);
            *last = (options, pool);
        }
        last.1.clone()
    }
}

fn pool_by(options: &PgConnectOptions, connections: u32, read_only: bool) -> PgPool {
    // Set once connected: a pooler may refuse it as a start-up parameter. To compile a statement
    // takes longer than to read the few thousand rows of a page, and seconds on a busy server.
    let settings = format!(
        "set statement_timeout = {limit}; set lock_timeout = {limit}; \
         set default_transaction_isolation = 'read committed'; \
         set default_transaction_read_only = {read_only}; set application_name = 'seriatim-web'; \
         set jit = off",
        limit = STATEMENT_TIMEOUT.as_millis(),
    );
    let settings: Arc<str> = settings.into();
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(Duration::from_mins(1))
        .after_connect(move |connection, _| {
            let settings = Arc::clone(&settings);
            Box::pin(async move {
                sqlx::raw_sql(AssertSqlSafe(settings)).execute(connection).await?;
                Ok(())
            })
        })
        .connect_lazy_with(options.clone())
}
