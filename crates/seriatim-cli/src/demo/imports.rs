//! Tenants who import documents into their accounts. So many of a tenant's accounts are worked on
//! at once; when all documents of a tenant are in, one job says so.

use std::error::Error;
use std::time::Duration;

use seriatim::admin::QueueSettings;
use seriatim::shards::Shards;
use seriatim::{ActiveJob, Client, JobError, JobHandler, NewBatch, NewJob, async_trait};
use sqlx::PgPool;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::failure::Failure;

pub(super) const QUEUE: &str = "imports";
/// The queue of the jobs that begin when all documents of a tenant are in.
pub(super) const SUMMARIES: &str = "summaries";

/// How many accounts of a tenant are worked on at once.
const PER_TENANT: u32 = 2;
/// A tenant with many accounts, and one with few.
const TENANTS: [(&str, u32); 2] = [("tenant-1", 12), ("tenant-2", 1)];
/// How long a document takes.
const DOCUMENT: Duration = Duration::from_secs(6);
/// Between two imports of a tenant.
const EVERY: Duration = Duration::from_secs(40);

/// Imports a document. Its result is how many pages it has.
pub(super) struct Import;

#[async_trait]
impl JobHandler for Import {
    type Data = u32;
    type Output = u32;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, account: u32) -> Result<u32, JobError> {
        let pages = account * 3;
        for page in 0..pages {
            let percent = u8::try_from(page * 100 / pages).unwrap_or(99);
            job.progress(percent, &format!("page {} of {pages}", page + 1))?;
            sleep(DOCUMENT / pages).await;
        }
        Ok(pages)
    }
}

/// Counts the pages of all documents of a batch.
pub(super) struct Summary {
    pub(super) shards: Shards,
}

#[async_trait]
impl JobHandler for Summary {
    type Data = ();
    type Output = u32;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, (): ()) -> Result<u32, JobError> {
        let batch = job.ended_batch().ok_or_else(|| JobError::fail("enqueued by hand"))?;
        let of_job = self.shards.of_job(job.id());
        let (_, pool) = of_job.ok_or_else(|| JobError::fail("a job of no server"))?;
        let documents = Client::default().batch_jobs(pool, batch, None).await;
        let documents = documents.map_err(JobError::retry)?;
        let mut pages = 0;
        for document in &documents {
            pages += document.result::<u32>().map_err(JobError::fail)?.unwrap_or(0);
        }
        Ok(pages)
    }
}

/// Sets the limit of the queue.
pub(super) async fn configure(pool: &PgPool) -> Result<(), Failure> {
    let settings = QueueSettings::new(QUEUE).limit_per_key(PER_TENANT);
    let set = Client::default().configure_queue(pool, settings).await;
    set.map_err(Failure::could_not("limit the imports of a tenant"))
}

/// Lets each tenant import a document into each of its accounts, now and then again. A batch is on
/// one server, and so are all accounts of a tenant.
pub(super) async fn keep_importing(shards: Shards) {
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        for (tenant, accounts) in TENANTS {
            if let Err(error) = import(shards.of_group(tenant).1, tenant, accounts).await {
                eprintln!("the documents of {tenant} were not enqueued: {error}");
            }
        }
    }
}

/// Enqueues a batch of documents, and its follow-up.
async fn import(
    pool: &PgPool,
    tenant: &str,
    accounts: u32,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let client = Client::default();
    let summary = NewJob::new(SUMMARIES, &()).group(tenant).name("summary");
    let mut tx = pool.begin().await?;
    let batch = client.open_batch(&mut *tx, NewBatch::new(tenant, summary)).await?;
    let documents = (1..=accounts).map(|account| {
        NewJob::new(QUEUE, &account)
            .group(format!("{tenant}/account-{account}"))
            .limit_key(tenant)
            .batch(batch)
            .name("document")
    });
    client.enqueue_many(&mut *tx, documents).await?;
    client.seal_batch(&mut *tx, batch).await?;
    tx.commit().await?;
    Ok(())
}
