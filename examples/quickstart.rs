//! Three jobs of one group run one at a time and in order: `cargo run --example quickstart`

use serde::{Deserialize, Serialize};
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, JobKind, Processor, QueueOptions, async_trait,
};
use std::{error::Error, time::Duration};

#[derive(Serialize, Deserialize)]
struct Greeting(String);

impl JobKind for Greeting {
    const NAME: &'static str = "greeting";
    const QUEUE: &'static str = "greetings";

    fn group(&self) -> Option<String> {
        Some("people".into())
    }
}

struct Greet;

#[async_trait]
impl JobHandler for Greet {
    type Data = Greeting;
    type Output = String;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, greeting: Greeting) -> Result<String, JobError> {
        Ok(format!("Hello {}, you are job {}", greeting.0, job.id()))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A throw-away database. A service has its own pool, and calls `seriatim::migrate(&pool)` when
    // it starts.
    let database = TestDatabase::create().await?;
    let pool = database.pool();
    let greetings = QueueOptions::new(Greeting::QUEUE).concurrency(4);
    let processor = Processor::builder(pool.clone()).queue(greetings, Greet);
    let running = processor.build()?.start().await?;

    let people = ["Ada", "Grace", "Edsger"].map(|name| Greeting(name.into()));
    for job in seriatim::enqueue_many(pool, &people).await? {
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
