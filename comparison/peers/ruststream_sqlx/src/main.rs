//! ruststream-sqlx: a group is a subscription with `fifo = true`, so a worker has one for each.
//! Variants: `row` (a transaction holds the row) and `lease`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use kit::{Handler, Job, Peer, Producer, TIMEOUT, async_trait, ready};
use ruststream_sqlx::prelude::*;
use sqlx::postgres::{PgPool, PgPoolOptions};

const SCHEMA: &str = "
create table fifo_jobs (
  id bigserial primary key, grp text not null, attempt smallint not null default 1,
  locked_until timestamptz, payload bytea not null
);
create index on fifo_jobs (grp, id);
create function announce() returns trigger language plpgsql as $$
begin perform pg_notify(TG_TABLE_NAME, NEW.grp); return null; end $$;
create trigger announce after insert on fifo_jobs for each row execute function announce();";

static HANDLER: OnceLock<Handler> = OnceLock::new();

/// The expression of a subscription's name runs once for each.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn next() -> String {
    format!("g{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[derive(Inbox, sqlx::FromRow)]
#[inbox(table = "fifo_jobs")]
struct Row {
    #[field(id, generated)]
    id: i64,
    #[field(group, fifo = true)]
    grp: String,
    #[field(attempt, generated)]
    attempt: i16,
    #[field(payload)]
    payload: Vec<u8>,
}

#[derive(Inbox, sqlx::FromRow)]
#[inbox(table = "fifo_jobs")]
struct Leased {
    #[field(id, generated)]
    id: i64,
    #[field(group, fifo = true)]
    grp: String,
    #[field(attempt, generated)]
    attempt: i16,
    #[field(locked_until)]
    locked_until: Option<DateTime<Utc>>,
    #[field(payload)]
    payload: Vec<u8>,
}

/// A retry at once keeps the row's place, as its documentation says; a delayed one does not.
async fn run(job: &Job) -> HandlerOutcome {
    let Some(handler) = HANDLER.get() else { return HandlerOutcome::retry() };
    match handler.run(job).await {
        Ok(()) => HandlerOutcome::ack(),
        Err(_) => HandlerOutcome::retry(),
    }
}

#[subscriber(InboxQueue::<Row>::new(next()))]
async fn by_row(job: &Job) -> HandlerOutcome {
    run(job).await
}

#[subscriber(InboxQueue::<Leased>::new(next()))]
async fn by_lease(job: &Job) -> HandlerOutcome {
    run(job).await
}

struct Ruststream {
    lease: bool,
}

struct Inserts(PgPool);

#[async_trait]
impl Producer for Inserts {
    async fn enqueue(&self, job: &Job) -> Result<()> {
        let payload = serde_json::to_vec(job)?;
        let row = Row { id: 0, grp: job.group.clone(), attempt: 1, payload };
        row.insert(&mut *self.0.acquire().await?).await?;
        Ok(())
    }
}

#[async_trait]
impl Peer for Ruststream {
    async fn setup(&self, url: &str) -> Result<()> {
        sqlx::raw_sql(SCHEMA).execute(&PgPool::connect(url).await?).await?;
        Ok(())
    }

    async fn producer(&self, url: &str) -> Result<Arc<dyn Producer>> {
        Ok(Arc::new(Inserts(PgPoolOptions::new().max_connections(4).connect(url).await?)))
    }

    async fn work(
        &self,
        url: &str,
        slots: usize,
        groups: Vec<String>,
        handler: Handler,
    ) -> Result<()> {
        let _ = HANDLER.set(handler);
        let pool = PgPoolOptions::new().max_connections(u32::try_from(slots)? + 2);
        let pool = pool.acquire_timeout(Duration::from_secs(60)).connect(url).await?;
        let broker = SqlxBroker::new(pool)
            .poll_interval(Duration::from_secs(2))
            .lease(Duration::from_secs(TIMEOUT))
            .listen_notify();
        let lease = self.lease;
        let app = RustStream::new(AppInfo::new("worker", "0.1.0")).with_broker(broker, |to| {
            for _ in groups {
                if lease {
                    drop(to.include(by_lease));
                } else {
                    drop(to.include(by_row));
                }
            }
        });
        let running = app.start().await?;
        ready();
        // It runs as long as this process does.
        std::mem::forget(running);
        Ok(())
    }
}

fn main() {
    kit::main(|variant| Ruststream { lease: variant == "lease" });
}
