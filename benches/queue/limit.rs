//! Limit of the server: a tiny UPDATE by key, each with its commit.

use std::time::{Duration, Instant};

use seriatim::testing::{Server, TestDatabase};
use sqlx::PgConnection;

use crate::Result;
use crate::figures::rate;

/// Rows of each client alone.
const ROWS: i32 = 100;
const CLIENTS: i32 = 8;

pub(crate) struct Limit {
    database: TestDatabase,
    time: Duration,
}

/// Rows per second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// One client, one row per commit.
    pub(crate) one: f64,
    /// Eight clients, one row per commit.
    pub(crate) eight: f64,
    /// Eight clients, 100 rows per statement and commit.
    pub(crate) batches: f64,
}

impl Limits {
    /// Returns the mean of two measurements.
    pub(crate) fn mean(self, other: Self) -> Self {
        Self {
            one: f64::midpoint(self.one, other.one),
            eight: f64::midpoint(self.eight, other.eight),
            batches: f64::midpoint(self.batches, other.batches),
        }
    }
}

impl Limit {
    pub(crate) async fn new(server: &Server, time: Duration) -> Result<Self> {
        let database = TestDatabase::create_on(server).await?;
        for statement in [
            "create table tiny (id integer primary key, n bigint not null) with (fillfactor = 50)",
            "insert into tiny select i, 0 from generate_series(0, 799) i",
            "vacuum (analyze) tiny",
        ] {
            sqlx::query(statement).execute(database.pool()).await?;
        }
        Ok(Self { database, time })
    }

    pub(crate) async fn measure(&self) -> Result<Limits> {
        Ok(Limits {
            one: self.clients(1, 1).await?,
            eight: self.clients(CLIENTS, 1).await?,
            batches: self.clients(CLIENTS, ROWS).await?,
        })
    }

    /// Returns rows per second of so many clients, with so many rows in a commit.
    async fn clients(&self, clients: i32, batch: i32) -> Result<f64> {
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(self.database.connect().await?);
        }
        let (began, time) = (Instant::now(), self.time);
        let mut tasks = tokio::task::JoinSet::new();
        for (client, connection) in (0..clients).zip(connections) {
            tasks.spawn(update(connection, client * ROWS, batch, began + time));
        }
        let mut rows = 0;
        while let Some(done) = tasks.join_next().await {
            rows += done??;
        }
        Ok(rate(rows, began.elapsed()))
    }

    pub(crate) async fn remove(self) -> Result<()> {
        Ok(self.database.remove().await?)
    }
}

/// Updates rows from `from` on until the time is over. Returns their number.
async fn update(
    mut connection: PgConnection,
    from: i32,
    batch: i32,
    end: Instant,
) -> Result<u64, sqlx::Error> {
    let (single, many) =
        ("update tiny set n = n + 1 where id = $1", "update tiny set n = n + 1 where id = any($1)");
    let all: Vec<i32> = (from..from + batch).collect();
    let mut rows = 0;
    while Instant::now() < end {
        let query = if batch == 1 {
            sqlx::query(single).bind(from + fastrand::i32(0..ROWS))
        } else {
            sqlx::query(many).bind(&all)
        };
        rows += query.execute(&mut connection).await?.rows_affected();
    }
    Ok(rows)
}
