//! Three jobs of one group run one at a time and in order: `cargo run --example quickstart`

use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, NewJob, Processor, QueueOptions, async_trait,
};
use std::{error::Error, time::Duration};

struct Greet;

#[async_trait]
impl JobHandler for Greet {
    type Data = String;
    type Output = String;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, name: String) -> Result<String, JobError> {
        Ok(format!("Hello {name}, you are job {}", job.id()))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A throw-away database. A service has its own pool, and calls `seriatim::migrate(&pool)` when
    // it starts.
    let database = TestDatabase::create().await?;
    let pool = database.pool();
    let greetings = QueueOptions::new("greetings").concurrency(4);
    let processor = Processor::builder(pool.clone()).queue(greetings, Greet);
    let running = processor.build()?.start().await?;

    let jobs =
        ["Ada", "Grace", "Edsger"].map(|name| NewJob::new("greetings", name).group("people"));
    for job in seriatim::enqueue_many(pool, jobs).await? {
        loop {
            let seen = Client::default().job(pool, job.id()).await?;
            if let Some(result) = seen.and_then(|job| job.result) {
                break println!("{result}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    running.shutdown(Duration::from_secs(5)).await;
    Ok(database.remove().await?)
}
