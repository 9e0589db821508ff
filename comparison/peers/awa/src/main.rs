//! awa: a group is an `ordering_key`, which picks one of the queue's 8 shards.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use awa::{Client, InsertOpts, JobArgs, JobError, JobResult, QueueConfig};
use kit::{ATTEMPTS, Failed, Handler, Job, Peer, Producer, TIMEOUT, async_trait, ready};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};

const QUEUE: &str = "fifo";

static HANDLER: OnceLock<Handler> = OnceLock::new();

#[derive(Debug, Clone, Serialize, Deserialize, JobArgs)]
struct Task {
    job: String,
    group: String,
}

struct Awa;

struct Inserts(PgPool);

#[async_trait]
impl Producer for Inserts {
    async fn enqueue(&self, job: &Job) -> Result<()> {
        let task = Task { job: job.job.clone(), group: job.group.clone() };
        let options = InsertOpts {
            queue: QUEUE.into(),
            ordering_key: Some(job.group.clone().into_bytes()),
            max_attempts: i16::try_from(ATTEMPTS)?,
            ..Default::default()
        };
        awa::insert_with(&self.0, &task, options).await?;
        Ok(())
    }
}

/// The migration's future cannot move between threads.
fn migrate(url: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let pool = PgPool::connect(url).await?;
        awa::model::migrations::run(&pool).await?;
        let shards = "insert into awa.queue_meta (queue, enqueue_shards) values ($1, 8)
            on conflict (queue) do update set enqueue_shards = 8";
        sqlx::query(shards).bind(QUEUE).execute(&pool).await?;
        anyhow::Ok(())
    })
}

#[async_trait]
impl Peer for Awa {
    async fn setup(&self, url: &str) -> Result<()> {
        let url = url.to_owned();
        tokio::task::spawn_blocking(move || migrate(&url)).await?
    }

    async fn producer(&self, url: &str) -> Result<Arc<dyn Producer>> {
        Ok(Arc::new(Inserts(PgPoolOptions::new().max_connections(4).connect(url).await?)))
    }

    async fn work(&self, url: &str, slots: usize, _: Vec<String>, handler: Handler) -> Result<()> {
        let _ = HANDLER.set(handler);
        let slots = u32::try_from(slots)?;
        let pool = PgPoolOptions::new().max_connections(slots + 6).connect(url).await?;
        // As its documentation advises, a heartbeat is stale after three of them at least.
        let client = Client::builder(pool)
            .queue(QUEUE, QueueConfig { max_workers: slots, ..Default::default() })
            .heartbeat_interval(Duration::from_secs(1))
            .heartbeat_staleness(Duration::from_secs(TIMEOUT))
            .heartbeat_rescue_interval(Duration::from_secs(1))
            .leader_election_interval(Duration::from_secs(1))
            .leader_check_interval(Duration::from_secs(1))
            .register::<Task, _, _>(|task: Task, _| async move {
                let job = Job { job: task.job, group: task.group };
                let Some(handler) = HANDLER.get() else {
                    return Err(JobError::retryable(Failed));
                };
                handler.run(&job).await.map_err(JobError::retryable)?;
                Ok(JobResult::Completed)
            })
            .build()?;
        client.start().await?;
        ready();
        // It runs as long as this process does.
        std::mem::forget(client);
        Ok(())
    }
}

fn main() {
    kit::main(|_| Awa);
}
