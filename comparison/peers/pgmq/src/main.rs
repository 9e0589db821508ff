//! pgmq: FIFO groups by `read_grouped_head`, its read that gives one message of a group at a time.
//! It has no worker of its own: the loop here reads as many messages as it has slots free.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use kit::{Handler, Job, Peer, Producer, TIMEOUT, async_trait, ready};
use pgmq::{Message, PGMQueueExt};
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Semaphore;
use tokio::time::sleep;

const QUEUE: &str = "fifo";
/// The longest wait before a retry, in seconds.
const LONGEST: i32 = 60;

struct Pgmq;

struct Sends(PGMQueueExt);

async fn queue(url: &str, connections: u32) -> Result<PGMQueueExt> {
    let pool = PgPoolOptions::new().max_connections(connections).connect(url).await?;
    Ok(PGMQueueExt::new_with_pool(pool).await)
}

fn told(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

#[async_trait]
impl Producer for Sends {
    async fn enqueue(&self, job: &Job) -> Result<()> {
        let headers = json!({ "x-pgmq-group": job.group });
        self.0.send_delay_with_headers(QUEUE, job, Some(&headers), 0).await.map_err(told)?;
        Ok(())
    }
}

/// A message that was handled is deleted; one that failed is made visible again later.
async fn handle(queue: PGMQueueExt, handler: Handler, message: Message<Job, Value>) {
    let id = message.msg_id;
    let settled = match handler.run(&message.message).await {
        Ok(()) => queue.delete(QUEUE, id).await.map(|_| ()).map_err(told),
        Err(_) => {
            let wait = LONGEST.min(1 << (message.read_ct.clamp(1, 8) - 1));
            queue.set_vt::<Job, Value>(QUEUE, id, wait).await.map(|_| ()).map_err(told)
        }
    };
    if let Err(error) = settled {
        eprintln!("settle: {error}");
    }
}

#[async_trait]
impl Peer for Pgmq {
    async fn setup(&self, url: &str) -> Result<()> {
        let queue = queue(url, 2).await?;
        queue.install_sql_from_embedded().await.map_err(told)?;
        queue.create(QUEUE).await.map_err(told)?;
        queue.create_fifo_index(QUEUE).await.map_err(told)?;
        Ok(())
    }

    async fn producer(&self, url: &str) -> Result<Arc<dyn Producer>> {
        Ok(Arc::new(Sends(queue(url, 4).await?)))
    }

    async fn work(&self, url: &str, slots: usize, _: Vec<String>, handler: Handler) -> Result<()> {
        let queue = queue(url, 6).await?;
        let (timeout, free) = (i32::try_from(TIMEOUT)?, Arc::new(Semaphore::new(slots)));
        ready();
        tokio::spawn(async move {
            loop {
                let count = i32::try_from(free.available_permits()).unwrap_or(1).max(1);
                let Ok(one) = Arc::clone(&free).acquire_owned().await else { return };
                let read: Result<Vec<Message<Job, Value>>, _> =
                    queue.read_grouped_head(QUEUE, timeout, count).await;
                drop(one);
                let messages = read.unwrap_or_else(|error| {
                    eprintln!("read: {error}");
                    Vec::new()
                });
                if messages.is_empty() {
                    sleep(Duration::from_millis(50)).await;
                }
                for message in messages {
                    let Ok(slot) = Arc::clone(&free).acquire_owned().await else { return };
                    let (queue, handler) = (queue.clone(), handler.clone());
                    tokio::spawn(async move {
                        handle(queue, handler, message).await;
                        drop(slot);
                    });
                }
            }
        });
        Ok(())
    }
}

fn main() {
    kit::main(|_| Pgmq);
}
