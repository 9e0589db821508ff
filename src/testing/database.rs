//! A database for one test.

use std::sync::mpsc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, PgPool};

use super::{Server, ServerError};

/// Bounds the time that a pool may take to close before the server closes its sessions.
const CLOSE_WITHIN: Duration = Duration::from_millis(500);

/// Bounds the time that `Drop` waits for the database to be dropped.
const DROP_WITHIN: Duration = Duration::from_secs(2);

/// A migrated database of a test's own, and a pool on it.
///
/// Create it inside the test: its pool belongs to the runtime that created it.
///
/// [`TestDatabase::remove`] drops the database. Otherwise the drop of the value does, which blocks
/// the thread for a moment (2 s at most, if the server does not answer).
#[derive(Debug)]
pub struct TestDatabase {
    server: Server,
    name: String,
    pool: PgPool,
    removed: bool,
}

impl TestDatabase {
    /// Creates a database on the [shared server](Server::shared).
    pub async fn create() -> Result<Self, ServerError> {
        // Boxed: it connects several times, and would be the largest part of a test's future.
        let server = Box::pin(Server::shared()).await?;
        Self::create_on(&server).await
    }

    /// Creates a database on `server`.
    pub async fn create_on(server: &Server) -> Result<Self, ServerError> {
        let template = Box::pin(server.template(prepare_template)).await?;
        let name = server.new_name();
        // Only a database without sessions can be copied: its last session is closing, and
        // PostgreSQL waits for that (5 s). Copies can be made side by side.
        let strategy = copy_strategy(server.version());
        execute(server, format!("CREATE DATABASE {name} TEMPLATE {template}{strategy}")).await?;
        let options = options(server, &name)?;
        let pool = PgPoolOptions::new().max_connections(20).connect_lazy_with(options);
        Ok(Self { server: server.clone(), name, pool, removed: false })
    }

    /// Returns the pool, of up to 20 connections.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Returns another pool on the database.
    pub async fn pool_with(&self, pool: PgPoolOptions) -> Result<PgPool, ServerError> {
        pool.connect_with(options(&self.server, &self.name)?)
            .await
            .map_err(ServerError::database("connect to the test database"))
    }

    /// Opens a connection of no pool.
    pub async fn connect(&self) -> Result<PgConnection, ServerError> {
        options(&self.server, &self.name)?
            .connect()
            .await
            .map_err(ServerError::database("connect to the test database"))
    }

    /// Returns the options to connect with.
    pub fn url(&self) -> String {
        self.server.url_of(&self.name)
    }

    /// Returns the database's name, which no other test's database has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the server of the database.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Closes the pool and drops the database, with every session that is left on it.
    pub async fn remove(mut self) -> Result<(), ServerError> {
        // A connection that the test has leaked would block the close for ever.
        let _ = tokio::time::timeout(CLOSE_WITHIN, self.pool.close()).await;
        drop_database(&self.server, &self.name).await?;
        self.removed = true;
        Ok(())
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if self.removed {
            return;
        }
        let (server, name) = (self.server.clone(), self.name.clone());
        let (done, wait) = mpsc::channel();
        // In a thread with a runtime of its own: the test's runtime may be this thread's, which
        // must not block.
        let thread = std::thread::Builder::new().name("seriatim-testing".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            if let Ok(runtime) = runtime
                && let Err(error) = runtime.block_on(drop_database(&server, &name))
            {
                tracing::debug!(name, %error, "a test's database stays");
            }
            // After a timeout nothing receives this.
            let _ = done.send(());
        });
        if thread.is_ok() {
            let _ = wait.recv_timeout(DROP_WITHIN);
        }
    }
}

/// Returns the clause for the quickest copy. A copy by files takes half of the time of one by WAL,
/// which is the default since PostgreSQL 15; before, there is no other and no clause.
fn copy_strategy(version: &str) -> &'static str {
    let major = version.split(|c: char| !c.is_ascii_digit()).next();
    match major.and_then(|major| major.parse::<u32>().ok()) {
        Some(15..) => " STRATEGY file_copy",
        _ => "",
    }
}

/// Creates the database that all others are copies of.
async fn prepare_template(server: &Server, name: &str) -> Result<(), ServerError> {
    // A first try may have been dropped half-way.
    drop_database(server, name).await?;
    execute(server, format!("CREATE DATABASE {name}")).await?;
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options(server, name)?);
    let migrated = crate::migrate(&pool).await;
    pool.close().await;
    migrated.map_err(|source| ServerError::Migrate(std::sync::Arc::new(source)))
}

fn options(server: &Server, database: &str) -> Result<PgConnectOptions, ServerError> {
    let options: PgConnectOptions =
        server.url_of(database).parse().map_err(ServerError::database("read DATABASE_URL"))?;
    Ok(options.database(database))
}

async fn drop_database(server: &Server, name: &str) -> Result<(), ServerError> {
    execute(server, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await
}

async fn execute(server: &Server, statement: String) -> Result<(), ServerError> {
    let mut connection = server.connect().await?;
    let action = format!("run {statement}");
    sqlx::query(AssertSqlSafe(statement))
        .execute(&mut connection)
        .await
        .map(drop)
        .map_err(ServerError::database(action))
}
