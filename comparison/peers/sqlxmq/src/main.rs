//! sqlxmq: a group is the arguments of a channel, whose jobs are ordered.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use kit::{ATTEMPTS, Handler, Job, Peer, Producer, TIMEOUT, async_trait, ready};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlxmq::{CurrentJob, JobBuilder, JobRunnerOptions};

const CHANNEL: &str = "fifo";

struct Sqlxmq;

struct Spawns(PgPool);

/// Its migrations are in its package, and not in its program.
fn migrations() -> Result<PathBuf> {
    if let Ok(folder) = std::env::var("SQLXMQ_MIGRATIONS") {
        return Ok(folder.into());
    }
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"))?;
    for sources in std::fs::read_dir(format!("{home}/registry/src"))? {
        let folder = sources?.path().join("sqlxmq-0.6.0/migrations");
        if folder.exists() {
            return Ok(folder);
        }
    }
    anyhow::bail!("no sources of sqlxmq: set SQLXMQ_MIGRATIONS to their folder")
}

#[async_trait]
impl Producer for Spawns {
    async fn enqueue(&self, job: &Job) -> Result<()> {
        let mut builder = JobBuilder::new("job");
        builder.set_channel_name(CHANNEL).set_channel_args(&job.group).set_ordered(true);
        // A claim lasts as long as the back-off, unless its worker keeps it alive.
        builder.set_retries(ATTEMPTS).set_retry_backoff(Duration::from_secs(TIMEOUT));
        builder.set_json(job)?.spawn(&self.0).await?;
        Ok(())
    }
}

/// A job that fails is tried again when its back-off is over, as one whose worker has died.
async fn handle(handler: Handler, mut job: CurrentJob) -> Result<()> {
    let its: Job = job.json()?.context("no payload")?;
    if handler.run(&its).await.is_ok() {
        job.complete().await?;
    }
    Ok(())
}

#[async_trait]
impl Peer for Sqlxmq {
    async fn setup(&self, url: &str) -> Result<()> {
        let pool = PgPool::connect(url).await?;
        sqlx::migrate::Migrator::new(migrations()?).await?.run(&pool).await?;
        Ok(())
    }

    async fn producer(&self, url: &str) -> Result<Arc<dyn Producer>> {
        Ok(Arc::new(Spawns(PgPoolOptions::new().max_connections(4).connect(url).await?)))
    }

    async fn work(&self, url: &str, slots: usize, _: Vec<String>, handler: Handler) -> Result<()> {
        let connections = u32::try_from(slots)? + 4;
        let pool = PgPoolOptions::new().max_connections(connections).connect(url).await?;
        let mut options = JobRunnerOptions::new(&pool, move |job| {
            let handler = handler.clone();
            tokio::spawn(async move {
                if let Err(error) = handle(handler, job).await {
                    eprintln!("{error:#}");
                }
            });
        });
        options.set_channel_names(&[CHANNEL]).set_concurrency(slots / 2, slots);
        let running = options.run().await?;
        ready();
        // It runs as long as this process does.
        std::mem::forget(running);
        Ok(())
    }
}

fn main() {
    kit::main(|_| Sqlxmq);
}
