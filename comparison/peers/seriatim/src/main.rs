//! seriatim: `transaction` is its default hold, `lease` the other one.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use kit::{ATTEMPTS, Handler, Job, Peer, Producer, TIMEOUT, async_trait, ready};
use seriatim::{ActiveJob, Client, Hold, JobError, JobHandler, NewJob, Processor, QueueOptions};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

struct Seriatim {
    lease: bool,
}

struct Enqueues(PgPool, Client);

struct Runs(Handler);

#[async_trait]
impl JobHandler for Runs {
    type Data = Job;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, job: Job) -> Result<(), JobError> {
        self.0.run(&job).await.map_err(JobError::retry)
    }
}

#[async_trait]
impl Producer for Enqueues {
    async fn enqueue(&self, job: &Job) -> Result<()> {
        let new = NewJob::new("fifo", job).group(&job.group).max_attempts(ATTEMPTS);
        self.1.enqueue(&self.0, new).await?;
        Ok(())
    }
}

#[async_trait]
impl Peer for Seriatim {
    async fn setup(&self, url: &str) -> Result<()> {
        seriatim::migrate(&PgPool::connect(url).await?).await?;
        Ok(())
    }

    async fn producer(&self, url: &str) -> Result<Arc<dyn Producer>> {
        let pool = PgPoolOptions::new().max_connections(4).connect(url).await?;
        Ok(Arc::new(Enqueues(pool, Client::default())))
    }

    async fn work(&self, url: &str, slots: usize, _: Vec<String>, handler: Handler) -> Result<()> {
        let connections = u32::try_from(slots)? + 6;
        let pool = PgPoolOptions::new().max_connections(connections).connect(url).await?;
        let mut queue = QueueOptions::new("fifo").concurrency(slots);
        if self.lease {
            queue = queue.hold(Hold::Lease(Duration::from_secs(TIMEOUT)));
        }
        let builder = Processor::builder(pool).queue(queue, Runs(handler));
        let running = builder.on_error(|error| eprintln!("{error}")).build()?.start().await?;
        ready();
        // It runs as long as this process does.
        std::mem::forget(running);
        Ok(())
    }
}

fn main() {
    kit::main(|variant| Seriatim { lease: variant == "lease" });
}
