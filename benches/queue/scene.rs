//! A fresh database, its jobs, and the processors at work on it.

use std::time::Duration;

use seriatim::testing::{Server, TestDatabase};
use seriatim::{JobHandler, Processor, Running};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

use crate::Result;
use crate::backlog::{self, Groups};
use crate::settings::Way;

pub(crate) const QUEUE: &str = "bench";

/// Limit of the jobs that one statement loads.
const CHUNK: u32 = 250_000;

/// The sessions that the server has room for.
const FREE: &str = "select current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8 \
    - (select count(*) from pg_stat_activity where backend_type = 'client backend')";

pub(crate) struct Scene {
    database: TestDatabase,
}

impl Scene {
    pub(crate) async fn new(server: &Server) -> Result<Self> {
        Ok(Self { database: TestDatabase::create_on(server).await? })
    }

    /// Returns a pool for statements beside the measured work.
    pub(crate) fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    pub(crate) fn url(&self) -> String {
        self.database.url()
    }

    /// Returns a session of its own.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        Ok(self.database.connect().await?)
    }

    /// Returns a pool of `connections`, all of them open.
    pub(crate) async fn open_pool(&self, connections: u32) -> Result<PgPool> {
        let free: i64 = sqlx::query_scalar(FREE).fetch_one(self.pool()).await?;
        if free < i64::from(connections) {
            return Err(format!(
                "{connections} connections are needed, and the server has {free} left: raise its max_connections, \
                 or unset DATABASE_URL, so that a private server is started, which has enough"
            )
            .into());
        }
        let options = PgPoolOptions::new()
            .max_connections(connections)
            .min_connections(connections)
            .acquire_timeout(Duration::from_secs(30));
        Ok(self.database.pool_with(options).await?)
    }

    /// Loads a backlog of `jobs`, with statistics, and as clean as a server has it after a while.
    pub(crate) async fn load(&self, groups: Groups, jobs: u32) -> Result<()> {
        let mut from = 0;
        while from < jobs {
            let to = jobs.min(from.saturating_add(CHUNK));
            self.add(groups, from, to, 0).await?;
            from = to;
        }
        self.tidy().await
    }

    /// Adds the jobs `from` to before `to` of an enqueue that begins with the job `enqueued`.
    pub(crate) async fn add(
        &self,
        groups: Groups,
        from: u32,
        to: u32,
        enqueued: u32,
    ) -> Result<()> {
        // Closed then, so that its counts reach the server's statistics.
        let mut session = self.connect().await?;
        sqlx::query(AssertSqlSafe(backlog::load(groups)))
            .bind(i64::from(from))
            .bind(i64::from(to))
            .bind(i64::from(enqueued))
            .execute(&mut session)
            .await?;
        Ok(session.close().await?)
    }

    /// Runs a statement of [`backlog`] that takes the number of its groups.
    pub(crate) async fn add_groups(&self, statement: &'static str, groups: u32) -> Result<()> {
        sqlx::query(statement).bind(i64::from(groups)).execute(self.pool()).await?;
        Ok(())
    }

    /// Vacuums, as autovacuum would in time.
    pub(crate) async fn tidy(&self) -> Result<()> {
        for table in ["job", "queue_group"] {
            let statement = format!("vacuum (analyze) seriatim.{table}");
            sqlx::query(AssertSqlSafe(statement)).execute(self.pool()).await?;
        }
        // Only some roles may. Without it a checkpoint may run in the middle.
        let _ = sqlx::query("checkpoint").execute(self.pool()).await;
        Ok(())
    }

    /// Returns the number of unfinished jobs.
    pub(crate) async fn unfinished(&self) -> Result<u64> {
        let statement = "select count(*) from seriatim.job where finished_at is null";
        let count: i64 = sqlx::query_scalar(statement).fetch_one(self.pool()).await?;
        Ok(count.unsigned_abs())
    }

    /// Starts a processor with a pool of its own, all its connections open.
    pub(crate) async fn start(&self, way: Way, handler: impl JobHandler) -> Result<Running> {
        start(self.open_pool(way.connections()).await?, way, handler).await
    }

    pub(crate) async fn remove(self) -> Result<()> {
        Ok(self.database.remove().await?)
    }
}

/// Starts a processor on `pool`.
pub(crate) async fn start(pool: PgPool, way: Way, handler: impl JobHandler) -> Result<Running> {
    let processor = Processor::builder(pool)
        .queue(way.options(), handler)
        .on_error(|error| eprintln!("background error: {error}"));
    Ok(processor.build()?.start().await?)
}
