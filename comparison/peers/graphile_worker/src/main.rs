//! graphile_worker (Rust): a group is the name of a queue. Variants: `default`, and `local` with
//! its local queue.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use graphile_worker::{
    HookRegistry, IntoTaskHandlerResult, JobRecovery, JobRecoveryResult, JobSpec, LocalQueueConfig,
    Plugin, TaskHandler, WorkerContext, WorkerOptions, WorkerRecoveryConfig, WorkerUtils,
};
use kit::{ATTEMPTS, Failed, Handler, Job, Peer, Producer, TIMEOUT, async_trait, ready};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};

const SCHEMA: &str = "graphile_worker";

struct GraphileWorker {
    local: bool,
}

struct Adds(WorkerUtils);

#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Task(Job);

impl TaskHandler for Task {
    const IDENTIFIER: &'static str = "job";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let Some(handler) = context.get_ext::<Handler>() else { return Err(Failed.to_string()) };
        handler.run(&self.0).await.map_err(|failed| failed.to_string())
    }
}

/// It is off by default. A worker is dead after several heartbeats.
fn recovery() -> WorkerRecoveryConfig {
    WorkerRecoveryConfig::default()
        .heartbeat_interval(Duration::from_secs(1))
        .sweep_interval(Duration::from_secs(1))
        .sweep_threshold(Duration::from_secs(TIMEOUT))
        .recovery_delay(Duration::ZERO)
}

/// A job that is recovered keeps its place: by default it is due later, and others pass it.
struct KeepsPlace;

impl Plugin for KeepsPlace {
    fn register(self, hooks: &mut HookRegistry) {
        hooks.on(JobRecovery, async |context| JobRecoveryResult::Reschedule {
            run_at: *context.job.run_at(),
            attempts: None,
        });
    }
}

async fn pool(url: &str, connections: u32) -> Result<PgPool> {
    Ok(PgPoolOptions::new().max_connections(connections).connect(url).await?)
}

#[async_trait]
impl Producer for Adds {
    async fn enqueue(&self, job: &Job) -> Result<()> {
        let spec = JobSpec {
            queue_name: Some(job.group.clone()),
            max_attempts: Some(i16::try_from(ATTEMPTS)?),
            ..Default::default()
        };
        self.0.add_job(Task(job.clone()), spec).await.map_err(|error| anyhow!("{error}"))?;
        Ok(())
    }
}

#[async_trait]
impl Peer for GraphileWorker {
    async fn setup(&self, url: &str) -> Result<()> {
        WorkerUtils::new(pool(url, 2).await?, SCHEMA).migrate().await?;
        Ok(())
    }

    async fn producer(&self, url: &str) -> Result<Arc<dyn Producer>> {
        Ok(Arc::new(Adds(WorkerUtils::new(pool(url, 4).await?, SCHEMA))))
    }

    async fn work(&self, url: &str, slots: usize, _: Vec<String>, handler: Handler) -> Result<()> {
        let pool = pool(url, u32::try_from(slots)? + 6).await?;
        let mut options = WorkerOptions::default()
            .pg_pool(pool)
            .schema(SCHEMA)
            .concurrency(slots)
            .add_extension(handler)
            .worker_recovery(recovery())
            .add_plugin(KeepsPlace)
            .define_job::<Task>();
        if self.local {
            options = options.local_queue(LocalQueueConfig::default().with_size(50));
        }
        let worker = options.init().await.map_err(|error| anyhow!("{error}"))?;
        ready();
        tokio::spawn(async move {
            let ended = worker.run().await;
            // A supervisor starts it anew.
            eprintln!("the worker ended: {ended:?}");
            std::process::exit(1);
        });
        Ok(())
    }
}

fn main() {
    kit::main(|variant| GraphileWorker { local: variant == "local" });
}
