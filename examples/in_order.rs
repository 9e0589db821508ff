//! The program of the README: `DATABASE_URL=postgres://… cargo run --example in_order`

use serde::{Deserialize, Serialize};
use seriatim::{ActiveJob, JobError, JobHandler, JobKind, Processor, QueueOptions, async_trait};

#[derive(Serialize, Deserialize)]
struct Posting {
    account: String,
    cents: i64,
}

impl JobKind for Posting {
    const NAME: &'static str = "posting";
    const QUEUE: &'static str = "postings";

    fn group(&self) -> Option<String> {
        Some(self.account.clone()) // what must keep an order
    }
}

struct Post;

#[async_trait]
impl JobHandler for Post {
    type Data = Posting;
    type Output = ();
    type Error = JobError; // `?` makes one of any error, and means retry

    async fn handle(&self, _job: &mut ActiveJob, posting: Posting) -> Result<(), JobError> {
        println!("{:+} cents to {}", posting.cents, posting.account);
        Ok(()) // what is written by `job.tx()` commits with the job, or not at all
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = sqlx::PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    seriatim::migrate(&pool).await?;
    for cents in [1_500, -300, 25] {
        seriatim::enqueue(&pool, &Posting { account: "ann".into(), cents }).await?;
    }
    let postings = QueueOptions::new(Posting::QUEUE).concurrency(4);
    let running = Processor::builder(pool).queue(postings, Post).build()?.start().await?;
    seriatim::shutdown_signal().await?; // Ctrl-C
    running.shutdown(std::time::Duration::from_secs(20)).await;
    Ok(())
}
